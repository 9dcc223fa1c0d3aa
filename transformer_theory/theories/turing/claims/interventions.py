"""The attention of the construction with rounded scores, changed in the forward pass. Source:
:cite:t:`perez2021attention`.
"""

from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor, nn

from ....core.claims import Measured, but, claim
from ....core.intervention import Attended
from ....probes.changed_pass import changed_attention, check_changed
from ..construction import PerezTransformer
from ..floating import positions
from ..retrieval import rounded
from .construction import NORMAL_FORM
from .instances import SETTING, Run, rewriting_runs

STEPS = 900  # with bfloat16 scores visits tie from about time 500 on
INVERSE_TEMPERATURE = (
    2.0**57
)  # a power of two, which rounding does not see; no weight is shared without a tie
BFLOAT16 = 8  # binary digits of a number, the leading one included


class _ThirdLayer(nn.Module):
    """The attention of the third layer, with softmax: tokens ``[batch, n, d]`` to what it reads, ``[batch, n,
    v]``.
    """

    def __init__(self, transformer: PerezTransformer):
        super().__init__()
        self.query, self.key, self.value = (
            transformer[f"decoder.3.{part}"].dense() for part in ("query", "key", "value")
        )

    def forward(self, x: Float[Tensor, "batch n d"]) -> Float[Tensor, "batch n v"]:
        n = x.shape[1]
        products = (x @ self.query) @ (x @ self.key).mT
        # -|x| as a product with a sign, so that the scores remain a product of queries and keys
        scores = products * -products.sign() * INVERSE_TEMPERATURE
        later = torch.ones(n, n, dtype=torch.bool).triu(1)
        return scores.masked_fill(later, -torch.inf).softmax(-1) @ (x @ self.value)


def _tokens(run: Run) -> Float[Tensor, "1 n d"]:
    """Returns what the third layer reads of each token, from the trace of the machine."""
    transformer, heads = run.transformer, torch.tensor(run.reference.heads, dtype=torch.float64)
    place = {name: number for number, name in enumerate(transformer.coordinates)}
    x = torch.zeros(run.steps, transformer.d, dtype=torch.float64)
    x[:, -4:] = positions(run.steps, torch.float64)
    for name, cells in (("x4", heads[1:]), ("x5", heads[:-1])):
        x[:, place[name]] = cells / x[:, place["p"]]
    for time, symbol in enumerate(run.written[: run.steps]):
        x[time, place[f"s2[{symbol}]"]] = 1
    return x[None]


def _rounded_scores(attended: Attended, *, digits: int) -> Attended:
    """Rounds the scores to a number of binary digits."""
    scores = -(attended.query @ attended.key.mT).abs()
    exact = rounded(scores, digits).masked_fill(~attended.mask, -torch.inf)
    return attended.with_weights((INVERSE_TEMPERATURE * exact).softmax(-1))


def _best(run: Run) -> Float[Tensor, " n"]:
    """Returns the mean position of the keys with the best score in bfloat16, from the closed form."""
    c = torch.tensor(run.reference.heads, dtype=torch.float64)
    e = 1 / torch.arange(1, len(c), dtype=torch.float64)
    sizes = (e[:, None] * e * (c[1:, None] - c[:-1] + e[:, None] * e / 3)).abs()
    later = torch.ones(len(e), len(e), dtype=torch.bool).triu(1)
    sizes = sizes.masked_fill(later, torch.inf).bfloat16()
    best = (sizes == sizes.amin(-1, keepdim=True)).double()
    return best @ torch.arange(len(e), dtype=torch.float64) / best.sum(-1)


def _differ(found: Float[Tensor, " n"], expected: Float[Tensor, " n"]) -> Bool[Tensor, " n"]:
    """Returns where the positions that attention reads differ by more than rounding."""
    return (found - expected).abs() > 1e-6


@claim(
    "turing/rounded-scores",
    measures="number of times at which attention reads another position than predicted",
    at_most=0,
    source=SETTING,
    assumptions=(
        NORMAL_FORM,
        "attention of the third layer, with the tokens of the right trace",
        f"{STEPS} steps of a closed random walk of period 40 and of a counter, softmax of the scores times "
        "$2^{57}$, float64",
    ),
    control=but("scores rounded to the 24 digits of float32", digits=24),
)
def rounded_scores(generator: Generator, *, digits: int = BFLOAT16) -> Measured:
    r"""If nothing but the scores is rounded to bfloat16, the third layer misses the latest visit
    $\ell(i+1)$ exactly where the scores $-e_i e_j |c^{(i+1)} - c^{(j)} + e_i e_j / 3|$ of several visits
    are the same bfloat16 number: there it reads their mean, at all other times the latest visit.
    """
    wrong, detail = 0, {}
    counter, _, walk = rewriting_runs(generator, STEPS)
    for run in (walk, counter):
        model, x = _ThirdLayer(run.transformer), _tokens(run)
        latest, predicted = torch.tensor(run.reference.attended[1:], dtype=torch.float64), _best(run)
        with torch.no_grad():
            unchanged = model(x)[0, :, -1]
        with changed_attention(model, partial(_rounded_scores, digits=digits)) as changed:
            found = model(x)[0, :, -1]
        check_changed(changed, "rounding")
        wrong += int(_differ(found, predicted).sum()) + int(_differ(unchanged, latest).sum())
        detail[f"{run.name}: times at which the latest visit is missed"] = float(_differ(found, latest).sum())
    return Measured(float(wrong), detail)


CLAIMS = (rounded_scores,)
