"""The ladder of JoMA: how well the invariant predicts the attention logits from the lower layer, as
assumptions are relaxed.

:mod:`.comparison` defines the quantities and their null distributions, :mod:`.blocks` measures the theory's
own block, and :mod:`.networks` transformers.
"""

from dataclasses import replace
from functools import partial

from ....core.ladder import Rung
from .blocks import DECAY, Setting, adamw, descent, flow, measure_block
from .comparison import LADDER as QUANTITY
from .networks import digit_decoder, text_decoder, vision_transformer

_FLOW = Setting(flow)
_BATCHES = Setting(descent)
_WORDS = replace(_BATCHES, real=True)
_SOFTMAX = replace(_WORDS, softmax=True)
_DECAY = replace(_SOFTMAX, decay=DECAY)
_UNITS = replace(_DECAY, units=10)
_CLASSES = replace(_UNITS, classes=10)
_ADAMW = replace(_CLASSES, decay=0.0, train=adamw)  # AdamW has its own weight decay
_QUERIES = replace(_ADAMW, queries=True)


def _block(name: str, relaxes: str, setting: Setting, column: str, *, covered: bool = False) -> Rung:
    return Rung(name, relaxes, partial(measure_block, setting), column, covered=covered)


LADDER = replace(
    QUANTITY,
    rungs=(
        _block("own flow", "", _FLOW, "own setting", covered=True),
        _block(
            "finite batch",
            "the exact gradient flow: descent in finite steps, each on a batch",
            _BATCHES,
            "own setting",
        ),
        _block("visual words", "synthetic contexts", _WORDS, "real tokens"),
        _block("joint softmax", "exponential attention", _SOFTMAX, "everything trained"),
        _block("weight decay", "no weight decay", _DECAY, "everything trained"),
        _block("ten units", "one unit: all ten learn whether the digit is odd", _UNITS, "everything trained"),
        _block(
            "ten classes",
            "two classes and a loss per unit: cross-entropy over ten digits",
            _CLASSES,
            "everything trained",
        ),
        _block("AdamW", "steps along the gradient", _ADAMW, "AdamW and mini-batches"),
        _block("several queries", "one query", _QUERIES, "full block"),
        Rung(
            "MLP with LayerNorm",
            "orthonormal embeddings, free logits, one head, no LayerNorm, no upper layer",
            partial(digit_decoder, 1),
            "full block",
        ),
        Rung("two layers", "one layer", partial(digit_decoder, 2), "depth"),
        Rung("ViT on digits", "discrete tokens, a token as the query", vision_transformer, "trained network"),
        Rung("decoder on WikiText", "digits", text_decoder, "trained network", needs="text"),
    ),
)
