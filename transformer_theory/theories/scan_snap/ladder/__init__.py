r"""The ladder of scan-and-snap: does the theory predict from counts which words gain attention, and which
lose it?

:mod:`.agreement` computes the prediction and compares it with a measured change of the attention logits.
:mod:`.rungs` contains the settings from the theory's own classes to a vision transformer, :mod:`.text` the
decoder on a text, and :mod:`.networks` the networks.

Source: :cite:t:`tian2023scan`.
"""

from dataclasses import replace
from functools import partial

from ....core.ladder import COLUMNS, Rung
from .agreement import FAST_DECODER, HEADLINE
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
_ADAM, _BLOCK_ADAM = f"{STEPS} steps of AdamW", f"{BLOCK_STEPS} steps of AdamW"

LADDER = replace(
    HEADLINE,
    rungs=(
        Rung("two classes", "", partial(own_rung, two_classes, LONG), OWN, covered=True),
        Rung(
            "ten classes",
            "one common token and weakly overlapping classes",
            partial(own_rung, ten_classes, LONG),
            OWN,
        ),
        Rung(
            "short sequences",
            f"long sequences: {SHORT} words instead of {LONG:,}",
            partial(own_rung, ten_classes, SHORT),
            OWN,
        ),
        Rung(
            "redrawn words",
            "distinct tokens: the frequencies are those of visual words",
            partial(own_rung, redrawn_words, SHORT),
            OWN,
        ),
        Rung(
            "visual words",
            "words drawn independently: real images",
            partial(words_rung, partial(reparametrised, FAST_DECODER), "the theory's model"),
            TOKENS,
        ),
        Rung(
            "one learning rate",
            "a decoder that learns faster than attention",
            partial(words_rung, partial(reparametrised, 1.0), "the theory's model, one rate"),
            TRAINED,
        ),
        Rung(
            "softmax attention",
            "attended tokens of norm one, and with them the flow's time",
            partial(words_rung, softmax_attention, f"{SOFTMAX_STEPS} steps of descent"),
            TRAINED,
        ),
        Rung(
            "K, Q and V",
            "free logits: embeddings, W_K, W_Q, W_V and head are trained from random weights, and the query "
            "is a key",
            partial(words_rung, partial(network, False, 0, False), f"{SGD_STEPS} steps of descent"),
            TRAINED,
        ),
        Rung(
            "AdamW",
            "gradient descent on all sequences",
            partial(words_rung, partial(network, False, 0, True), _ADAM),
            MINIBATCHES,
        ),
        Rung("positions", "no positions", partial(words_rung, partial(network, True, 0, True), _ADAM), BLOCK),
        Rung(
            "LayerNorm and MLP",
            "attention alone: residual stream, LayerNorm and MLP",
            partial(words_rung, partial(network, True, 1, True), _BLOCK_ADAM),
            BLOCK,
        ),
        Rung(
            "three layers",
            "one layer",
            partial(retrained_rung, partial(network, True, 3, True), _BLOCK_ADAM),
            DEPTH,
        ),
        Rung(
            "ViT on visual words",
            "one head; a query that is a word: the class token reads all images",
            vit_rung,
            NETWORK,
        ),
        Rung(
            "decoder on a text",
            "the digits, and one prediction per sequence",
            text_rung,
            NETWORK,
            needs="text",
        ),
    ),
)
