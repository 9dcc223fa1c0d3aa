"""Checkable statements on coding rates, the MCR² optimum, ReduNet and clustering, each with a control that must fail; one file a subject.

Source: :cite:t:`yu2020learning`, :cite:t:`wang2024global`, :cite:t:`chan2022redunet`, :cite:t:`ma2007segmentation`.
"""

from . import clustering, landscape, optimum, rates, redunet

CLAIMS = (*rates.CLAIMS, *optimum.CLAIMS, *landscape.CLAIMS, *redunet.CLAIMS, *clustering.CLAIMS)

__all__ = ["CLAIMS"]
