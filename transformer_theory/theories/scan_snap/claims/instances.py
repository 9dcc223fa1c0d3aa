"""Random sequence classes that meet, or break, the assumptions of :cite:t:`tian2023scan`."""

import math

import torch
from torch import Generator

from ..problem import SequenceClasses, single_common


def uniform(low: float, high: float, generator: Generator) -> float:
    """A number between the two."""
    return low + (high - low) * float(torch.rand((), generator=generator, dtype=torch.float64))


def random_classes(generator: Generator, *, vocab_size: int = 1000) -> SequenceClasses:
    """Two to four classes of one query with one common token and three to five distinct tokens each, of random probabilities."""
    K, D = int(torch.randint(2, 5, (), generator=generator)), int(torch.randint(3, 6, (), generator=generator))
    weights = 0.1 + torch.rand(K, D, generator=generator, dtype=torch.float64)
    share = 0.05 + 0.4 * torch.rand(K, generator=generator, dtype=torch.float64)
    return single_common(weights, share, vocab_size=vocab_size)


def weakly_overlapping(generator: Generator, *, vocab_size: int = 20_000) -> SequenceClasses:
    """As :func:`random_classes`, with the common token's share chosen so that all overlaps are equal and Assumption 2 holds."""
    K, D = int(torch.randint(2, 5, (), generator=generator)), int(torch.randint(3, 6, (), generator=generator))
    weights = 0.1 + torch.rand(K, D, generator=generator, dtype=torch.float64)
    weights = weights / weights.sum(1, keepdim=True)
    rho = math.exp(uniform(math.log(1.1 * math.sqrt(6 / vocab_size)), math.log(0.9 / (K * (K - 1))), generator))
    odds = torch.linalg.vector_norm(weights, dim=1) * math.sqrt(rho / (1 - rho))
    return single_common(weights, odds / (1 + odds), vocab_size=vocab_size)


def several_common(generator: Generator, *, vocab_size: int = 1000) -> SequenceClasses:
    """Two classes with two common tokens, of which the second is likely in one class only: its attention logit grows all the same."""
    a, b = uniform(0.28, 0.32, generator), uniform(0.0005, 0.0015, generator)
    P = torch.tensor([[a, a, 1 - 2 * a, 0.0], [a, b, 0.0, 1 - a - b]], dtype=torch.float64)
    return SequenceClasses(P, torch.zeros(2, dtype=torch.long), vocab_size)


def equally_common(generator: Generator, *, vocab_size: int = 1000) -> SequenceClasses:
    """As :func:`several_common`, but both common tokens have the same probability in both classes."""
    a, b = uniform(0.28, 0.32, generator), uniform(0.1, 0.3, generator)
    P = torch.tensor([[a, b, 1 - a - b, 0.0], [a, b, 0.0, 1 - a - b]], dtype=torch.float64)
    return SequenceClasses(P, torch.zeros(2, dtype=torch.long), vocab_size)
