"""ReduNet on Fisher's iris: the rate reduction by layer, and accuracy on unseen samples, over random splits.

Source: :cite:t:`chan2022redunet`.
"""

from collections.abc import Iterator

import torch

from ....core.experiment import setting
from ....core.figure import Reading, figure
from ....core.table import Arrays
from ....metrics.coding import unit_norm
from ..on_data import plot
from ..problem import REDUNET
from .redunet_digits import on_splits


@figure("rate_reduction.redunet_iris", source=REDUNET, view=plot, quick={"splits": 2, "layers": 100})
def redunet_iris(
    *,
    splits: int = setting(5, ge=1, help="random splits into training samples and unseen samples"),
    training: int = setting(120, ge=30, help="training samples of 150; the rest are unseen"),
    layers: int = setting(4000, ge=1, help="gradient steps"),
    step: float = setting(0.1, gt=0, le=1e3, help="step size η"),
    eps: float = setting(0.1**0.5, ge=1e-3, le=1e3, help="distortion ε; squared inside"),
    rank: int = setting(1, ge=1, help="dimension of the nearest subspaces"),
    seed: int = 0,
) -> Iterator[Reading | Arrays]:
    """ReduNet on Fisher's iris: four measurements of each of 150 flowers, as directions. η = 0.1 as
    published; a random fifth is unseen.
    """
    from sklearn.datasets import load_iris

    measurements, species = load_iris(return_X_y=True)
    features = unit_norm(torch.from_numpy(measurements).double())
    net = {"layers": layers, "step": step, "eps": eps}
    labels = torch.from_numpy(species).long()
    yield from on_splits(features, labels, splits, training, net, rank=rank, seed=seed)
