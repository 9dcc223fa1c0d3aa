"""The side of images that a network accepts besides the one in its configuration."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from tests.problems.hub_cache import tiny_vit
from transformer_theory.comparison.user_images import with_images
from transformer_theory.comparison.user_models import measure
from transformer_theory.core.statistics import EQUAL_NORM, EQUAL_SCALE, HELD_INPUTS, UNTRAINED
from transformer_theory.data import image_folder, images
from transformer_theory.models.copies import Copies
from transformer_theory.models.image_side import interpolate_positions, interpolates
from transformer_theory.models.user_model import UserModel, untrained_network
from transformer_theory.probes.paired import SUBTRACTED

SIZES = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 4,
    "num_channels": 1,
}


class FixedPositions(nn.Module):
    """A network without the argument, whose positions fit one side alone."""

    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(image_size=16, num_channels=1)
        self.positions = nn.Parameter(torch.zeros(16, 16))

    def forward(self, pixel_values):
        return pixel_values + self.positions


def test_a_network_that_interpolates_its_positions_takes_another_side():
    from transformers import Dinov2Config, Dinov2Model

    user = UserModel(Dinov2Model(Dinov2Config(**SIZES)).eval(), "dino")
    inputs = with_images(user, "digits", size=8, max_samples=3)[0].inputs
    assert isinstance(inputs, torch.Tensor)
    assert inputs.shape == (3, 1, 8, 8)


def test_a_network_of_fixed_positions_refuses_another_side_in_one_line():
    user = UserModel(FixedPositions().eval(), "fixed")
    with pytest.raises(ValueError, match=r"^size must be 16, the side .* of fixed, got 8, which it refuses"):
        with_images(user, "digits", size=8, max_samples=3)


def test_positions_are_interpolated_only_where_the_side_differs():
    from transformers import ViTConfig, ViTModel

    network = ViTModel(ViTConfig(**SIZES, intermediate_size=8)).eval()
    same, _, words = with_images(UserModel(network, "vit"), "digits", size=16, max_samples=2)
    assert not interpolates(network)
    assert "interpolated" not in words
    other, _, words = with_images(UserModel(network, "vit"), "digits", size=8, max_samples=2)
    assert interpolates(network)
    assert "positions interpolated from those of 16 pixels" in words
    with torch.no_grad():
        assert network(other.inputs).last_hidden_state.shape == (2, 5, 8)
        expected = type(network).forward(network, other.inputs, interpolate_pos_encoding=True)
        torch.testing.assert_close(network(other.inputs).last_hidden_state, expected.last_hidden_state)
        # the caller's own value takes precedence, and the side of the configuration changes nothing
        with pytest.raises(ValueError, match="doesn't match model"):
            network(other.inputs, interpolate_pos_encoding=False)
        torch.testing.assert_close(
            network(same.inputs).last_hidden_state,
            network(same.inputs, interpolate_pos_encoding=False).last_hidden_state,
        )


def test_copies_and_untrained_networks_interpolate_as_well():
    network = tiny_vit(side=16)
    assert interpolate_positions(network)
    pixels = torch.randn(2, 3, 8, 8)
    copies = Copies(network)
    for kind in (EQUAL_SCALE, EQUAL_NORM, UNTRAINED):
        copy = copies.draw(kind, 7)
        with torch.no_grad():
            found = copy(pixels).logits
            expected = type(copy).forward(copy, pixels, interpolate_pos_encoding=True).logits
        torch.testing.assert_close(found, expected)
        assert not torch.equal(found, network(pixels).logits)
    assert interpolates(untrained_network(network, 0))
    assert not interpolates(untrained_network(tiny_vit(side=16), 0))


def test_a_measurement_at_another_side_is_that_of_plain_attention():
    """Everything of one measurement: the pass, the copies, held inputs, intervals and pictures."""
    user, pictures, words = with_images(UserModel(tiny_vit(), "vit"), "digits", size=8, max_samples=12)
    result = measure(
        user, theories=["joma", "crate"], networks=20, minutes=5, described=words, images=pictures
    )
    assert result.settings["shape"] == "3 × 8 × 8"
    assert result.settings["tokens"] == 5
    plain = tiny_vit()
    plain.set_attn_implementation("eager")
    with torch.no_grad():
        maps = plain(user.inputs, interpolate_pos_encoding=True, output_attentions=True).attentions
    for layer, weights in enumerate(maps):
        expected = torch.special.entr(weights.double()).sum(-1).mean((0, 2))
        rows = result.select(quantity="attention entropy", layer=layer)
        assert [row.value for row in rows] == pytest.approx(expected.tolist(), rel=1e-5)
    kinds = {null.kind for row in result.table for null in row.nulls}
    assert {EQUAL_SCALE, HELD_INPUTS, UNTRAINED} <= kinds
    assert any(row.interval is not None for row in result.table)
    shown = result.arrays["network/vit/attention"][0]
    np.testing.assert_allclose(shown[:, :, :4], torch.stack(list(maps))[:, :4].transpose(1, 2), atol=1e-6)


@pytest.mark.parametrize(("size", "second"), [(8, 16), (None, 8)])
def test_a_second_network_interpolates_as_well(size, second):
    """At another side than that of both, and at the side of the first one."""
    run = {"theories": ["scan_snap"], "networks": 0, "minutes": 5}
    user, _, _ = with_images(UserModel(tiny_vit(), "vit"), "shapes", size=size or 16, max_samples=8)
    result = measure(user, **run, against=UserModel(tiny_vit(1, side=second), "other"))
    alone = tiny_vit(1, side=second)
    interpolate_positions(alone)
    expected = measure(alone, user.inputs, user.labels, **run)
    for layer in (0, 1):
        for head in (0, 1):
            place = {"quantity": "sharpness", "layer": layer, "head": head}
            rows = [row.value for row in result.select(**place) if row.at == {SUBTRACTED: "other"}]
            assert rows == [pytest.approx(expected.select(**place).one().value, rel=1e-6)]


def test_of_a_flat_folder_with_labels_only_the_sampled_images_are_read(tmp_path: Path, monkeypatch):
    from PIL import Image

    train, _ = images("digits")
    folder = tmp_path / "flat"
    folder.mkdir()
    for index in range(40):
        Image.fromarray(train.pixels[index, 0].numpy()).save(folder / f"{index:03}.png")
    labels = tmp_path / "labels.txt"
    labels.write_text("\n".join(str(index) for index in range(40)))
    read: list[str] = []
    decode = image_folder._Reader.decode

    def counted(reader, file):
        read.append(file)
        return decode(reader, file)

    monkeypatch.setattr(image_folder._Reader, "decode", counted)
    config = SimpleNamespace(image_size=8, num_channels=1)
    network = nn.Identity()
    network.config = config  # pyright: ignore[reportArgumentType]
    user, shown, words = with_images(UserModel(network, "net"), folder, max_samples=6, labels=labels)
    assert len(read) == 6
    assert user.labels is not None
    # label k is that of file k
    for pixels, label in zip(shown.pixels, user.labels.tolist(), strict=True):
        assert torch.equal(pixels, train.pixels[label])
    assert len(set(user.labels.tolist())) == 6
    assert "6 images of flat" in words
    (folder / "one_more.png").write_bytes((folder / "000.png").read_bytes())
    with pytest.raises(ValueError, match=r"one label for each of the 41 images of .*, got 40"):
        with_images(UserModel(network, "net"), folder, max_samples=6, labels=labels)
