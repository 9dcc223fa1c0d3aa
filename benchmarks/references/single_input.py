"""One input of three tokens in the plane: objectives by cvxpy, descent by automatic differentiation.

Keys (-.1, 1), (1, 0) and (0, 0); scores (1, .9, .9) in the global case and (1, .9, 0) in the local one; 1,000
normalised steps of .1 from (0, y), 1e-9 added to the norm of the gradient, as in the released run.
"""

from collections.abc import Iterator

import torch

from benchmarks.references import Reference
from benchmarks.references._tools import cosine, descend, frobenius, logistic, pairs
from transformer_theory.theories.attention_svm.figures import single_input as figure

KEYS = torch.tensor([[-0.1, 1.0], [1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
SCORES = {"global": (1.0, 0.9, 0.9), "local": (1.0, 0.9, 0.0)}
STARTS = (1.0, 0.5, 0.0, -0.5, -1.0, -1.5)


def references() -> Iterator[Reference]:
    """Yields objectives, selected tokens and cosines."""
    targets = []
    for token, stored in enumerate(figure.OBJECTIVES):
        p = frobenius(*pairs(KEYS[None], torch.ones(1, 1, dtype=torch.float64), torch.tensor([token])))
        assert p is not None
        targets.append(p)
        yield Reference(f"|p_mm|^2 / 2, token {token}", stored, float((p**2).sum()) / 2)
    for case, values in SCORES.items():
        scores = torch.tensor([values], dtype=torch.float64)
        begin = torch.tensor([[0.0, y] for y in STARTS], dtype=torch.float64)
        (end,) = descend(
            lambda p, scores=scores: logistic((KEYS @ p[..., None])[..., 0].softmax(-1)[:, None], scores),
            [begin],
            steps=1000,
            rate=0.1,
            eps=figure.EPS,
            matrix=False,
        )
        for y, p in zip(STARTS, end):
            token = int((KEYS @ p).argmax())
            if case == "local":
                yield Reference(f"token selected, {case}, start (0, {y})", float(y < -0.5), float(token))
            if (case, y) in figure.RELEASED:
                yield Reference(
                    f"cosine to p_mm, {case}, start (0, {y})",
                    figure.RELEASED[case, y],
                    cosine(p, targets[token]),
                )
