r"""Learning rates over a training, as factors of progress in [0, 1], which may come from steps or from the clock.

Source: :cite:t:`xiong2020layer` (why transformers warm up), :cite:t:`loshchilov2017sgdr` (cosine).
"""

import math


def warm_up_cosine(progress: float, *, warm_up: float = 0.05, floor: float = 0.0) -> float:
    r"""The factor of the learning rate: from 0 straight up to 1 in the warm-up, then along half a cosine down to the floor.

        p / w                                         p < w
        f + (1 - f) (1 + cos(π (p - w) / (1 - w))) / 2    p >= w

    At progress 0 it is 0: a step that is to count takes the progress at its end.

    Args:
        progress: p, share of the training that is done, in [0, 1].
        warm_up: w, share of the training, in [0, 1).
        floor: f, factor at the end, in [0, 1].
    Raises:
        ValueError: an argument is out of its range. Source: :cite:t:`loshchilov2017sgdr`, Eq. 5, without restarts.
    """
    if not (0 <= progress <= 1 and 0 <= warm_up < 1 and 0 <= floor <= 1):
        given = f"progress {progress}, warm_up {warm_up}, floor {floor}"
        raise ValueError(f"progress and floor must lie in [0, 1] and warm_up in [0, 1), got {given}")
    if progress < warm_up:
        return progress / warm_up
    return floor + (1 - floor) * (1 + math.cos(math.pi * (progress - warm_up) / (1 - warm_up))) / 2
