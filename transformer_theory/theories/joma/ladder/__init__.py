"""The ladder of JoMA: how well the invariant predicts the attention logits from the lower layer, as
assumptions are relaxed.

:mod:`.comparison` defines the quantities and their null distributions, :mod:`.blocks` measures the theory's
own block, and :mod:`.networks` transformers.
"""

from dataclasses import replace

from ....core.ladder import COLUMNS
from .blocks import DECAY, Setting, adamw, descent, flow, measure_block
from .comparison import LADDER
from .networks import digit_decoder, text_decoder, vision_transformer

OWN, TOKENS, TRAINED, ADAMW, BLOCK, DEPTH, NETWORK = COLUMNS
_WORDS = Setting(descent, real=True)
_SOFTMAX = replace(_WORDS, softmax=True)
_DECAY = replace(_SOFTMAX, decay=DECAY)
_UNITS = replace(_DECAY, units=10)
_CLASSES = replace(_UNITS, classes=10)
_STEPS = replace(_CLASSES, decay=0.0, train=adamw)  # AdamW has its own weight decay

for name, relaxes, column, setting in (
    ("own flow", "", OWN, Setting(flow)),
    (
        "finite batch",
        "the exact gradient flow: descent in finite steps, each on a batch",
        OWN,
        Setting(descent),
    ),
    ("visual words", "synthetic contexts", TOKENS, _WORDS),
    ("joint softmax", "softmax instead of exponential attention", TRAINED, _SOFTMAX),
    ("weight decay", "weight decay instead of none", TRAINED, _DECAY),
    ("ten units", "one unit: all ten learn whether the digit is odd", TRAINED, _UNITS),
    (
        "ten classes",
        "two classes and a loss per unit: cross-entropy over ten digits",
        TRAINED,
        _CLASSES,
    ),
    ("AdamW", "steps along the gradient", ADAMW, _STEPS),
    ("several queries", "several queries instead of one", BLOCK, replace(_STEPS, queries=True)),
):
    LADDER.rung(name, relaxes=relaxes, column=column, covered=not relaxes, setting=setting)(measure_block)
LADDER.rung(
    "MLP with LayerNorm",
    relaxes="orthonormal embeddings, free logits, one head, no LayerNorm, no upper layer",
    column=BLOCK,
    depth=1,
)(digit_decoder)
LADDER.rung("two layers", relaxes="two layers instead of one", column=DEPTH, depth=2)(digit_decoder)
LADDER.rung("ViT on digits", relaxes="discrete tokens, a token as the query", column=NETWORK)(
    vision_transformer
)
LADDER.rung("decoder on WikiText", relaxes="a text instead of the digits", column=NETWORK, needs="text")(
    text_decoder
)
