r"""The ladder of scan-and-snap: does the theory predict from counts which words gain attention, and which
lose it?

:mod:`.agreement` computes the prediction and compares it with a measured change of the attention logits.
:mod:`.rungs` contains the settings from the theory's own classes to a vision transformer, :mod:`.text` the
decoder on a text, and :mod:`.networks` the networks.

Source: :cite:t:`tian2023scan`.
"""

from functools import partial

from ....core.ladder import COLUMNS
from .agreement import FAST_DECODER, LADDER
from .rungs import (
    BLOCK_STEPS,
    LONG,
    SGD_STEPS,
    SHORT,
    SOFTMAX_STEPS,
    STEPS,
    network,
    own_rung,
    redrawn_words,
    reparametrised,
    retrained_rung,
    softmax_attention,
    ten_classes,
    two_classes,
    vit_rung,
    words_rung,
)
from .text import text_rung

OWN, TOKENS, TRAINED, MINIBATCHES, BLOCK, DEPTH, NETWORK = COLUMNS
ADAM, BLOCK_ADAM = f"{STEPS} steps of AdamW", f"{BLOCK_STEPS} steps of AdamW"

for name, relaxes, draw, context in (
    ("two classes", "", two_classes, LONG),
    ("ten classes", "one common token and weakly overlapping classes", ten_classes, LONG),
    ("short sequences", f"long sequences: {SHORT} words instead of {LONG:,}", ten_classes, SHORT),
    (
        "redrawn words",
        "distinct tokens: the frequencies are those of visual words",
        redrawn_words,
        SHORT,
    ),
):
    LADDER.rung(name, relaxes=relaxes, column=OWN, covered=not relaxes, draw=draw, context=context)(own_rung)
for name, relaxes, column, train, note in (
    (
        "visual words",
        "words drawn independently: real images",
        TOKENS,
        partial(reparametrised, FAST_DECODER),
        "the theory's model",
    ),
    (
        "one learning rate",
        "a decoder that learns faster than attention",
        TRAINED,
        partial(reparametrised, 1.0),
        "the theory's model, one rate",
    ),
    (
        "softmax attention",
        "attended tokens of norm one, and with them the flow's time",
        TRAINED,
        softmax_attention,
        f"{SOFTMAX_STEPS} steps of descent",
    ),
    (
        "K, Q and V",
        "free logits: embeddings, W_K, W_Q, W_V and head are trained from random weights, and the query is "
        "a key",
        TRAINED,
        partial(network, False, 0, False),
        f"{SGD_STEPS} steps of descent",
    ),
    ("AdamW", "gradient descent on all sequences", MINIBATCHES, partial(network, False, 0, True), ADAM),
    ("positions", "positions instead of none", BLOCK, partial(network, True, 0, True), ADAM),
    (
        "LayerNorm and MLP",
        "attention alone: residual stream, LayerNorm and MLP",
        BLOCK,
        partial(network, True, 1, True),
        BLOCK_ADAM,
    ),
):
    LADDER.rung(name, relaxes=relaxes, column=column, train=train, note=note)(words_rung)
LADDER.rung(
    "three layers",
    relaxes="three layers instead of one",
    column=DEPTH,
    train=partial(network, True, 3, True),
    note=BLOCK_ADAM,
)(retrained_rung)
LADDER.rung(
    "ViT on visual words",
    relaxes="one head; a query that is a word: the class token reads all images",
    column=NETWORK,
)(vit_rung)
LADDER.rung(
    "decoder on a text",
    relaxes="the digits, and one prediction per sequence",
    column=NETWORK,
    needs="text",
)(text_rung)
