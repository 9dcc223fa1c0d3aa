r"""Next-token prediction with one attention layer: the token-priority graphs of the data, and the two parts of the weights they predict.

A sequence of token ids with embeddings :math:`e_1, \dots, e_K` ends in the token k, which asks; the label y, one of its tokens, comes
next. With a head that reads off how much attention the label gets, the loss of a sequence is

.. math:: -\log \sum_{t :\, id_t = y} \operatorname{softmax}(X W e_k)_t .

The *token-priority graph* :math:`G_k` has an edge from the label to every other token of each sequence that ends in k. Tokens of one
strongly connected component are each other's label at times: attention stays shared among them, as a finite part of W says. Between
components, priority is strict, and attention moves to the higher one, in the direction of (Graph-SVM):

.. math:: W(t) \approx W_{fin} + R(t)\, W_{svm}, \qquad
    W_{fin} \in S_{fin} = \operatorname{span}\{(e_i - e_j)e_k^\top : i, j \text{ in one component of } G_k\} .

The loss is convex in W, so descent finds both from any start.

Source: :cite:t:`li2024mechanics`.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...errors import NotConverged
from .constraint_set import came, check_real, check_whole
from .problem import Instance


@dataclass(frozen=True)
class PriorityGraph:
    """The token-priority graphs of a data set, one for each token that ends a sequence.

    Attributes:
        tokens: K, the size of the vocabulary.
        edges: for each last token k, which token has an edge to which, ``[K, K]``.
        component: for each last token k, the component of every token, named by its smallest token, ``[K]``.
    """

    tokens: int
    edges: dict[int, Bool[Tensor, "K K"]]
    component: dict[int, Int[Tensor, " K"]]

    def equal(self) -> list[tuple[int, int, int]]:
        """(k, i, j): token j is in the component of :math:`G_k` that is named by i < j."""
        return [(k, int(i), j) for k, name in self.component.items() for j, i in enumerate(name) if int(i) != j]

    def above(self) -> list[tuple[int, int, int]]:
        """(k, i, j): the component of :math:`G_k` that is named by i has an edge to the one named by j."""
        found = []
        for k, edges in self.edges.items():
            names = self.component[k]
            high, low = edges.nonzero(as_tuple=True)
            pairs = {(int(i), int(j)) for i, j in zip(names[high], names[low]) if i != j}
            found += [(k, i, j) for i, j in sorted(pairs)]
        return found


def priority_graph(ids: Int[Tensor, "n T"], labels: Int[Tensor, " n"], *, tokens: int) -> PriorityGraph:
    """The graphs of sequences with their next tokens.

    Args:
        ids: token ids, ``[n, T]``; the last of a sequence asks.
        labels: the token that comes next, ``[n]``; one of the sequence.
        tokens: K, the size of the vocabulary.
    Raises:
        ValueError: an id outside 0..K-1, or a label that is not in its sequence.

    Source: :cite:t:`li2024mechanics`; components by Tarjan's algorithm (scipy).
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    _check_data(ids, labels, tokens)
    edges, component = {}, {}
    for k in ids[:, -1].unique().tolist():
        mine = ids[:, -1] == k
        graph = torch.zeros(tokens, tokens, dtype=torch.bool)
        graph[labels[mine][:, None].expand_as(ids[mine]).ravel(), ids[mine].ravel()] = True
        graph.fill_diagonal_(False)
        name = torch.from_numpy(connected_components(csr_array(graph.numpy()), connection="strong")[1]).long()
        smallest = torch.full((tokens,), tokens).scatter_reduce(0, name, torch.arange(tokens), "amin")
        edges[k], component[k] = graph, smallest[name]
    return PriorityGraph(tokens, edges, component)


def next_token_instance(embeddings: Float[Tensor, "K d"], ids: Int[Tensor, "n T"], labels: Int[Tensor, " n"]) -> Instance:
    """The training problem: a token's score is one if it is the label, else zero, so that the prediction is the label's attention.

    Train it with the loss :data:`LOG`.

    Raises:
        ValueError: an id without an embedding, or a label that is not in its sequence.

    Source: log loss with a head that tells the tokens apart, :cite:t:`li2024mechanics`.
    """
    check_real(embeddings, "embeddings", "[K, d]", 2)
    _check_data(ids, labels, len(embeddings))
    return Instance(embeddings[ids], embeddings[ids[:, -1]], (ids == labels[:, None]).double())


def finite_span(graph: PriorityGraph, embeddings: Float[Tensor, "K d"]) -> Float[Tensor, "r d d"]:
    """An orthonormal basis of S_fin, the matrices on which tokens of one component differ; r = 0 for an acyclic graph.

    Source: :cite:t:`li2024mechanics`.
    """
    d, triples = embeddings.shape[1], graph.equal()
    if not triples:
        return embeddings.new_zeros(0, d, d)
    k, i, j = torch.tensor(triples).T
    rows = ((embeddings[i] - embeddings[j])[:, :, None] * embeddings[k][:, None]).reshape(len(triples), -1)
    _, sigma, basis = torch.linalg.svd(rows, full_matrices=False)
    return basis[sigma > 1e-10 * sigma[0]].reshape(-1, d, d)


def project(W: Float[Tensor, "*batch d d"], basis: Float[Tensor, "r d d"]) -> Float[Tensor, "*batch d d"]:
    """The part of W in the span of an orthonormal basis.

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
        tol: largest gradient accepted.
    Returns:
        W_fin ``[d, d]``; zero for an acyclic graph.
    Raises:
        NotConverged: the gradient stayed above ``tol``.

    Source: :cite:t:`li2024mechanics`.
    """
    _check_data(ids, labels, graph.tokens)
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


def _check_data(ids: Tensor, labels: Tensor, tokens: int) -> None:
    if not isinstance(ids, Tensor) or ids.ndim != 2 or 0 in ids.shape:
        raise ValueError(f"ids must be a tensor [n, T] with at least one sequence and token, got {came(ids)}")
    check_whole(ids, "ids", ids.shape)
    check_whole(labels, "labels", ids.shape[:1])
    if int(ids.min()) < 0 or int(ids.max()) >= tokens:
        raise ValueError(f"ids must lie in [0, {tokens}), got {int(ids.min()) if int(ids.min()) < 0 else int(ids.max())}")
    absent = ~(ids == labels[:, None]).any(1)
    if bool(absent.any()):
        i = int(absent.nonzero()[0])
        raise ValueError(f"labels must be tokens of their sequences, but {int(labels[i])} is not in sequence {i}; leave it out")
