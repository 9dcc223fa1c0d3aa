r"""Next-token prediction with one attention layer: the token-priority graphs of the data, and the two parts of the weights they predict.

A sequence of token ids with embeddings :math:`e_1, \dots, e_K` ends in the token k, which asks; the label y, one of its tokens, comes
next. With a head that reads off how much attention the label gets, the loss of a sequence is

.. math:: -\log \sum_{t :\, id_t = y} \operatorname{softmax}(X W e_k)_t .

The *token-priority graph* :math:`G_k` (:mod:`.graph`) has an edge from the label to every other token of each sequence that ends in k.
Tokens of one strongly connected component are each other's label at times: attention stays shared among them, as a finite part of W says.
Between components, priority is strict, and attention moves to the higher one, in the direction of (Graph-SVM):

.. math:: W(t) \approx W_{fin} + R(t)\, W_{svm}, \qquad
    W_{fin} \in S_{fin} = \operatorname{span}\{(e_i - e_j)e_k^\top : i, j \text{ in one component of } G_k\} .

The loss is convex in W, so descent finds both from any start.

Source: :cite:t:`li2024mechanics`.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...core.errors import NotConverged
from .constraint_set import check_real
from .dynamics import Loss
from .dynamics.settings import check_amount
from .graph import PriorityGraph, check_graph, check_sequences, priority_graph
from .problem import Instance

LEAST = 1e-300
LOG = Loss("log", lambda f: -f.clamp(min=LEAST).log(), lambda f: f.clamp(min=LEAST).reciprocal())  # f is the label's attention
TRIES = 1000


def next_token_instance(embeddings: Float[Tensor, "K d"], ids: Int[Tensor, "n T"], labels: Int[Tensor, " n"]) -> Instance:
    """The training problem: a token's score is one if it is the label, else zero, so that the prediction is the label's attention.

    Train it with the loss :data:`LOG`.

    Args:
        embeddings: e, one row a token, ``[K, d]``, float64.
        ids: token ids, ``[n, T]``; the last of a sequence asks.
        labels: the token that comes next, ``[n]``; one of the sequence.
    Returns:
        An instance of n inputs of T tokens, ``d_z = d``.
    Raises:
        ValueError: an id without an embedding, or a label that is not in its sequence.

    Source: log loss with a head that tells the tokens apart, :cite:t:`li2024mechanics`.
    """
    check_real(embeddings, "embeddings", "[K, d]", 2)
    check_sequences(ids, labels, len(embeddings))
    return Instance(embeddings[ids], embeddings[ids[:, -1]], (ids == labels[:, None]).double())


def finite_span(graph: PriorityGraph, embeddings: Float[Tensor, "K d"]) -> Float[Tensor, "r d d"]:
    """An orthonormal basis of S_fin, the matrices on which tokens of one component differ.

    Args:
        graph: of the data.
        embeddings: e, ``[K, d]``, float64.
    Returns:
        r matrices, orthonormal as vectors, ``[r, d, d]``; r = 0 for an acyclic graph.
    Raises:
        TypeError, ValueError: as :func:`~.builders.graph_svm`.

    Source: :cite:t:`li2024mechanics`.
    """
    check_graph(graph, embeddings)
    d, triples = embeddings.shape[1], graph.equal()
    if not triples:
        return embeddings.new_zeros(0, d, d)
    k, i, j = torch.tensor(triples).T
    rows = ((embeddings[i] - embeddings[j])[:, :, None] * embeddings[k][:, None]).reshape(len(triples), -1)
    _, sigma, basis = torch.linalg.svd(rows, full_matrices=False)
    return basis[sigma > 1e-10 * sigma[0]].reshape(-1, d, d)


def project(W: Float[Tensor, "*batch d d"], basis: Float[Tensor, "r d d"]) -> Float[Tensor, "*batch d d"]:
    """The part of W in the span of an orthonormal basis.

    Args:
        W: one or more matrices, ``[*batch, d, d]``.
        basis: as :func:`finite_span` returns it, ``[r, d, d]``.
    Returns:
        The projection, the shape of W; zero if r = 0.

    Source: textbook.
    """
    return torch.einsum("...xz,rxz,rab->...ab", W, basis, basis)


def finite_part(
    graph: PriorityGraph, embeddings: Float[Tensor, "K d"], ids: Int[Tensor, "n T"], labels: Int[Tensor, " n"], *, tol: float = 1e-12
) -> Float[Tensor, "d d"]:
    r""":math:`W_{fin}`: the minimiser in S_fin of the loss in which each sequence keeps only tokens of its label's component.

    Newton's method; the loss is strictly convex on S_fin.

    Args:
        graph: of these data.
        embeddings: e, ``[K, d]``, float64.
        ids, labels: sequences and their next tokens, ``[n, T]`` and ``[n]``.
        tol: largest norm of the gradient accepted.
    Returns:
        W_fin ``[d, d]``; zero for an acyclic graph.
    Raises:
        NotConverged: the gradient stayed above ``tol``.
        TypeError, ValueError: as :func:`~.builders.graph_svm` and :func:`next_token_instance`, a graph of other data, or a tolerance
            that is no number from 0 on.

    Source: :cite:t:`li2024mechanics`.
    """
    check_amount(tol=tol)
    check_graph(graph, embeddings)
    embeddings = embeddings.detach()
    own = priority_graph(ids, labels, tokens=graph.tokens)
    if own.component.keys() != graph.component.keys() or any(not torch.equal(graph.component[k], v) for k, v in own.component.items()):
        raise ValueError(
            "graph must be that of these ids and labels, got one of other data; priority_graph(ids, labels, tokens=K) makes it"
        )
    basis = finite_span(graph, embeddings)
    name = torch.stack([graph.component[k] for k in ids[:, -1].tolist()])  # [n, K]
    kept = name.gather(1, ids) == name.gather(1, labels[:, None])
    hit = ids == labels[:, None]
    x, z = embeddings[ids], embeddings[ids[:, -1]]
    features = torch.einsum("ntx,rxz,nz->ntr", x, basis, z)
    weights, r = features.new_zeros(len(basis)), len(basis)

    def loss(at: Tensor) -> Tensor:
        logits = features @ at
        return -(logits.masked_fill(~hit, -torch.inf).logsumexp(-1) - logits.masked_fill(~kept, -torch.inf).logsumexp(-1)).mean()

    size = 0.0
    for _ in range(100):
        share = (features @ weights).masked_fill(~kept, -torch.inf).softmax(-1)
        mean = torch.einsum("nt,ntr->nr", share, features)
        target = (features * hit[..., None]).sum(1) / hit.sum(1, keepdim=True)  # equal tokens have equal features
        gradient = (mean - target).mean(0)
        size = float(gradient.norm())
        if size <= tol:
            return torch.einsum("r,rxz->xz", weights, basis)
        centred = features - mean[:, None]
        hessian = torch.einsum("nt,ntr,nts->rs", share, centred, centred) / len(ids)
        step = torch.linalg.solve(hessian + 1e-15 * hessian.diagonal().mean() * torch.eye(r, dtype=x.dtype), gradient)
        length, before = 1.0, float(loss(weights))
        while float(loss(weights - length * step)) > before - 1e-4 * length * float(gradient @ step) + 1e-15 and length > 1e-10:
            length /= 2
        weights = weights - length * step
    raise NotConverged(f"the gradient of the finite part must be at most {tol:.0e}, got {size:.1e}; pass a larger tol", residuals=size)


def random_sequences(
    *, sequences: int, length: int, tokens: int, generator: torch.Generator, cyclic: bool, last: int | None = None
) -> tuple[Int[Tensor, "n T"], Int[Tensor, " n"], PriorityGraph]:
    """Sequences of different tokens, one of them at random as label, drawn again until the graphs are cyclic, or acyclic.

    Args:
        sequences, length, tokens: n, T <= K and K.
        cyclic: what to wait for: a component of several tokens together with a strict priority, or no such component at all.
        last: how many tokens may end a sequence; all if None.
    Returns:
        ids ``[n, T]``, labels ``[n]`` and their graphs.
    Raises:
        ValueError: sizes that do not fit, or none such in a thousand draws.

    Source: the data of the experiments of :cite:t:`li2024mechanics`.
    """
    enders = tokens if last is None else last
    if not (sequences >= 1 and 2 <= length <= tokens and 1 <= enders <= tokens):
        raise ValueError(f"sizes must be n >= 1, 2 <= T <= K, 1 <= last <= K, got n={sequences}, T={length}, K={tokens}, last={enders}")
    for _ in range(TRIES):
        end = torch.randint(enders, (sequences, 1), generator=generator)
        order = torch.rand(sequences, tokens, generator=generator, dtype=torch.float64).scatter(1, end, 2.0).argsort(1)
        ids = torch.cat([order[:, : length - 1], end], 1)
        labels = ids.gather(1, torch.randint(length, (sequences, 1), generator=generator)).squeeze(1)
        graph = priority_graph(ids, labels, tokens=tokens)
        if bool(graph.equal()) == cyclic and graph.above():
            return ids, labels, graph
    kind = "cyclic" if cyclic else "acyclic"
    raise ValueError(f"no {kind} data in {TRIES} draws of n={sequences}, T={length}, K={tokens}; change the number of sequences")
