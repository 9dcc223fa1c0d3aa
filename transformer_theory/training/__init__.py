"""Training of the small networks that the theories are read in.

:mod:`.loop` on labels by cross-entropy, :mod:`.mcr2` on the rate reduction, with :mod:`.augment` and :mod:`.evaluation`; :mod:`.recipes`
which networks, :mod:`.watch` what every theory reads while they train.
"""

from .supervised import Trained, accuracy, train

__all__ = ["Trained", "accuracy", "train"]
