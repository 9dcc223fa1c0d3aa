"""Attention maps of a network, for figures."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float32
from torch import nn

from ..core.metric import Metric
from ..metrics.networks import AttentionMaps
from .evaluation import evaluation
from .forward_pass import NoAttention
from .passes import Inputs, run
from .probing import probe


def attention_maps(
    model: nn.Module, inputs: Inputs, *, keep: int, others: Sequence[Metric] = ()
) -> Float32[np.ndarray, "layers heads samples queries keys"] | None:
    """Returns the attention maps of the first inputs, ``[layers, heads, samples, queries, keys]``.

    Args:
        model: the network.
        inputs: inputs of one forward pass, ``[n, ...]``, or several by the name of the argument.
        keep: largest number of samples.
        others: further metrics that are updated in the same pass.
    Returns:
        The maps; without entries if modules differ in the shape of their maps. None: the network has no
        attention.
    """
    recorder = AttentionMaps(keep=keep)
    try:
        with evaluation(model), probe(model, [recorder, *others]):
            run(model, inputs)
    except NoAttention:
        return None
    maps = [recorder.sums[where].float().cpu().numpy().swapaxes(0, 1) for where in sorted(recorder.sums)]
    if len({array.shape for array in maps}) != 1:
        return np.empty((len(maps), 0, 0, 0, 0), dtype=np.float32)
    return np.stack(maps).astype(np.float32)


def first_samples(
    maps: Float32[np.ndarray, "layers heads samples queries keys"], limit: int
) -> Float32[np.ndarray, "layers heads some queries keys"]:
    """Returns the maps of as many samples as have at most ``limit`` entries together."""
    # limit // (entries per sample), in integers
    return maps[:, :, : limit * maps.shape[2] // maps.size] if maps.size else maps
