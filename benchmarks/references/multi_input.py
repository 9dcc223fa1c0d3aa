"""Three inputs of seven tokens with one prompt: normalised and plain descent by automatic differentiation.

The keys have a standard deviation of .2 around (1, 0) for the best token and around (-1, 1) or (-1/2, -1/2)
for the others, drawn in single precision from seed 0 with a third coordinate that the keys do not use. The
best token scores 1, the others 1/2. The number .31319 is printed in the released notebook; norms after 199
steps are read off the figure, whose run is in single precision.
"""

from collections.abc import Iterator

import torch

from benchmarks.references import Reference
from benchmarks.references._tools import cosine, descend, frobenius, logistic, pairs
from transformer_theory.theories.attention_svm.figures import multi_input as figure


def references() -> Iterator[Reference]:
    """Yields the printed objective, and the attention, norms and cosines of both descents from p = 0."""
    drawn = 0.2 * torch.randn(3, 7, 3, generator=torch.Generator().manual_seed(0))
    drawn[..., :2] += torch.tensor([[1.0, 0.0]] + 3 * [[-1.0, 1.0]] + 3 * [[-0.5, -0.5]])
    drawn[..., 2] = torch.tensor([1.0] + 6 * [0.5])
    keys, scores = drawn[..., :2].double(), drawn[..., 2].double()
    one, best = torch.ones(3, 1, dtype=torch.float64), torch.zeros(3, dtype=torch.long)
    with_score, target = (frobenius(*pairs(x, one, best)) for x in (drawn.double(), keys))
    assert with_score is not None
    assert target is not None
    yield Reference(
        "|p_mm|^2 / 2, score as third coordinate",
        figure.PRINTED_OBJECTIVE,
        float((with_score**2).sum()) / 2,
        "printed",
    )
    runs = ((figure.RELEASED, 0.1, figure.EPS, True), (figure.PLAIN, 1.0, 0.0, False))
    for descent, rate, eps, normalised in runs:
        seen = {}

        def watch(step: int, p: torch.Tensor, seen: dict = seen) -> None:
            seen[step] = {
                figure.ATTENTION: float((keys @ p).softmax(-1)[:, 0].mean()),
                figure.NORM: float(p.norm()),
                figure.COSINE: cosine(p, target),
            }

        begin = torch.zeros(2, dtype=torch.float64)
        descend(
            lambda p: logistic((keys @ p).softmax(-1), scores),
            [begin],
            steps=1000,
            rate=rate,
            eps=eps,
            normalised=normalised,
            matrix=False,
            watch=lambda step, p, watch=watch: watch(step, p) if step else None,
        )
        for (quantity, of, step), (stored, basis) in figure.KNOWN.items():
            if of == descent:
                computed, kind = seen[step][quantity], "recomputed"
                if basis == "figure":
                    computed, kind = (
                        _single_precision_norm(keys, scores, rate, eps, normalised, step),
                        "read off the figure",
                    )
                yield Reference(f"{quantity}, {descent}, step {step}", stored, computed, kind)


def _single_precision_norm(
    keys: torch.Tensor, scores: torch.Tensor, rate: float, eps: float, normalised: bool, steps: int
) -> float:
    """Returns the norm of p after the same descent in single precision."""
    (p,) = descend(
        lambda p: logistic((keys.float() @ p).softmax(-1), scores.float()),
        [torch.zeros(2)],
        steps=steps,
        rate=rate,
        eps=eps,
        normalised=normalised,
        matrix=False,
    )
    return float(p.norm())
