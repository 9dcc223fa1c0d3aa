r"""Next-token prediction with one attention layer: the training problem, and the two parts of the weights
that the theory predicts.

The tokens have embeddings :math:`e_1, \dots, e_K`. The last token k of a sequence is the query. The label y
is the token that comes next, and it occurs in the sequence. With a head that outputs the attention on the
label, the loss of a sequence is

.. math:: -\log \sum_{t :\, id_t = y} \operatorname{softmax}(X W e_k)_t .

Tokens of one strongly connected component of the token-priority graph :math:`G_k` (:mod:`.graph`) share
attention, in proportions that the finite part of W determines. Between components the priority is strict: W
grows along the solution of (Graph-SVM), which moves attention to the higher component:

.. math:: W(t) \approx W_{fin} + R(t)\, W_{svm}, \qquad
    W_{fin} \in S_{fin} = \operatorname{span}\{(e_i - e_j)e_k^\top : i, j \text{ in one component of } G_k\} .

The loss is convex in W, so descent reaches both parts from any start (:cite:t:`li2024mechanics`).
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...core.errors import NotConverged
from ...core.threads import single_threaded
from ...core.validation import converted
from .dynamics import Loss
from .graph import PriorityGraph, check_graph, check_sequences, priority_graph
from .problem import Instance
from .validation import check_nonnegative, check_real

# smaller attention on the label is replaced by this, which keeps its logarithm finite
ATTENTION_FLOOR = 1e-300
# smaller singular values, relative to the largest, show that differences of tokens are linearly dependent
SPAN_RTOL = 1e-10
DRAWS = 1000  # largest number of attempts to draw data with, or without, cycles
NEWTON_STEPS = 100

LOG = Loss(
    "log", lambda f: -f.clamp(min=ATTENTION_FLOOR).log(), lambda f: f.clamp(min=ATTENTION_FLOOR).reciprocal()
)
"""The loss -log f of the label's attention f."""


@converted(float64=("embeddings",), int64=("ids", "labels"))
def next_token_instance(
    embeddings: Float[Tensor, "K d"], ids: Int[Tensor, "n T"], labels: Int[Tensor, " n"]
) -> Instance:
    """Returns the training problem, to be used with the loss :data:`LOG`.

    The score of a token is one if it is the label and zero otherwise, so the prediction is the attention on
    the label.

    Args:
        embeddings: e, one row per token, ``[K, d]``.
        ids: token ids, ``[n, T]``; the last id of a sequence is the query.
        labels: next token of each sequence, ``[n]``; it occurs in the sequence.
    Returns:
        An instance of n inputs of T tokens, ``d_z = d``.
    Raises:
        TypeError: an argument is not a tensor or array of the right kind of numbers.
        ValueError: an id has no embedding, or a label is not in its sequence.
    """
    check_real("embeddings", embeddings, "[K, d]", 2)
    check_sequences(ids, labels, len(embeddings))
    return Instance(embeddings[ids], embeddings[ids[:, -1]], (ids == labels[:, None]).double())


@converted(float64=("embeddings",))
def finite_span(graph: PriorityGraph, embeddings: Float[Tensor, "K d"]) -> Float[Tensor, "r d d"]:
    """Returns an orthonormal basis of S_fin, the span of the matrices (e_i - e_j) e_k^T for i and j in one
    component of G_k.

    Args:
        graph: graphs of the data.
        embeddings: e, ``[K, d]``.
    Returns:
        r matrices, orthonormal as vectors, ``[r, d, d]``; r = 0 for an acyclic graph.
    Raises:
        TypeError, ValueError: as for :func:`~.builders.graph_svm`.
    """
    check_graph(graph, embeddings)
    d, triples = embeddings.shape[1], graph.equal()
    if not triples:
        return embeddings.new_zeros(0, d, d)
    k, i, j = torch.tensor(triples).T
    # One row per matrix, flattened; the right singular vectors of the independent rows are the basis.
    rows = ((embeddings[i] - embeddings[j])[:, :, None] * embeddings[k][:, None]).reshape(len(triples), -1)
    _, sigma, basis = torch.linalg.svd(rows, full_matrices=False)
    return basis[sigma > SPAN_RTOL * sigma[0]].reshape(-1, d, d)


def project(W: Float[Tensor, "*batch d d"], basis: Float[Tensor, "r d d"]) -> Float[Tensor, "*batch d d"]:
    """Projects W ``[*batch, d, d]`` onto the span of an orthonormal basis ``[r, d, d]``; zero if r = 0."""
    return torch.einsum("...xz,rxz,rab->...ab", W, basis, basis)


@single_threaded
@converted(float64=("embeddings",), int64=("ids", "labels"))
def finite_part(
    graph: PriorityGraph,
    embeddings: Float[Tensor, "K d"],
    ids: Int[Tensor, "n T"],
    labels: Int[Tensor, " n"],
    *,
    tol: float = 1e-12,
) -> Float[Tensor, "d d"]:
    r"""Returns :math:`W_{fin}`, the minimiser of the loss in S_fin if each sequence contains only the tokens
    of its label's component.

    The method is Newton's method with backtracking; the loss is strictly convex on S_fin.

    Args:
        graph: graphs of these data.
        embeddings: e, ``[K, d]``.
        ids, labels: sequences and their next tokens, ``[n, T]`` and ``[n]``.
        tol: largest accepted norm of the gradient.
    Returns:
        W_fin ``[d, d]``; zero for an acyclic graph.
    Raises:
        NotConverged: the gradient stayed above ``tol``; ``state`` is the last iterate.
        TypeError, ValueError: as for :func:`~.builders.graph_svm` and :func:`next_token_instance`; or the
            graph belongs to other data, or ``tol`` is not a number of at least 0.
    """
    check_nonnegative(tol=tol)
    check_graph(graph, embeddings)
    embeddings = embeddings.detach()
    actual = priority_graph(ids, labels, tokens=graph.tokens)
    if actual.component.keys() != graph.component.keys() or any(
        not actual.component[k].equal(v) for k, v in graph.component.items()
    ):
        raise ValueError(
            "graph must belong to these ids and labels; priority_graph(ids, labels, tokens=K) makes it"
        )
    basis = finite_span(graph, embeddings)
    # component of each token in the graph of the query, [n, K]
    components = torch.stack([graph.component[k] for k in ids[:, -1].tolist()])
    same_component = components.gather(1, ids) == components.gather(1, labels[:, None])
    is_label = ids == labels[:, None]
    x, z = embeddings[ids], embeddings[ids[:, -1]]
    # Logits are linear in the coordinates of W in the basis: x^T W z = sum_r features_r weights_r.
    features = torch.einsum("ntx,rxz,nz->ntr", x, basis, z)
    weights, r = features.new_zeros(len(basis)), len(basis)

    def loss(weights: Tensor) -> Tensor:
        logits = features @ weights
        label, component = (
            logits.masked_fill(~mask, -torch.inf).logsumexp(-1) for mask in (is_label, same_component)
        )
        return -(label - component).mean()

    size = 0.0
    for _ in range(NEWTON_STEPS):
        share = (features @ weights).masked_fill(~same_component, -torch.inf).softmax(-1)
        mean = torch.einsum("nt,ntr->nr", share, features)
        # equal tokens have equal features
        target = (features * is_label[..., None]).sum(1) / is_label.sum(1, keepdim=True)
        gradient = (mean - target).mean(0)
        size = float(gradient.norm())
        if size <= tol:
            return torch.einsum("r,rxz->xz", weights, basis)
        # The Hessian is the mean covariance of the features under the attention. It is positive definite on
        # S_fin; the multiple of the identity only guards against rounding.
        centred = features - mean[:, None]
        hessian = torch.einsum("nt,ntr,nts->rs", share, centred, centred) / len(ids)
        step = torch.linalg.solve(
            hessian + 1e-15 * hessian.diagonal().mean() * torch.eye(r, dtype=x.dtype), gradient
        )
        # Armijo's rule. Near the minimum the decrease falls below the rounding error of the loss. The term
        # 1e-15 accepts the full step there and so preserves quadratic convergence.
        length, before = 1.0, float(loss(weights))
        while (
            float(loss(weights - length * step)) > before - 1e-4 * length * float(gradient @ step) + 1e-15
            and length > 1e-10
        ):
            length /= 2
        weights = weights - length * step
    raise NotConverged(
        f"the gradient of the finite part must be at most {tol:.0e}, got {size:.1e}; pass a larger tol",
        state=torch.einsum("r,rxz->xz", weights, basis),
        residuals=size,
    )


def random_sequences(
    *,
    sequences: int,
    length: int,
    tokens: int,
    generator: torch.Generator,
    cyclic: bool,
    last: int | None = None,
) -> tuple[Int[Tensor, "n T"], Int[Tensor, " n"], PriorityGraph]:
    """Draws sequences of distinct tokens, each with one of its tokens as label; repeats until the graphs are
    cyclic or acyclic as required.

    The experiments of :cite:t:`li2024mechanics` use such data.

    Args:
        sequences, length, tokens: n, T <= K and K.
        generator: random generator of the data.
        cyclic: whether some component of a graph must have several tokens; if not, none may. Some priority is
            strict in either case.
        last: number of tokens that may end a sequence: 0 to ``last - 1``. None: all tokens.
    Returns:
        ids ``[n, T]``, labels ``[n]`` and their graphs.
    Raises:
        ValueError: the sizes do not fit, or a thousand draws contain no such data.
    """
    n_last = tokens if last is None else last
    if not (sequences >= 1 and 2 <= length <= tokens and 1 <= n_last <= tokens):
        raise ValueError(
            f"sizes must be n >= 1, 2 <= T <= K, 1 <= last <= K, got n={sequences}, T={length}, K={tokens}, "
            f"last={n_last}"
        )
    for _ in range(DRAWS):
        # Draw the last token first, then sort the others by random numbers below 1. The last token gets the
        # number 2, so it sorts to the end and is never among the first T - 1 <= K - 1.
        end = torch.randint(n_last, (sequences, 1), generator=generator)
        order = (
            torch.rand(sequences, tokens, generator=generator, dtype=torch.float64)
            .scatter(1, end, 2.0)
            .argsort(1)
        )
        ids = torch.cat([order[:, : length - 1], end], 1)
        labels = ids.gather(1, torch.randint(length, (sequences, 1), generator=generator)).squeeze(1)
        graph = priority_graph(ids, labels, tokens=tokens)
        if bool(graph.equal()) == cyclic and graph.above():
            return ids, labels, graph
    kind = "cyclic" if cyclic else "acyclic"
    raise ValueError(
        f"no {kind} data in {DRAWS} draws of n={sequences}, T={length}, K={tokens}; change the number of "
        "sequences"
    )
