"""Checkable statements on coding rates, the MCR² optimum and ReduNet, each with a control that must fail; one file a subject.

Source: :cite:t:`yu2020learning`, :cite:t:`wang2024global`, :cite:t:`chan2022redunet`.
"""

from . import landscape, optimum, rates, redunet

CLAIMS = (*rates.CLAIMS, *optimum.CLAIMS, *landscape.CLAIMS, *redunet.CLAIMS)

__all__ = ["CLAIMS"]
