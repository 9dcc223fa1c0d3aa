"""Prompt and head at once: targets by cvxpy, descent by automatic differentiation.

Three inputs of two tokens, the first of which is zero: (1, 1), (1, -1) and (.5, c) with c = 1 (tight) or 1.5;
labels 1, -1, 1. Both start with length one, p at (0, -1) and v at (-1, 0); steps of .1, with 1e-19 and 1e-9
added to the norms of the gradients of p and v.
"""

from collections.abc import Iterator

import numpy as np
import torch

from benchmarks.references import Reference
from benchmarks.references._tools import cosine, descend, frobenius
from transformer_theory.theories.attention_svm.figures import joint as figure
from transformer_theory.theories.attention_svm.published import JOINT_CASES

LABELS = torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64)


def references() -> Iterator[Reference]:
    """Yields objectives, cosines after 1,000 steps, and the curves of the tight case."""
    for case, c in JOINT_CASES.items():
        selected = torch.tensor([[1.0, 1.0], [1.0, -1.0], [0.5, c]], dtype=torch.float64)
        tokens, one = torch.stack([torch.zeros_like(selected), selected], 1), np.ones((3, 1))
        head = frobenius((LABELS[:, None] * selected).numpy(), one)
        assert head is not None
        support = (LABELS[:, None] * selected).numpy() @ head[:, 0] <= 1 + 1e-6
        targets = {
            "v_mm": head,
            "p_mm": frobenius(selected.numpy(), one),
            "p_relax": frobenius(selected.numpy(), one, rhs=support.astype(float)),
        }
        for name, stored in figure.OBJECTIVES[case].items():
            if stored is not None:
                yield Reference(f"|{name}|^2 / 2, {case}", stored, float((targets[name] ** 2).sum()) / 2)

        def attention(p: torch.Tensor, tokens: torch.Tensor = tokens) -> torch.Tensor:
            return (tokens @ p).softmax(-1)

        def margin(p: torch.Tensor, v: torch.Tensor, tokens: torch.Tensor = tokens) -> torch.Tensor:
            return LABELS * ((attention(p, tokens)[:, None] @ tokens)[:, 0] @ v)

        curves: dict[str, dict[int, float]] = {figure.ATTENTION: {}, figure.PROBABILITY: {}}

        def watch(
            step: int, p: torch.Tensor, v: torch.Tensor, curves: dict = curves, tokens: torch.Tensor = tokens
        ) -> None:
            curves[figure.ATTENTION][step] = float(attention(p, tokens)[:, 1].mean())
            curves[figure.PROBABILITY][step] = float(margin(p, v, tokens).sigmoid().mean())

        begin = [torch.tensor(v, dtype=torch.float64) for v in ((0.0, -1.0), (-1.0, 0.0))]
        p, v = descend(
            lambda p, v, tokens=tokens: torch.log1p(torch.exp(-margin(p, v, tokens))).mean(),
            begin,
            steps=1000,
            rate=0.1,
            eps=figure.EPS,
            matrix=False,
            watch=watch,
        )
        for name, stored in figure.COSINES[case].items():
            yield Reference(
                f"cosine to {name}, {case}, step 1,000",
                stored,
                cosine(v if name == "v_mm" else p, targets[name]),
            )
        if case == "tight":
            for quantity, curve in figure.CURVES.items():
                for step, stored in curve.items():
                    yield Reference(f"{quantity}, {case}, step {step}", stored, curves[quantity][step])
