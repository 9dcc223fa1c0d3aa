"""Trainings that start from given weights: of other trainings and in released layouts, whole or with a frozen
body, and what is refused.
"""

import copy
import os
import re

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests.problems.crate import published_alpha
from tests.problems.image_trainings import CPU, SMALL, assert_same, interrupting, noise, trained, with_
from transformer_theory import models
from transformer_theory.cli import main
from transformer_theory.data.image_data import Images
from transformer_theory.models import resized_positions
from transformer_theory.models.stored import IMAGENET
from transformer_theory.theories.rate_reduction.tasks import RateReduction
from transformer_theory.training.image import transfer
from transformer_theory.training.image.loop import train
from transformer_theory.training.optimisers import freeze_body

SIZES = {"image_size": 16, "patch_size": 4, "num_classes": 3, "dim": 8, "depth": 2, "heads": 2}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def built(kind=models.CRATE, **other):
    return models.build(lambda: kind.for_images(**{**SIZES, **other}), generator()).eval()


def start_of(folder, **options):
    """The weights of a training before its first step."""
    with pytest.raises(KeyboardInterrupt):
        trained(folder, callback=interrupting(1), **{"channels": 3, "settings": with_(depth=2), **options})
    return torch.load(folder / "last.pt", weights_only=True)["network"]


def lines(caplog):
    return [record.getMessage() for record in caplog.records]


# --- released layouts


def test_released_weights_are_taken_over(tmp_path, caplog):
    """Of images twice as large and other classes: body copied, positions interpolated, head new,
    normalisation that of the released.
    """
    model = built(num_classes=7)
    path = tmp_path / "crate.pth"
    torch.save(
        {"state_dict": {f"module.{name}": value for name, value in model.state_dict().items()}, "epoch": 3},
        path,
    )
    first = start_of(tmp_path / "run", weights=path)
    for name, value in model.state_dict().items():
        if name == "pos_embedding":
            assert_close(first[name], resized_positions(value, (2, 2)), atol=0, rtol=0)
        elif name.startswith("mlp_head.1"):
            assert first[name].shape[0] == 3
        else:
            assert torch.equal(first[name], value), name
    text = lines(caplog)
    assert any("4 x 4 patches, the images have 2 x 2: pos_embedding is interpolated" in line for line in text)
    assert any(
        "7 classes, the data have 3 classes (a, b, c): mlp_head.1.weight, mlp_head.1.bias start anew" in line
        for line in text
    )
    path = path.rename(tmp_path / "moved.pth")  # the same weights in another place
    result = trained(tmp_path / "run", with_(depth=2), channels=3, resume=True, weights=path)
    assert result.settings["weights"]["mean"] == list(IMAGENET[0])
    loaded = models.load(tmp_path / "run")
    assert_close(loaded.mean.flatten(), torch.tensor(IMAGENET[0]))
    assert_close(loaded.std.flatten(), torch.tensor(IMAGENET[1]))


def test_the_second_map_of_the_fine_tuned_layout_is_one_with_the_first(tmp_path, caplog):
    model = built(num_classes=24, image_size=8)
    weights = model.state_dict() | {
        "head.weight": torch.randn(3, 24, generator=generator(1)),
        "head.bias": torch.ones(3),
    }
    models.save_weights(weights, tmp_path / "tuned.pt")
    first = start_of(tmp_path / "run", weights=tmp_path / "tuned.pt")
    images = torch.randn(4, 3, 8, 8, generator=generator(2))
    with torch.no_grad():
        expected = models.CRATE.from_released(weights, 8, 4, heads=2)(images)
        assert_close(models.CRATE.from_released(first, 8, 4, heads=2)(images), expected, atol=1e-5, rtol=1e-5)
    (line,) = lines(caplog)  # none of the head: as many classes, whose names are not known
    # of width 4, which no released network has
    assert "does not say everything: this training has 2 heads; no shape depends on it" in line
    models.save_weights(weights | {"head.weight": torch.zeros(3, 5)}, tmp_path / "broken.pt")
    with pytest.raises(
        ValueError,
        match=r"broken\.pt: mlp_head\.1 and head must be two linear maps, .* \[24, 8\], \[24\], \[3, 5\], "
        r"\[3\]",
    ):
        transfer.read(tmp_path / "broken.pt")


def test_published_alpha_is_fine_tuned_as_published(tmp_path, caplog):
    published = published_alpha()
    torch.save({"model": published}, tmp_path / "alpha.pth")
    settings = with_(network="crate-alpha-published", dim=128, heads=2, depth=2, epochs=1, eta=0.2)
    first = start_of(tmp_path / "run", weights=tmp_path / "alpha.pth", settings=settings)
    assert any("alpha.pth has eta 0.1, this training has 0.2" in line for line in lines(caplog))
    assert_close(
        first["transformer.layers.1.1.fn.decoder"], published["transformer.layers.1.1.fn.D1"].float()
    )
    assert_close(first["pos_embedding"], resized_positions(published["pos_embedding"].float(), (2, 2)))
    trained(tmp_path / "run", settings, channels=3, resume=True)
    network = models.load(tmp_path / "run").network
    assert {norm.eps for norm in network.modules() if isinstance(norm, torch.nn.LayerNorm)} == {1e-6}
    assert network.transformer.layers[0][1].fn.eta == 0.2
    with pytest.raises(
        ValueError, match="'crate-alpha-published' there and 'crate-alpha' here; train crate-alpha-published"
    ):
        transfer.fitting(transfer.read(tmp_path / "alpha.pth"), "crate-alpha")


def test_sizes_are_those_of_the_weights(tmp_path):
    models.save_weights(built(dim=192), tmp_path / "crate.pt")
    start = transfer.read(tmp_path / "crate.pt")
    constants = {"stem": "patches", "pooling": "cls", "eta": 0.1, "lam": 0.1}  # of the released networks
    # heads of width 64
    assert (
        transfer.fitting(start, "crate") == {"patch_size": 4, "dim": 192, "depth": 2, "heads": 3} | constants
    )
    models.save_weights(built(dim=768, depth=1), tmp_path / "base.pt")
    start = transfer.read(tmp_path / "base.pt")
    with pytest.raises(
        ValueError, match=r"heads must be given, since .*base\.pt does not determine them; pass 12 or 6"
    ):
        transfer.fitting(start, "crate")
    assert transfer.fitting(start, "crate", heads=6)["dim"] == 768


def test_weights_of_a_vit_without_metadata_fit_by_their_names(tmp_path, caplog):
    vit = built(models.ViT)
    models.save_weights(vit, tmp_path / "vit.safetensors")
    first = start_of(
        tmp_path / "run", weights=tmp_path / "vit.safetensors", settings=with_(network="vit", depth=2)
    )
    assert_close(
        first["pos_embedding"], resized_positions(vit.pos_embedding.detach(), (2, 2)), atol=0, rtol=0
    )
    assert torch.equal(first["head.weight"], vit.head.weight)
    assert any(
        "this training has 2 heads and the normalisation of its own images" in line for line in lines(caplog)
    )


def test_one_of_several_sets_and_a_common_prefix_are_read(tmp_path, capsys):
    """Of a ViT, whose names no released layout has: the average is chosen, at the command line as well."""
    vit, path = built(models.ViT), tmp_path / "vit.ckpt"
    weights = {f"model.{name}": value for name, value in vit.state_dict().items()}
    torch.save({"state_dict": weights, "ema": {name: 2 * value for name, value in weights.items()}}, path)
    settings = with_(network="vit", depth=2)
    for choice, factor in (("state_dict", 1), ("ema", 2)):
        first = start_of(tmp_path / choice, weights=path, weights_set=choice, settings=settings)
        assert torch.equal(first["head.weight"], factor * vit.head.weight)
    command = ["train", "vit", "--data", "digits", "--theories", "none", "--out", str(tmp_path / "run")]
    for options, message in (
        (["--weights", str(path)], "got state_dict, ema; choose one by its name, .* or with --weights-set"),
        (["--weights", str(path), "--weights-set", "x"], "got 'x'; it holds the sets state_dict, ema"),
        (["--weights-set", "ema"], "--weights-set names a part of the file --weights, got no --weights"),
    ):
        assert main([*command, *options]) == 2
        assert re.search(message, capsys.readouterr().err)
    trained(tmp_path / "whole", channels=3, settings=settings)
    with pytest.raises(ValueError, match="weights_set must be left out"):
        transfer.read(tmp_path / "whole", weights_set="ema")


# --- constants, pooling, frozen body


def test_constants_are_settings_and_a_change_is_reported(tmp_path, caplog):
    settings = with_(network="crate-paper", pooling="mean", eta=0.3, lam=0.2, kappa=0.7, epochs=1)
    trained(tmp_path / "first", settings)
    network = models.load(tmp_path / "first").network
    block, step = network.transformer.layers[0][1].fn, network.transformer.layers[0][0].fn
    assert (network.pooling, block.eta, block.lam, step.kappa) == ("mean", 0.3, 0.2, 0.7)
    fields = transfer.fitting(transfer.read(tmp_path / "first"), "crate-paper")
    assert (fields["pooling"], fields["eta"], fields["lam"], fields["kappa"]) == ("mean", 0.3, 0.2, 0.7)
    trained(
        tmp_path / "second",
        with_(network="crate-paper", epochs=1, pooling="mean", eta=0.3, lam=0.2),
        weights=tmp_path / "first",
    )
    (line,) = lines(caplog)
    assert "has kappa 0.7, this training has None; no shape depends on it" in line


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"network": "vit", "pooling": "mean"},
            "pooling must be left out, since this network has no choice of pooling",
        ),
        (
            {"network": "vit", "eta": 0.2},
            "eta must be left out, since this network has no ISTA step, got 0.2",
        ),
        ({"network": "tost", "lam": 0.2}, "lam must be left out"),
        (
            {"network": "crate", "kappa": 0.2},
            "kappa must be left out, since this network has no step size of attention, got 0.2",
        ),
    ],
)
def test_constants_that_a_network_does_not_have_are_refused(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        trained(tmp_path / "run", with_(**change))
    with pytest.raises(ValueError, match="kappa must be a finite number above 0, got 0"):
        with_(kappa=0.0)


@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
def test_layer_decay_zero_freezes_the_body(tmp_path, optimiser):
    trained(tmp_path / "first", with_(epochs=1))
    settings = with_(layer_decay=0.0, seed=3, average=0.5, optimiser=optimiser)
    before = models.load(tmp_path / "first").network.state_dict()
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "parts", settings, weights=tmp_path / "first", callback=interrupting(4))
    trained(tmp_path / "parts", settings, resume=True)
    result = trained(tmp_path / "whole", settings, weights=tmp_path / "first")
    assert_same(tmp_path / "parts", tmp_path / "whole")
    after = torch.load(tmp_path / "whole" / "last.pt", weights_only=True)["network"]
    assert {name for name in after if not torch.equal(after[name], before[name])} == {
        "mlp_head.0.weight", "mlp_head.0.bias", "mlp_head.1.weight", "mlp_head.1.bias",
    }  # fmt: skip
    assert result.provenance["parameters"] == sum(value.numel() for value in before.values())


class Normalised(nn.Module):
    """A network of the caller with running statistics and dropout in its body."""

    def __init__(self, sizes):
        super().__init__()
        self.embed = nn.Linear(sizes.channels * sizes.image_size**2, 8)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 8), nn.Dropout(0.5)) for _ in range(2)
        )
        self.head = nn.Linear(8, sizes.num_classes)

    def forward(self, images):
        tokens = self.embed(images.flatten(1))
        for layer in self.layers:
            tokens = tokens + layer(tokens)
        return self.head(tokens)


def test_a_frozen_body_keeps_its_running_statistics_and_drops_nothing(tmp_path):
    own = {"normalised": Normalised}
    trained(tmp_path / "first", with_(network="normalised", epochs=1), networks=own)
    before = models.load(tmp_path / "first", networks=own).network.state_dict()
    settings = with_(network="normalised", epochs=2, layer_decay=0.0, average=0.5)
    trained(tmp_path / "frozen", settings, networks=own, weights=tmp_path / "first")
    stored = torch.load(tmp_path / "frozen" / "last.pt", weights_only=True)
    assert {name for name, value in stored["network"].items() if not torch.equal(value, before[name])} == {
        "head.weight",
        "head.bias",
    }
    average = {
        name.removeprefix("module.network."): value
        for name, value in stored["average"].items()
        if "network." in name
    }
    assert {name for name, value in average.items() if not torch.equal(value, before[name])} == {
        "head.weight",
        "head.bias",
    }
    body = models.load(tmp_path / "first", networks=own).network
    freeze_body(body)
    images = torch.rand(4, 1, 8, 8, generator=generator())
    assert torch.equal(copy.deepcopy(body).train()(images), body.eval()(images))


def test_images_are_read_as_they_were_for_the_weights(tmp_path):
    """The first measurement is that of the stored network, although the new images are darker."""
    trained(tmp_path / "first", with_(epochs=1))
    dark = Images(noise().pixels // 4, noise().labels, noise().names, name="dark")
    result = train((dark, dark), SMALL, tmp_path / "run", hardware=CPU, weights=tmp_path / "first")
    first, second = models.load(tmp_path / "first"), models.load(tmp_path / "run")
    assert torch.equal(first.mean, second.mean)
    _, validation = SMALL.split(dark)
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(first(validation.pixels / 255), validation.labels)
    assert_close(
        result.select(quantity="loss", split="validation", step=0).one().value, float(loss), atol=1e-5, rtol=0
    )


def test_classes_of_other_names_get_a_new_head(tmp_path, caplog):
    trained(tmp_path / "first", with_(epochs=1))
    images = Images(noise().pixels, noise().labels, ("a", "b", "z"), name="others")
    with pytest.raises(KeyboardInterrupt):
        train(
            (images, images),
            SMALL,
            tmp_path / "run",
            hardware=CPU,
            weights=tmp_path / "first",
            callback=interrupting(1),
        )
    assert any("3 classes (a, b, c), the data have 3 classes (a, b, z)" in line for line in lines(caplog))


def test_features_and_classes_follow_one_another(tmp_path, caplog):
    """Trained by another objective, with other outputs, a network keeps its body."""
    trained(tmp_path / "features", with_(epochs=1), objective=RateReduction(features=9))
    trained(tmp_path / "classes", with_(epochs=1), weights=tmp_path / "features")
    trained(
        tmp_path / "again", with_(epochs=1), weights=tmp_path / "classes", objective=RateReduction(features=9)
    )
    text = lines(caplog)
    assert len(text) == 2
    assert all("mlp_head.1.weight, mlp_head.1.bias start anew" in line for line in text)
    assert models.load(tmp_path / "again").settings["sizes"]["num_classes"] == 9


# --- bad input


class Runs:
    """Unpickling it makes a folder."""

    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


def crate(**change):
    return built().state_dict() | change


BAD = {
    "nan": (crate(cls_token=torch.full((1, 1, 8), float("nan"))), {}, "1 with NaN or infinity: cls_token"),
    "integers": (crate(cls_token=torch.ones(1, 1, 8, dtype=torch.int64)), {}, "1 of torch.int64 in place of floating-point .*: cls_token"),  # noqa: E501
    "overflow": (crate(cls_token=torch.full((1, 1, 8), 1e300, dtype=torch.float64)), {}, "1 with NaN or infinity: cls_token"),  # noqa: E501
    "positions": (crate(pos_embedding=torch.full((1, 17, 8), float("nan"))), {}, "1 with NaN or infinity: pos_embedding"),  # noqa: E501
    "missing": ({name: value for name, value in crate().items() if ".1.0." not in name}, {}, r"5 missing: transformer\.layers\.1\.0\."),  # noqa: E501
    "stem": (crate(), {"stem": "convolutions"}, "stem 'patches' there and 'convolutions' here; choose "
    "stem='patches'"),
    "width": (crate(), {"dim": 16}, "dim 8 there and 16 here; choose dim=8"),
    "depth": (crate(), {"depth": 1, "patch_size": 8}, "patch_size 4 there and 8 here, depth 2 there and 1 "
    "here; choose patch"),
    "kind": (crate(), {"network": "vit"}, "network 'crate' there and 'vit' here; train crate"),
    "timm": ({"blocks.0.attn.qkv.weight": torch.zeros(24, 8)}, {}, r"\d+ missing: .* 1 unknown: "
    r"blocks\.0\.attn\.qkv\.weight"),
    "optimiser": ({"state": torch.zeros(1)}, {}, r"\d+ missing: .* 1 unknown: state"),
    "grid": (crate(pos_embedding=torch.zeros(1, 16, 8)), {}, "got 15 patches of 48 numbers"),
    "encoder": ({f"patch_embed.proj.{n}": torch.zeros(8, 3, 4, 4) for n in ("weight",)}
                | {"pos_embed": torch.zeros(1, 5, 8), "blocks.0.layers.0.0.fn.qkv.weight": torch.zeros(8, 8)}, {}, "those of crate-mae"),  # noqa: E501
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_weights_that_do_not_fit_are_refused_before_anything_is_written(tmp_path, unchecked, name):
    weights, change, message = BAD[name]
    path = tmp_path / f"{name}.pth"
    torch.save(weights, path)
    with pytest.raises(ValueError, match=message) as raised:
        trained(tmp_path / "run", with_(**{"depth": 2, **change}), channels=3, weights=path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_grey_images_do_not_fit_weights_of_coloured_ones(tmp_path):
    models.save_weights(built(), tmp_path / "crate.pt")
    with pytest.raises(ValueError, match="channels 3 there and 1 here; choose channels=3"):
        trained(tmp_path / "run", with_(depth=2), channels=1, weights=tmp_path / "crate.pt")


def test_the_command_executes_no_file_and_takes_the_sizes_of_the_weights(tmp_path, capsys, monkeypatch):
    torch.save(
        {"state_dict": {"cls_token": torch.zeros(1), "other": Runs(tmp_path / "ran")}}, tmp_path / "evil.pth"
    )
    arguments = [
        "train",
        "crate",
        "--data",
        "digits",
        "--theories",
        "none",
        "--device",
        "cpu",
        "--out",
        str(tmp_path / "run"),
    ]
    assert main([*arguments, "--weights", str(tmp_path / "evil.pth")]) == 2
    assert "reading could run code" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()
    models.save_weights(built(channels=1), tmp_path / "whole.safetensors")
    (tmp_path / "half.safetensors").write_bytes((tmp_path / "whole.safetensors").read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"whole safetensors file, got .*half"):
        transfer.read(tmp_path / "half.safetensors")
    (tmp_path / "folder").mkdir()
    for nowhere in ("folder", "no.pt"):
        with pytest.raises(
            FileNotFoundError, match=f"{nowhere} must hold best.safetensors|{nowhere} does not exist"
        ):
            transfer.read(tmp_path / nowhere)
    seen = {}

    def stop(images, settings, folder, **options):
        seen["settings"] = settings
        raise KeyboardInterrupt

    monkeypatch.setattr("transformer_theory.training.image.loop.train", stop)
    assert (
        main(
            [
                *arguments,
                "--weights",
                str(tmp_path / "whole.safetensors"),
                "--heads",
                "2",
                "--layer-decay",
                "0",
            ]
        )
        == 130
    )
    assert (
        seen["settings"].dim,
        seen["settings"].depth,
        seen["settings"].patch_size,
        seen["settings"].layer_decay,
    ) == (8, 2, 4, 0.0)
