"""Every theory on the same data and in the same trained networks.

:func:`compare` trains small networks on one part of the data while every theory's metrics are computed on the other part, runs each theory's
own minimal model on the raw tokens and on the networks' features, and verifies each theory's claims with their controls. Stored networks
(of ``transformer-theory train``) can take the place of the small ones. All of it becomes one :class:`~.core.result.Result`:

* rows of kind "on data" and "assumption": the theory's own model on the raw tokens (``model`` is empty) or on a network's features;
* rows of kind "in network" and "network" with a ``step``: the theories' metrics and the network's own quantities over training;
* rows of kind "in network" without step and layer: the theory's headline in the trained network, averaged over layers and heads;
* rows of kind "claim", one per seed, and the verifications whole;
* arrays: ``"<theory>/..."`` on the raw tokens, ``"<network>::<theory>/..."`` on features, ``"network/<network>/..."`` of the networks.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from . import data as data_module
from .core import parallel
from .core.claims import verify_claims
from .core.errors import nearest
from .core.measurement import Arrays, Measurement, Null, Table, collect
from .core.metric import Metric
from .core.parallel import one_thread
from .core.result import Result, provenance
from .core.theory import Theory, Unsupported
from .data import Images, TokenData, image_sets
from .theories import choose
from .training.recipes import RECIPES, Recipe

TRAIN_SHARE = 0.7
CODEBOOK_SIZE = 32  # visual words of a network's features
FEATURE_SEQUENCES = 512  # validation sequences whose features the theories are given

Data = TokenData | tuple[Images, Images] | str | Path


@dataclass(frozen=True)
class Plan:
    """What one comparison does, for one seed.

    Attributes:
        raw: the tokens that the theories are given.
        images: training and test images, where stored networks are measured on them.
        theories: their records.
        recipes: of the small networks.
        networks: stored networks.
        steps: optimiser steps of each small network.
        seed: of the split, the networks and the theories.
        device: where networks run.
        progress: called with one line per stage.
    """

    raw: TokenData
    images: tuple[Images, Images] | None
    theories: tuple[Theory, ...]
    recipes: tuple[Recipe, ...]
    networks: tuple["StoredNetwork", ...]
    steps: int
    seed: int
    device: str
    progress: Callable[[str], None]

    def metrics(self) -> list[Metric]:
        """Fresh metrics of all theories that measure something in networks."""
        return [metric for theory in self.theories if theory.in_networks for metric in theory.in_networks.metrics()]

    def generator(self) -> torch.Generator:
        """A fresh generator with the plan's seed."""
        return torch.Generator().manual_seed(self.seed)
