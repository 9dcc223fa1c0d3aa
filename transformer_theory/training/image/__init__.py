"""Training of networks on images: a run folder with checkpoints, resuming, augmentation, recipes, several
seeds and several processes. Theories see nothing of it: metrics and objectives are passed in.

:func:`train` trains one network (:mod:`.loop`, :mod:`.settings`), :func:`train_seeds` repeats a training on
several seeds in parallel. :mod:`.recipes` holds tested settings; :mod:`.evaluate` and :mod:`.side_by_side`
measure and compare stored networks.
"""

from .loop import ProgressUpdate, train
from .seeds import train_seeds

__all__ = ["ProgressUpdate", "train", "train_seeds"]
