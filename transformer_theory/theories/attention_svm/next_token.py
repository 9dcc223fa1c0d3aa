r"""Next-token prediction with one attention layer: the training problem, and the two parts of the weights that the theory predicts.

A sequence of token ids with embeddings :math:`e_1, \dots, e_K` ends in the token k, the query; the label y, one of its tokens, comes next.
With a head that outputs the attention on the label, the loss of a sequence is

.. math:: -\log \sum_{t :\, id_t = y} \operatorname{softmax}(X W e_k)_t .

Tokens of one strongly connected component of the token-priority graph :math:`G_k` (:mod:`.graph`) share attention, in proportions that the
finite part of W determines. Between components priority is strict: attention moves to the higher component, along (Graph-SVM):

.. math:: W(t) \approx W_{fin} + R(t)\, W_{svm}, \qquad
    W_{fin} \in S_{fin} = \operatorname{span}\{(e_i - e_j)e_k^\top : i, j \text{ in one component of } G_k\} .

The loss is convex in W, so descent finds both from any start (:cite:t:`li2024mechanics`).
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...core.errors import NotConverged
from ...core.parallel import single_threaded
from ...core.validation import converted
from .dynamics import Loss
from .graph import PriorityGraph, check_graph, check_sequences, priority_graph
from .problem import Instance
from .validation import check_nonnegative, check_real

ATTENTION_FLOOR = 1e-300  # attention on the label below which its logarithm is no longer finite
SPAN_RTOL = 1e-10  # singular values of the differences of one component, relative to the largest, below which they are dependent
DRAWS = 1000  # attempts at data with, or without, cycles
NEWTON_STEPS = 100

LOG = Loss("log", lambda f: -f.clamp(min=ATTENTION_FLOOR).log(), lambda f: f.clamp(min=ATTENTION_FLOOR).reciprocal())
"""The loss -log f of the label's attention f."""


@converted(float64=("embeddings",), int64=("ids", "labels"))
def next_token_instance(embeddings: Float[Tensor, "K d"], ids: Int[Tensor, "n T"], labels: Int[Tensor, " n"]) -> Instance:
    """The training problem: a token's score is one if it is the label, else zero, so that the prediction is the label's attention.

    Train it with the loss :data:`LOG`.

    Args:
        embeddings: e, one row per token, ``[K, d]``.
        ids: token ids, ``[n, T]``; the last of a sequence is the query.
        labels: the token that comes next, ``[n]``; one of the sequence.
    Returns:
        An instance of n inputs of T tokens, ``d_z = d``.
    Raises:
        TypeError: no tensor or array of the right kind.
        ValueError: an id without an embedding, or a label that is not in its sequence.
    """
    check_real("embeddings", embeddings, "[K, d]", 2)
    check_sequences(ids, labels, len(embeddings))
    return Instance(embeddings[ids], embeddings[ids[:, -1]], (ids == labels[:, None]).double())


@converted(float64=("embeddings",))
def finite_span(graph: PriorityGraph, embeddings: Float[Tensor, "K d"]) -> Float[Tensor, "r d d"]:
    """An orthonormal basis of S_fin, the matrices on which tokens of one component differ.

    Args:
        graph: of the data.
        embeddings: e, ``[K, d]``.
    Returns:
        r matrices, orthonormal as vectors, ``[r, d, d]``; r = 0 for an acyclic graph.
    Raises:
        TypeError, ValueError: as :func:`~.builders.graph_svm`.
    """
    check_graph(graph, embeddings)
    d, triples = embeddings.shape[1], graph.equal()
    if not triples:
        return embeddings.new_zeros(0, d, d)
    k, i, j = torch.tensor(triples).T
    rows = ((embeddings[i] - embeddings[j])[:, :, None] * embeddings[k][:, None]).reshape(len(triples), -1)
    _, sigma, basis = torch.linalg.svd(rows, full_matrices=False)
    return basis[sigma > SPAN_RTOL * sigma[0]].reshape(-1, d, d)


def project(W: Float[Tensor, "*batch d d"], basis: Float[Tensor, "r d d"]) -> Float[Tensor, "*batch d d"]:
    """The part of W ``[*batch, d, d]`` in the span of an orthonormal basis ``[r, d, d]``; zero if r = 0."""
    return torch.einsum("...xz,rxz,rab->...ab", W, basis, basis)


@single_threaded
@converted(float64=("embeddings",), int64=("ids", "labels"))
def finite_part(
    graph: PriorityGraph, embeddings: Float[Tensor, "K d"], ids: Int[Tensor, "n T"], labels: Int[Tensor, " n"], *, tol: float = 1e-12
) -> Float[Tensor, "d d"]:
    r""":math:`W_{fin}`: the minimiser in S_fin of the loss in which each sequence keeps only tokens of its label's component.

    Newton's method with backtracking; the loss is strictly convex on S_fin.

    Args:
        graph: of these data.
        embeddings: e, ``[K, d]``.
        ids, labels: sequences and their next tokens, ``[n, T]`` and ``[n]``.
        tol: largest norm of the gradient accepted.
    Returns:
        W_fin ``[d, d]``; zero for an acyclic graph.
    Raises:
        NotConverged: the gradient stayed above ``tol``; ``state`` is the last iterate.
        TypeError, ValueError: as :func:`~.builders.graph_svm` and :func:`next_token_instance`; a graph of other data; or a tolerance that
            is no number from 0 on.
    """
    check_nonnegative(tol=tol)
    check_graph(graph, embeddings)
    embeddings = embeddings.detach()
    actual = priority_graph(ids, labels, tokens=graph.tokens)
    if actual.component.keys() != graph.component.keys() or any(not actual.component[k].equal(v) for k, v in graph.component.items()):
        raise ValueError("graph must be that of these ids and labels; priority_graph(ids, labels, tokens=K) makes it")
    basis = finite_span(graph, embeddings)
    name = torch.stack([graph.component[k] for k in ids[:, -1].tolist()])  # [n, K]
    same_component = name.gather(1, ids) == name.gather(1, labels[:, None])
    is_label = ids == labels[:, None]
    x, z = embeddings[ids], embeddings[ids[:, -1]]
    # Logits are linear in the coordinates of W in the basis: x^T W z = sum_r features_r weights_r.
    features = torch.einsum("ntx,rxz,nz->ntr", x, basis, z)
    weights, r = features.new_zeros(len(basis)), len(basis)

    def loss(weights: Tensor) -> Tensor:
        logits = features @ weights
        label, component = (logits.masked_fill(~mask, -torch.inf).logsumexp(-1) for mask in (is_label, same_component))
        return -(label - component).mean()

    size = 0.0
    for _ in range(NEWTON_STEPS):
        share = (features @ weights).masked_fill(~same_component, -torch.inf).softmax(-1)
        mean = torch.einsum("nt,ntr->nr", share, features)
        target = (features * is_label[..., None]).sum(1) / is_label.sum(1, keepdim=True)  # equal tokens have equal features
        gradient = (mean - target).mean(0)
        size = float(gradient.norm())
        if size <= tol:
            return torch.einsum("r,rxz->xz", weights, basis)
        # The Hessian is the mean covariance of the features under the attention. It is positive definite on S_fin; the multiple of the
        # identity guards against rounding alone.
        centred = features - mean[:, None]
        hessian = torch.einsum("nt,ntr,nts->rs", share, centred, centred) / len(ids)
        step = torch.linalg.solve(hessian + 1e-15 * hessian.diagonal().mean() * torch.eye(r, dtype=x.dtype), gradient)
        # Armijo's rule. Near the minimum the decrease falls below the rounding of the loss, 1e-15; without this term the step would be
        # halved there for no reason, and quadratic convergence lost.
        length, before = 1.0, float(loss(weights))
        while float(loss(weights - length * step)) > before - 1e-4 * length * float(gradient @ step) + 1e-15 and length > 1e-10:
            length /= 2
        weights = weights - length * step
    raise NotConverged(
        f"the gradient of the finite part must be at most {tol:.0e}, got {size:.1e}; pass a larger tol",
        state=torch.einsum("r,rxz->xz", weights, basis),
        residuals=size,
    )


def random_sequences(
    *, sequences: int, length: int, tokens: int, generator: torch.Generator, cyclic: bool, last: int | None = None
) -> tuple[Int[Tensor, "n T"], Int[Tensor, " n"], PriorityGraph]:
    """Sequences of different tokens with one of their tokens as label, drawn until their graphs are cyclic, or acyclic.

    These are the data of the experiments of :cite:t:`li2024mechanics`.

    Args:
        sequences, length, tokens: n, T <= K and K.
        generator: of the random numbers.
        cyclic: True for graphs with a component of several tokens and a strict priority, False for graphs without such a component.
        last: number of tokens that may end a sequence, 0 to last - 1; None for all.
    Returns:
        ids ``[n, T]``, labels ``[n]`` and their graphs.
    Raises:
        ValueError: sizes that do not fit, or no such data in a thousand draws.
    """
    enders = tokens if last is None else last
    if not (sequences >= 1 and 2 <= length <= tokens and 1 <= enders <= tokens):
        raise ValueError(f"sizes must be n >= 1, 2 <= T <= K, 1 <= last <= K, got n={sequences}, T={length}, K={tokens}, last={enders}")
    for _ in range(DRAWS):
        # The last token comes first; ranks of random numbers, with the largest reserved for the last token, order the others.
        end = torch.randint(enders, (sequences, 1), generator=generator)
        order = torch.rand(sequences, tokens, generator=generator, dtype=torch.float64).scatter(1, end, 2.0).argsort(1)
        ids = torch.cat([order[:, : length - 1], end], 1)
        labels = ids.gather(1, torch.randint(length, (sequences, 1), generator=generator)).squeeze(1)
        graph = priority_graph(ids, labels, tokens=tokens)
        if bool(graph.equal()) == cyclic and graph.above():
            return ids, labels, graph
    kind = "cyclic" if cyclic else "acyclic"
    raise ValueError(f"no {kind} data in {DRAWS} draws of n={sequences}, T={length}, K={tokens}; change the number of sequences")
