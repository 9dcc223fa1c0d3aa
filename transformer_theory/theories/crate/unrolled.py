r"""CRATE without training: its steps unrolled on given tokens, with subspaces estimated from the tokens themselves.

Compression: K subspaces of dimension d / K are fitted to the tokens (K-subspaces), then the tokens of every sequence take steps, and
R^c(Z; U_[K]) is read after each. The exact gradient step with kappa = 1/L has a guarantee, R^c(l+1) <= R^c(l) - ||grad||^2 / (2L).
The paper's step has one only in words (orthonormal incoherent subspaces, small beta); the residual form with tied output should raise R^c.
Null: exact steps of the same size along random subspaces, R^c still read in the fitted ones. Every step also shortens the tokens, which
alone lowers R^c; so R^c is read a second time with all tokens scaled to norm one, where only their directions count.

Sparsification: the code of the tokens (norm one) in the dictionary D = [U_1 ... U_K, -U_1 ... -U_K] by ISTA. A token of subspace k needs at
most p of the 2 K p atoms: a share of 1 / (2 K). Null: the same with random subspaces.

Sources: :cite:t:`yu2023white`, :cite:t:`hu2024indepth` (the sign), :cite:t:`beck2009fast` (ISTA). Notation: docs/notation.md.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...core.claims import Evidence
from ...core.measurement import Arrays, Row, assumption, by_construction, finding
from ...core.sources import Source
from ...data.tokens import TokenData
from ...metrics.coding import subspace_coding_rate, unit_norm
from ...models.crate.sparse_coding import curvature, ista_step, lasso
from ...models.crate.subspace_attention import coordinates, exact_step, expansion, lipschitz, paper_step, rate_gradient, released_step
from .problem import fit_subspaces, incoherence, incompleteness, nonzeros, random_subspaces

SEQUENCES, CODED, PICTURED = 256, 512, 64  # sequences compressed, tokens coded, tokens in the picture
LAYERS, SUBSPACES, EPS, LAM, ISTA_STEPS = 6, 4, 0.5, 0.1, 40
GROWN = 1e4  # a step that expands without end has shown what it does; beyond, I + beta W^T W loses its identity to rounding
INCOHERENT = 0.1  # largest cosine between subspaces, and largest incompleteness, that count as "incoherent" and "complete"
ANSWER = f"R^c of unit-norm tokens left after {LAYERS} exact steps"

PAPER, SIGN, LASSO = Source("yu2023white"), Source("hu2024indepth"), Source("beck2009fast")

Sequences = Float[Tensor, "m n d"]
Bases = Float[Tensor, "K d p"]
Step = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Compression:
    """Tokens on their way through unrolled steps.

    Attributes:
        states: tokens before the first and after each step, [layers + 1, m, n, d].
        rates: R^c(Z; U_[K]) of them in nats, mean over the sequences, [layers + 1].
    """

    states: Float[Tensor, "layers m n d"]
    rates: Float[Tensor, " layers"]

    @property
    def changes(self) -> Float[Tensor, " steps"]:
        """Change of R^c in each step, as a share of the first R^c."""
        return self.rates.diff() / self.rates[0]


def compress(tokens: Sequences, bases: Bases, step: Step, *, eps: float, layers: int = LAYERS) -> Compression:
    r"""Applies ``step`` ``layers`` times and reads R^c(Z; U_[K]) after each; tokens that have grown ten-thousandfold are kept as they are.

    Args:
        tokens: [m, n, d].
        bases: U_k in which R^c is read, [K, d, p].
        step: tokens to tokens, of the same shape.
        eps: distortion (squared inside).
        layers: number of steps.
    Returns:
        :class:`Compression`; rates in nats.
    Raises:
        ValueError: shapes do not fit or ``eps`` is not positive. Source: :cite:t:`yu2023white`.
    """
    states = [tokens]
    for _ in range(layers):
        grown = bool(states[-1].abs().max() > GROWN * tokens.abs().max())
        states.append(states[-1] if grown else step(states[-1]))
    rates = torch.stack([subspace_coding_rate(state, bases, eps=eps).mean() for state in states])
    return Compression(torch.stack(states), rates)


def forms(bases: Bases, *, n: int, eps: float) -> dict[str, Step]:
    r"""The three compressions as steps: exact (kappa = 1/L), paper (kappa beta = 1/2), tied residual (released form, V_k = U_k^T / 2).

    Args:
        bases: U_k, [K, d, p].
        n: tokens in a sequence.
        eps: distortion (squared inside).
    Returns:
        functions of tokens [m, n, d].
    Raises:
        ValueError: ``eps`` is not positive. Source: :cite:t:`yu2023white`.
    """
    L, beta = lipschitz(bases, n=n, eps=eps), expansion(bases, n=n, eps=eps)
    return {
        "exact": lambda tokens: exact_step(tokens, bases, kappa=1 / L, eps=eps),
        "paper": lambda tokens: paper_step(tokens, bases, kappa=0.5 / beta, eps=eps),
        "tied residual": lambda tokens: released_step(tokens, bases, 0.5 * bases.mT),
    }


def guaranteed(compression: Compression, bases: Bases, *, eps: float) -> Float[Tensor, " layers"]:
    r"""What the gradient guarantees of exact steps, kappa = 1/L: :math:`R^c_0 - \sum_{j<l} \|\nabla R^c_j\|^2 / (2L)`, nats, [layers + 1].

    Raises:
        ValueError: shapes do not fit. Source: :cite:t:`yu2023white` (objective), descent inequality in :func:`attention.lipschitz`.
    """
    L = lipschitz(bases, n=compression.states.shape[-2], eps=eps)
    slopes = torch.stack([rate_gradient(state, bases, eps=eps).square().sum((-2, -1)).mean() for state in compression.states[:-1]])
    return compression.rates[0] - torch.cat([slopes.new_zeros(1), slopes.cumsum(0) / (2 * L)])


def sparse_code(tokens: Float[Tensor, "n d"], bases: Bases) -> tuple[Float[Tensor, "n m"], Float[Tensor, " steps"], float]:
    r"""Code of the tokens in D = [U, -U] by ISTA from zero with eta = 1/L, as far as ``ISTA_STEPS`` go.

    Returns:
        the code [n, 2 K p]; the objective per token before and after each step; the largest change of it, in units of the guaranteed
        decrease L/2 ||Z+ - Z||^2 (at most -1).
    Raises:
        ValueError: shapes do not fit. Source: :cite:t:`beck2009fast`, :cite:t:`yu2023white`.
    """
    whole = bases.transpose(0, 1).flatten(1)
    dictionary = torch.cat([whole, -whole], dim=1)
    L = curvature(dictionary)
    code, worst = tokens.new_zeros(len(tokens), dictionary.shape[1]), -torch.inf
    objective = [lasso(code, tokens, dictionary, lam=LAM) / len(tokens)]
    for _ in range(ISTA_STEPS):
        new = ista_step(code, tokens, dictionary, eta=1 / L, lam=LAM)
        objective.append(lasso(new, tokens, dictionary, lam=LAM) / len(tokens))
        moved = float(0.5 * L * (new - code).square().sum() / len(tokens))
        if moved > 1e-8 * float(objective[0]):  # below, the difference of two objectives is rounding
            worst = max(worst, float(objective[-1] - objective[-2]) / moved)
        code = new
    return code, torch.stack(objective), worst


def predict_and_measure(data: TokenData, generator: torch.Generator) -> Iterator[Row | Arrays]:
    """The rows and arrays of the room on any data: see the module's docstring. At most 256 sequences, about a second."""
    tokens = _sample(data, generator)
    if tokens is None:
        reason = "all tokens are zero, so there is nothing to compress"
        yield Row(theory="crate", quantity=ANSWER, value=None, verdict=f"not applicable: {reason}", note=reason)
        return
    m, n, d = tokens.shape
    K = min(SUBSPACES, d)
    p = d // K
    bases, owner = fit_subspaces(tokens.flatten(0, 1), K=K, p=p, generator=generator, rounds=15)
    other = random_subspaces(K, d, p, generator=generator)
    steps = forms(bases, n=n, eps=EPS)
    runs = {name: compress(tokens, bases, step, eps=EPS) for name, step in steps.items()}
    own = 1 / lipschitz(other, n=n, eps=EPS)  # the step that the random subspaces themselves allow
    runs["random"] = compress(tokens, bases, lambda state: exact_step(state, other, kappa=own, eps=EPS), eps=EPS)
    shape = {name: _shape(runs[name], bases) for name in ("exact", "random")}
    bound = guaranteed(runs["exact"], bases, eps=EPS)

    facts = _assumptions(tokens, bases, n)
    yield from facts
    holds = [bool(fact.get("in_assumptions")) for fact in facts]
    mixture, ideal = all(holds[:2]), all(holds)  # exact steps need neither completeness nor the Neumann series
    start = float(runs["exact"].rates[0])
    yield finding(
        "crate",
        ANSWER,
        Evidence(float(shape["exact"][-1] / shape["exact"][0]), 1.0, "<=", covered=mixture),
        source=PAPER,
        null=float(shape["random"][-1] / shape["random"][0]),
        note=f"share of its start, {m} sequences, {K} fitted subspaces of dimension {p}; with tokens scaled to norm one: their directions "
        "gather, they do not only become shorter. Null: steps along random subspaces",
    )
    yield by_construction(
        finding(
            "crate",
            f"R^c left after {LAYERS} exact steps",
            Evidence(float(runs["exact"].rates[-1]) / start, float(bound[-1]) / start + 1e-9, "<="),
            source=PAPER,
            null=float(runs["random"].rates[-1]) / start,
            note="share of its start, lengths kept; the line is the most that the descent inequality leaves",
        )
    )
    yield finding(
        "crate",
        "largest change of R^c in a step, paper form",
        Evidence(float(runs["paper"].changes.max()), 0.0, "<=", covered=ideal),
        source=PAPER,
        note="over its start; the paper's step should lower the rate at every layer",
    )
    yield finding(
        "crate",
        "smallest change of R^c in a step, released form with tied output",
        Evidence(float(runs["tied residual"].changes.min()), 0.0, ">=", covered=ideal),
        source=SIGN,
        note="over its start; with U itself as output matrix the residual form expands instead of compressing",
    )
    arrays = {f"crate/rate/{name}": run.rates.numpy() for name, run in runs.items()}
    arrays |= {f"crate/shape/{name}": curve.numpy() for name, curve in shape.items()}
    yield Arrays({**arrays, "crate/rate/guaranteed": bound.numpy()})
    yield from _sparsify(runs["exact"].states, bases, other, ideal, generator)
    yield _picture(runs["exact"].states, owner.view(m, n))


def _shape(run: Compression, bases: Bases) -> Float[Tensor, " layers"]:
    """R^c of the tokens scaled to norm one, through the layers."""
    return torch.stack([subspace_coding_rate(unit_norm(state), bases, eps=EPS).mean() for state in run.states])


def _sample(data: TokenData, generator: torch.Generator) -> Sequences | None:
    """At most SEQUENCES sequences, scaled so that the mean squared norm of a token is one; None if all are zero."""
    chosen = torch.randperm(len(data), generator=generator)[:SEQUENCES].sort().values
    tokens = data.tokens[chosen].double()
    largest = tokens.abs().max()
    if largest == 0:
        return None
    tokens = tokens / largest
    return tokens / tokens.square().sum(-1).mean().sqrt()


def _assumptions(tokens: Sequences, bases: Bases, n: int) -> list[Row]:
    coords = coordinates(tokens, bases)
    radius = expansion(bases, n=n, eps=EPS) * float(torch.linalg.matrix_norm(coords, 2).max()) ** 2
    kept = float(coords.square().sum(-1).max(-2).values.sum() / tokens.square().sum())
    apart, missing = incoherence(bases), incompleteness(bases)
    return [
        assumption("crate", "tokens lie in one of the subspaces", kept >= 0.95, value=kept, source=PAPER,
                   note="share of the tokens' energy kept by the best of the fitted subspaces; at least .95 counts"),
        assumption("crate", "subspaces are incoherent", apart <= INCOHERENT, value=apart, source=PAPER,
                   note=f"largest cosine between directions of two subspaces; at most {INCOHERENT} counts"),
        assumption("crate", "projections add up to the identity", missing <= INCOHERENT, value=missing, source=PAPER,
                   note=f"norm of the difference; at most {INCOHERENT} counts"),
        assumption("crate", "the Neumann series behind attention converges", radius < 1, value=radius, source=PAPER,
                   note="largest eigenvalue that the series expands in; below 1 it converges"),
    ]  # fmt: skip


def _sparsify(states: Tensor, bases: Bases, other: Bases, ideal: bool, generator: torch.Generator) -> Iterator[Row | Arrays]:
    """Rows and arrays of the sparse codes at each layer."""
    flat = states.flatten(1, 2)
    chosen = torch.randperm(flat.shape[1], generator=generator)[:CODED]
    layers = [unit_norm(state[chosen]) for state in flat]
    coded = [sparse_code(layer, bases) for layer in layers]
    shares = torch.stack([nonzeros(code) for code, _, _ in coded])
    nulls = torch.stack([nonzeros(sparse_code(layer, other)[0]) for layer in (layers[0], layers[-1])])
    worst = max(worst for _, _, worst in coded)
    yield finding(
        "crate",
        "share of non-zeros of the sparse code",
        Evidence(float(shares[0]), 0.5 / len(bases), "<=", covered=ideal),
        source=PAPER,
        null=float(nulls[0]),
        note=f"{len(chosen)} tokens, {ISTA_STEPS} ISTA steps; a token of one subspace needs at most 1 in {2 * len(bases)} atoms; "
        "the null codes with random subspaces",
    )
    yield finding(
        "crate",
        "change of the share of non-zeros by compression",
        Evidence(float(shares[-1] - shares[0]), 0.0, "<=", covered=ideal),
        source=PAPER,
        null=float(nulls[1] - nulls[0]),
        note=f"after {LAYERS} layers; deeper layers should be sparser",
    )
    yield by_construction(
        finding(
            "crate",
            "largest change of the LASSO in an ISTA step",
            Evidence(worst, -1 + 1e-4, "<=", converged=worst > -torch.inf),
            source=LASSO,
            predicted=-1,
            note="in units of the decrease that a step of size 1/L guarantees, so -1 or less",
        )
    )
    yield Arrays(
        {
            "crate/nonzeros": shares.numpy(),
            "crate/nonzeros/random": nulls.numpy(),
            "crate/nonzeros/predicted": torch.tensor(0.5 / len(bases)).numpy(),
            "crate/objective": coded[0][1].numpy(),
        }
    )


def _picture(states: Tensor, owner: Int[Tensor, "m n"]) -> Arrays:
    """Cosines between some tokens, sorted by their subspace, before and after the exact steps."""
    sequences = -(-PICTURED // states.shape[2])
    owner = owner[:sequences].flatten()
    order = torch.argsort(owner, stable=True)
    first, last = (unit_norm(state[:sequences].flatten(0, 1)[order]) for state in (states[0], states[-1]))
    return Arrays(
        {
            "crate/cosine/before": (first @ first.mT).abs().numpy(),
            "crate/cosine/after": (last @ last.mT).abs().numpy(),
            "crate/cosine/subspace": owner[order].numpy(),
        }
    )
