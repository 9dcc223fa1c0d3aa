"""The claims of the particle theory: the flow, sequences of one common cosine, and the measurements in
networks.
"""

from .equiangular import CLAIMS as EQUIANGULAR
from .flows import CLAIMS as FLOWS
from .measurements import CLAIMS as MEASUREMENTS

CLAIMS = FLOWS + EQUIANGULAR + MEASUREMENTS
