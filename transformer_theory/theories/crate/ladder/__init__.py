r"""The ladder of compression: one attention step, from exact gradient steps on a mixture of subspaces to trained transformers.

The headline is the compression by one attention step in its own subspaces beyond that in rotated subspaces (:mod:`.quantities`), in a
network the mean over its layers. The theory predicts a sign, not a number, so the first rung is the reference. With the lengths of the
tokens kept, an exact step of size 1/L lowers R^c by at least ||grad R^c||^2 / (2L); rungs with exact steps compare their fall with this
guarantee.

The rungs up to "depth" have equal sizes: 17 tokens of 64 dimensions, four subspaces of dimension 16. The second quantity is the share of
non-zeros of the code after the step, compared with random dictionaries or with untrained networks.

Source: :cite:t:`yu2023white`; the guarantee is the descent lemma.
"""

from dataclasses import replace
from functools import partial

from ....core.ladder import COLUMNS, Rung
from ....models.crate import PaperAttention
from ....training.networks import Mlp
from ....training.trained_rungs import trained_network_rungs
from .given_tokens import digit_rows, mixture_rows, paper_rows
from .networks import Constructor, Training, adamw, descend, recipe_rows, small_crate, small_vit, trained_rows
from .quantities import HEADLINE

OWN, TOKENS, TRAINED, ADAMW, BLOCK, DEPTH, _ = COLUMNS
LAYERS = 4  # of the rung "four layers"
derived = partial(small_crate, attention=PaperAttention, norms=False)  # the layer of the paper's derivation


def _network(name: str, relaxes: str, column: str, constructor: Constructor, training: Training = adamw) -> Rung:
    return Rung(name, relaxes, partial(trained_rows, constructor, training), column)


LADDER = replace(
    HEADLINE,
    rungs=(
        Rung("exact steps", "", partial(mixture_rows, fitted=False), OWN, covered=True),
        Rung("fitted subspaces", "known subspaces: fitted to other tokens of the mixture", partial(mixture_rows, fitted=True), OWN),
        Rung("digits", "tokens near orthogonal subspaces: embedded patches of digits, and coherent subspaces", digit_rows, TOKENS),
        Rung("paper's step", "the exact gradient: softmax for the inverse, identity for the sum of the projections", paper_rows, TOKENS),
        _network("trained end to end", "subspaces fitted to the tokens: all parameters learn to classify", TRAINED, derived, descend),
        _network("AdamW", "gradient descent on the loss of all images", ADAMW, derived),
        _network("LayerNorm", "a step on the tokens themselves", BLOCK, partial(small_crate, attention=PaperAttention)),
        _network("released form", "an output tied to the subspaces, and the shrinkage", BLOCK, small_crate),
        _network("MLP", "ISTA", BLOCK, partial(small_crate, sparsify=Mlp)),
        _network("ViT block", "one matrix for query, key and value: the subspaces are those of the keys", BLOCK, small_vit),
        _network("four layers", "a single layer", DEPTH, partial(small_vit, depth=LAYERS)),
        *trained_network_rungs(recipe_rows),
    ),
)
