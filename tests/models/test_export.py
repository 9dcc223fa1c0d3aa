"""``torch.export`` with a batch size that is chosen later.

crate-exact is left out: it chooses its precision by the values of the tokens, and a graph cannot.
"""

import pytest
import torch
from torch.export import Dim, export

from tests.problems.networks import built
from transformer_theory.models import CRATELanguageModel, Decoder
from transformer_theory.models.image_networks import NETWORKS, Sizes

pytestmark = pytest.mark.usefixtures("unchecked")  # symbolic sizes are not ints

SIZES = Sizes(image_size=8, channels=3, num_classes=3, patch_size=4, dim=16, depth=1, heads=2)
LANGUAGE = {
    "decoder": lambda: Decoder(vocabulary=11, dim=16, heads=2, hidden=16),
    "crate": lambda: CRATELanguageModel(vocabulary=11, context=12, dim=16, depth=1, heads=2),
}


def largest_difference(model: torch.nn.Module, inputs: torch.Tensor) -> float:
    """Difference between the exported model and the model, relative to its outputs, for a larger batch than the exported example."""
    exported = export(model.eval(), (inputs[:2],), dynamic_shapes=({0: Dim("batch", min=1, max=512)},)).module()
    with torch.no_grad():
        expected = model(inputs)
        return float((exported(inputs) - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("name", ["crate", "tost", "vit"])
def test_networks_of_images(name: str, generator: torch.Generator):
    assert largest_difference(built(lambda: NETWORKS[name](SIZES)), torch.rand(7, 3, 8, 8, generator=generator)) < 1e-5


@pytest.mark.parametrize("name", LANGUAGE)
def test_language_models(name: str, generator: torch.Generator):
    assert largest_difference(built(LANGUAGE[name]), torch.randint(11, (5, 12), generator=generator)) < 1e-5
