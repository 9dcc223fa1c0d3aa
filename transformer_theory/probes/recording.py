"""The activations of one forward pass of a network."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ..core.format import unique
from ..core.measurement import Measurement
from ..core.metric import ActivationKind, Activations, Metric
from ..core.validation import as_tensor
from .evaluation import evaluation
from .forward_pass import NoAttention
from .passes import run
from .probing import probe


class _Recorder(Metric):
    """Keeps the activations that it receives. Has no rows."""

    takes_padding = True

    def __init__(self, kinds: tuple[ActivationKind, ...]):
        self.kinds = kinds  # pyright: ignore[reportAttributeAccessIssue] - one recorder, one choice
        super().__init__()

    def reset(self) -> None:
        super().reset()
        self.seen: list[Activations] = []

    def update(self, activations: Activations) -> None:
        self.seen.append(activations)

    def compute(self, *, draws: int = 0, generator: torch.Generator | None = None) -> Sequence[Measurement]:
        return ()


def activations(model: nn.Module, inputs: Any) -> dict[str, Activations]:
    """Returns the activations of a network in one forward pass: of every attention and every block, by the
    name of the module, and of the whole network, as "outputs".

        tt.activations(model, images)["blocks.1.attention"].weights     # [batch, heads, queries, keys]

    The network runs in evaluation mode and without gradients; its mode and the random state are restored. A
    name that occurs again, as of a module that runs twice, gets a number: "block", "block-2".

    Args:
        model: any module, see :func:`.probe`. Of a network without attention, the blocks are returned.
        inputs: inputs ``[n, ...]``, a tensor or numpy array, or several by the name of the argument.
    Raises:
        NoAttention: the network has neither attention nor a list of similar modules.
        ValueError: there are no inputs, or they or the weights have no values.
    """
    if isinstance(inputs, Mapping) and not inputs:
        raise ValueError("inputs must hold at least one array, got an empty mapping")
    batch = (
        {name: as_tensor(name, value) for name, value in inputs.items()}
        if isinstance(inputs, Mapping)
        else as_tensor("inputs", inputs)
    )
    try:
        recorder = _recorded(model, batch, ("attention", "features", "outputs"))
    except NoAttention:
        recorder = _recorded(model, batch, ("features",))
    names = unique(each.name or each.kind for each in recorder.seen)
    return dict(zip(names, recorder.seen))


def _recorded(model: nn.Module, batch: Any, kinds: tuple[ActivationKind, ...]) -> _Recorder:
    """Runs the model once with a recorder of these kinds of activations."""
    recorder = _Recorder(kinds)
    with evaluation(model), torch.random.fork_rng(), probe(model, [recorder], draws=0):
        run(model, batch)
    return recorder
