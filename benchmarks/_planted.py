r"""Data for the calibration: four kinds of noise, and data with one effect of a known size.

Sequences have :data:`TOKENS` tokens of :data:`DIM` dimensions and one of :data:`CLASSES` random labels. In
noise the labels, and the next words, are independent of all else. Let :math:`\epsilon` be standard normal.

* Gaussian: :math:`x = \epsilon`; words are uniform.
* Student: entries have Student's t law with two degrees of freedom, whose variance is infinite; the k-th word
  has a probability proportional to 1/k.
* Rank 2: tokens lie in one plane; each sequence mixes two laws of words with random weights.
* Correlated: :math:`x = \sqrt{.9}\, s + \sqrt{.1}\, \epsilon` with one vector s for each sequence; nine
  in ten of its words are among three that are its own.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from transformer_theory.data import Graphs, TokenData
from transformer_theory.data.synthetic import sequence_classes, subspace_mixture

SEQUENCES, TOKENS, DIM, CLASSES, WORDS = 300, 9, 8, 4, 12
CORRELATED = "correlated within sequences"
NOISE = ("Gaussian", "Student t_2", "rank 2", CORRELATED)
CORRELATION = 0.9


def normal(*shape: int, generator: Generator) -> Tensor:
    """Returns standard normal numbers in float64."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def labels_of(n: int, generator: Generator) -> Tensor:
    """Returns random labels."""
    return torch.randint(CLASSES, (n,), generator=generator)


def noise(kind: str, seed: int, n: int = SEQUENCES) -> TokenData:
    """Returns tokens of one kind of noise with random labels."""
    generator = torch.Generator().manual_seed(seed)
    x = normal(n, TOKENS, DIM, generator=generator)
    if kind == "Student t_2":
        # the sum of two squares, divided by two, is exponential
        x /= torch.empty_like(x).exponential_(generator=generator).sqrt()
    elif kind == "rank 2":
        x = x[..., :2] @ normal(2, DIM, generator=generator)
    elif kind == CORRELATED:
        common = normal(n, 1, DIM, generator=generator)
        x = CORRELATION**0.5 * common + (1 - CORRELATION) ** 0.5 * x
    elif kind != "Gaussian":
        raise ValueError(f"unknown noise {kind!r}")
    return TokenData(x, labels=labels_of(n, generator), name=kind)


def word_laws(kind: str, n: int, generator: Generator) -> Tensor:
    """Returns the probability of each word in each sequence, up to a factor, ``[n, WORDS]``."""
    if kind == "Gaussian":
        return torch.ones(n, WORDS)
    if kind == "Student t_2":
        return (1 / torch.arange(1, WORDS + 1)).expand(n, WORDS)
    if kind == "rank 2":
        laws = torch.rand(2, WORDS, generator=generator) ** 2
        weight = torch.rand(n, 1, generator=generator)
        return weight * laws[0] / laws[0].sum() + (1 - weight) * laws[1] / laws[1].sum()
    if kind == CORRELATED:
        own = torch.rand(n, WORDS, generator=generator).argsort(1)[:, :3]
        return torch.full((n, WORDS), (1 - CORRELATION) / WORDS).scatter(1, own, CORRELATION / 3)
    raise ValueError(f"unknown noise {kind!r}")


def words(kind: str, seed: int, n: int = SEQUENCES) -> TokenData:
    """Returns words of one kind of noise with random next words; word 0 is the query, at the last place."""
    generator = torch.Generator().manual_seed(seed)
    law = word_laws(kind, n, generator)
    context = 1 + torch.multinomial(law, TOKENS - 1, replacement=True, generator=generator)
    ids = torch.cat([context, torch.zeros(n, 1, dtype=torch.long)], 1)
    labels = labels_of(n, generator)
    tokens = normal(n, TOKENS, DIM, generator=generator)
    return TokenData(
        tokens, labels=labels, ids=ids, next_id=1 + WORDS + labels, vocab_size=1 + WORDS + CLASSES, name=kind
    )


def class_means(size: float, seed: int, n: int = SEQUENCES) -> TokenData:
    """Adds a mean of the given length to all tokens of a sequence. Means of classes are orthogonal."""
    data = noise("Gaussian", seed, n)
    assert data.labels is not None
    means = size * torch.eye(DIM, dtype=torch.float64)[data.labels]
    return TokenData(data.tokens + means[:, None], labels=data.labels)


def marked_token(size: float, seed: int, n: int = SEQUENCES) -> TokenData:
    """Adds a vector of length ``size * sqrt 2`` to the token at the place with the number of the class: one
    part is the same in all classes, the other one is that of the class.
    """
    data = noise("Gaussian", seed, n)
    assert data.labels is not None
    x = data.tokens.clone()
    rows = torch.arange(n)
    x[rows, data.labels, 0] += size
    x[rows, data.labels, 1 + data.labels] += size
    return TokenData(x, labels=data.labels)


def shared_vector(size: float, seed: int, n: int = SEQUENCES) -> TokenData:
    """Gives the tokens of a sequence the correlation ``size`` by a common vector."""
    data = noise("Gaussian", seed, n)
    common = normal(n, 1, DIM, generator=torch.Generator().manual_seed(seed + 1_000_000))
    return TokenData(size**0.5 * common + (1 - size) ** 0.5 * data.tokens, labels=data.labels)


def telling_words(size: float, seed: int, n: int = SEQUENCES) -> TokenData:
    """Draws words of which the share ``size`` belongs to the next word alone; all share the others."""
    generator = torch.Generator().manual_seed(seed)
    return sequence_classes(
        n, seq=TOKENS, classes=CLASSES, common=12, distinct=4, common_share=1 - size, generator=generator
    ).data


def subspaces(size: float, seed: int, n: int = SEQUENCES) -> TokenData:
    """Draws tokens from four orthogonal planes, and noise whose squared length is 1 / size of theirs."""
    generator = torch.Generator().manual_seed(seed)
    return subspace_mixture(
        n,
        seq=TOKENS,
        dim=DIM,
        classes=CLASSES,
        rank=DIM // CLASSES,
        noise=size**-0.5,
        generator=generator,
    ).data


def twins(size: float, seed: int, n: int = 12) -> Graphs:
    """Returns random graphs of 12 nodes and 24 edges, of which the share ``size`` are followed by a copy with
    other names of the nodes, which no test may distinguish.
    """
    import networkx

    graphs = []
    for number in range(n):
        one = networkx.gnm_random_graph(12, 24, seed=seed * 1000 + number)
        graphs.append(one)
        if number < size * n:
            names = torch.randperm(12, generator=torch.Generator().manual_seed(seed * 1000 + number)).tolist()
            graphs.append(networkx.relabel_nodes(one, dict(enumerate(names))))
    return Graphs(tuple(graphs))


@dataclass(frozen=True)
class Planted:
    """An effect in data that a theory should find.

    Attributes:
        theory: name of the theory.
        effect: what is planted, and what its size means.
        sizes: two sizes, the larger first.
        make: ``(size, seed) -> data``.
        quantity: the quantity that should show it; None: the headline.
    """

    theory: str
    effect: str
    sizes: tuple[float, float]
    make: Callable[[float, int], TokenData | Graphs]
    quantity: str | None = None


HEAD = "held-out accuracy of the linear head on mean tokens"
MEANS = "means of the classes, orthogonal, of this length, in noise of variance 1"
PLANTED = (
    Planted("scan_snap", "share of words that belong to one next word", (0.5, 0.1), telling_words),
    Planted("rate_reduction", MEANS, (1.0, 0.5), class_means),
    Planted("random_features", MEANS, (0.5, 0.25), class_means),
    Planted(
        "router",
        "at the place with the number of the class a token with a mark of this length, and one of its class",
        (2.0, 1.0),
        marked_token,
    ),
    Planted("bottleneck", MEANS, (0.5, 0.25), class_means),
    Planted("vision", MEANS, (1.0, 0.5), class_means),
    Planted("particles", "correlation of the tokens of a sequence", (0.02, 0.005), shared_vector),
    Planted("attention_svm", MEANS, (0.5, 0.25), class_means, HEAD),
    Planted(
        "crate",
        "four orthogonal planes; signal to noise",
        (10.0, 1.0),
        subspaces,
        "share of non-zeros of the sparse code",
    ),
    Planted("joma", "share of words that belong to one next word", (0.5, 0.1), telling_words),
    Planted("graph_tokens", "share of graphs with an isomorphic copy", (0.5, 0.1), twins),
)
