r"""The ladder of compression: one attention step, from exact gradient steps on a mixture of subspaces to
trained transformers.

The headline is the compression by one attention step in its own subspaces beyond that in rotated subspaces
(:mod:`.quantities`), in a network the mean over its layers. The theory predicts a sign, not a number, so the
first rung is the reference. A second null rotates the update. A step that ignores its subspaces can leave
either null, so the outcome of a rung needs both.

On the first rung all assumptions of the paper hold. The descent lemma covers another quantity than the
headline, on the three rungs with exact steps, for any tokens: with the lengths of the tokens kept, a step of
size 1/L lowers R^c by at least ||grad R^c||^2 / (2L). These rungs have a row for it, with a verdict.

The rungs up to "depth" have equal sizes: 17 tokens of 64 dimensions, four subspaces of dimension 16. The
second quantity is the share of non-zeros of the code after the step, compared with random dictionaries or
with untrained networks.

Source: :cite:t:`yu2023white`; the guarantee is the descent lemma.
"""

from functools import partial

from ....core.ladder import COLUMNS
from ....models.crate import PaperAttention
from ....models.image_networks import Mlp
from ....training.trained_rungs import trained_networks
from .given_tokens import digit_rows, mixture_rows, network_scale_rows, paper_rows
from .networks import descend, recipe_rows, small_crate, small_vit, trained_rows
from .quantities import LADDER

OWN, TOKENS, TRAINED, ADAMW, BLOCK, DEPTH, _ = COLUMNS
LAYERS = 4  # of the rung "four layers"
SEPARATE = {  # a recipe changes several things at once, so these rungs are not cumulative
    "ViT on digits": "a separate recipe: two layers, more steps",
    "CRATE on digits": "a separate recipe: a CRATE, released form with ISTA",
    "ViT on images": "images instead of the digits; a ViT again",
}
derived = partial(small_crate, attention=PaperAttention, norms=False)  # the layer of the paper's derivation

LADDER.rung("exact steps", column=OWN, covered=True, fitted=False)(mixture_rows)
LADDER.rung(
    "fitted subspaces",
    relaxes="known subspaces: fitted to other tokens of the mixture",
    column=OWN,
    fitted=True,
)(mixture_rows)
LADDER.rung("digits", relaxes="tokens near orthogonal subspaces: digits, one token an image", column=TOKENS)(
    digit_rows
)
LADDER.rung(
    "paper's step",
    relaxes="the exact gradient: softmax for the inverse, identity for the sum of the projections",
    column=TOKENS,
    embedded=False,
)(paper_rows)
LADDER.rung(
    "embedded patches",
    relaxes="tokens that are images: patches and a class token, mostly position embeddings",
    column=TOKENS,
    embedded=True,
)(paper_rows)
LADDER.rung(
    "network's scale",
    relaxes="tokens of norm one, the step 1/L: lengths, kappa and eps of a network",
    column=TOKENS,
)(network_scale_rows)
LADDER.rung(
    "trained end to end",
    relaxes="subspaces fitted to the tokens: all parameters learn to classify",
    column=TRAINED,
    constructor=derived,
    training=descend,
)(trained_rows)
for name, relaxes, column, constructor in (
    ("AdamW", "gradient descent on the loss of all images", ADAMW, derived),
    ("LayerNorm", "a step on the tokens themselves", BLOCK, partial(small_crate, attention=PaperAttention)),
    (
        "released form",
        "an output tied to the subspaces, the shrinkage, unscaled scores",
        BLOCK,
        small_crate,
    ),
    ("MLP", "an MLP instead of ISTA", BLOCK, partial(small_crate, sparsify=Mlp)),
    (
        "ViT block",
        "one matrix for query, key and value: the subspaces are those of the keys",
        BLOCK,
        small_vit,
    ),
    ("four layers", "four layers instead of one", DEPTH, partial(small_vit, depth=LAYERS)),
):
    LADDER.rung(name, relaxes=relaxes, column=column, constructor=constructor)(trained_rows)
trained_networks(LADDER, SEPARATE)(recipe_rows)
