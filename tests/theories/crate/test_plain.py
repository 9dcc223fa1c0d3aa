"""The networks are those of the plain formulation, three equal matrices in attention and three products in ISTA, by faster kernels."""

import torch
from torch.nn import functional
from torch.testing import assert_close

from benchmarks.baselines.crate import FusedAttention, SoftmaxAttention, ThreeProductIsta
from transformer_theory.models import CRATE


def test_outputs_and_gradients_are_those_of_the_plain_formulation():
    sizes = {"image_size": 16, "patch_size": 4, "num_classes": 10, "dim": 24, "depth": 3, "heads": 3}
    torch.manual_seed(0)
    images, labels = torch.randn(12, 3, 16, 16, dtype=torch.float64), torch.arange(12) % 10  # 204 tokens, many for 24 dimensions
    ours = CRATE.for_images(**sizes).double()
    found = [ours(images)]
    functional.cross_entropy(found[0], labels).backward()
    found += [p.grad for p in ours.parameters()]
    for attention in (SoftmaxAttention, FusedAttention):
        plain = CRATE.for_images(**sizes, attention=attention, sparsify=ThreeProductIsta).double()
        plain.load_state_dict(ours.state_dict())
        expected = [plain(images)]
        functional.cross_entropy(expected[0], labels).backward()
        expected += [p.grad for p in plain.parameters()]
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other, atol=1e-13, rtol=1e-13)
