"""Completion of masked images: the simple predictions, the work of the layers, and when a verdict
is given.
"""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests.cases import each_case
from transformer_theory.core.experiment import setting
from transformer_theory.core.figure import figure
from transformer_theory.models import CRATEMAE, build, random_mask
from transformer_theory.theories.crate.figures import completion
from transformer_theory.theories.crate.figures.masked_patches import (
    RIDGE,
    Stream,
    layer_streams,
    linear_completion,
    masked_error,
    nearest_visible,
    rate_ratio,
    readout_error,
)


def gaussian(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mask(n, seq, seed=0):
    return random_mask(n, seq, generator=torch.Generator().manual_seed(seed), share=0.5)


def test_the_linear_completion_is_a_ridge_regression_on_the_visible_pixels():
    train, truth, masked = gaussian(40, 4, 3) @ gaussian(3, 3, seed=1), gaussian(6, 4, 3, seed=2), mask(6, 4)
    completed = linear_completion(train, truth, masked)
    pixels = train.flatten(1)
    mean, variance = pixels.mean(0), float(pixels.var(0).mean())
    for row, image, hidden in zip(completed.flatten(1), truth.flatten(1), masked.repeat_interleave(3, 1)):
        # Least squares on the data with sqrt((n - 1) rho) I appended is ridge regression.
        inputs, outputs = (pixels - mean)[:, ~hidden], (pixels - mean)[:, hidden]
        extra = (39 * RIDGE * variance) ** 0.5 * torch.eye(inputs.shape[1], dtype=torch.float64)
        weights = torch.linalg.lstsq(
            torch.cat([inputs, extra]), torch.cat([outputs, torch.zeros(len(extra), outputs.shape[1])])
        ).solution
        assert_close(row[hidden], mean[hidden] + (image - mean)[~hidden] @ weights)
        assert_close(row[~hidden], image[~hidden])


def test_the_nearest_visible_patches_are_averaged():
    patches, masked = gaussian(3, 9, 2), mask(3, 9)
    predicted = nearest_visible(patches, masked)
    for image, hidden, row in zip(patches, masked, predicted):
        for i in range(9):
            distances = {j: (i // 3 - j // 3) ** 2 + (i % 3 - j % 3) ** 2 for j in range(9) if not hidden[j]}
            near = [j for j, distance in distances.items() if distance == min(distances.values())]
            assert_close(row[i], image[near].mean(0))


def test_the_error_counts_masked_patches_only():
    truth, masked = gaussian(3, 4, 2), mask(3, 4)
    wrong = torch.where(masked[..., None], truth + 2, truth + 100)
    assert masked_error(wrong, truth, masked) == pytest.approx(4)


def autoencoder():
    sizes = {"image_size": 8, "patch_size": 2, "channels": 1, "dim": 16, "depth": 2, "heads": 2}
    return build(lambda: CRATEMAE(**sizes), torch.Generator().manual_seed(0)).double().eval()


def test_streams_are_those_of_the_forward_pass():
    model, images, masked = autoencoder(), gaussian(5, 1, 8, 8), mask(5, 16)
    streams = layer_streams(model, images, masked)
    assert len(streams) == 4
    with torch.no_grad():
        assert_close(model.decoder_pred(model.decoder_norm(streams[3].after))[:, 1:], model(images, masked))
        assert_close(streams[1].before, streams[0].after)
        assert_close(streams[2].before, model.norm(streams[1].after))
        encoder, decoder = model.blocks[1].layers[0], model.decoder_blocks[1].layers[0]
        assert_close(encoder[1](streams[1].attention_after), streams[1].after)
        assert_close(streams[1].bases, encoder[0].fn.subspaces())
        assert_close(
            streams[3].attention_before - decoder[1](streams[3].attention_before), streams[3].attention_after
        )
        assert_close(decoder[0](streams[3].before), streams[3].attention_before)


def test_the_ratio_of_rates_is_that_of_log_determinants_and_falls_where_tokens_gather():
    tokens, bases, eps = gaussian(3, 7, 12), gaussian(2, 12, 4, seed=1), 0.1
    gathered = 0.5 * tokens + 0.5 * tokens.mean(1, keepdim=True)
    rates = []
    for stream in (tokens, gathered):
        total = 0.0
        for image in stream.numpy():
            for basis in bases.numpy():
                orthonormal = np.linalg.qr(basis)[0]
                coords = (image - image.mean(1, keepdims=True)) @ orthonormal
                coords /= np.linalg.norm(coords, axis=1, keepdims=True)
                total += np.linalg.slogdet(np.eye(4) + 4 / (7 * eps**2) * coords.T @ coords)[1] / 2
        rates.append(total)
    assert rate_ratio(Stream(tokens, gathered, tokens, gathered, bases), eps=eps) == pytest.approx(
        rates[1] / rates[0]
    )
    assert rates[1] < rates[0]


def test_a_readout_recovers_a_linear_map_and_nothing_from_noise():
    weights = gaussian(5, 3)
    seen, new = gaussian(400, 5, seed=1), gaussian(300, 5, seed=2)
    assert readout_error(seen, seen @ weights + 1, new, new @ weights + 1) < 1e-4
    assert readout_error(seen, gaussian(400, 3, seed=3), new, gaussian(300, 3, seed=4)) == pytest.approx(
        1, abs=0.15
    )


def run(error, ratio):
    controls = {"mean patch": 0.5, "nearest visible patches": 1.0, "linear completion": 0.3}
    ratios = [[np.nan, ratio, 0.8], [np.nan, 1.0, 1.0]]  # trained: the decoder compresses, against the theory
    return {
        "errors": {completion.MODEL: error, completion.UNTRAINED: 2.0, **controls},
        "layers": np.array([[[0.6, 0.5, 0.4], [0.6, 0.6, 0.6]], ratios]),
        "images": np.zeros((2, 4, 4, 1)),
        "hidden": np.ones((2, 4, 4), dtype=bool),
        "completed": np.zeros((2, 2, 4, 4, 1)),
    }


@each_case(
    ("error", "ratios", "verdicts"),
    [
        (0.4, (0.9, 0.91), ["consistent", "violated"]),
        (0.4, (0.5, 1.2), ["inconclusive", "violated"]),  # the interval over seeds contains 1
        (0.4, (0.9,), [None, None]),  # one seed decides nothing
        (0.6, (0.9, 0.91), [None, None]),
    ],
)
def test_layers_are_judged_only_if_the_network_beats_the_mean_patch(error, ratios, verdicts, monkeypatch):
    monkeypatch.setattr(
        completion, "sweep", lambda function, settings: [run(error, ratio) for ratio in ratios]
    )
    experiment = completion.completion(seeds=len(ratios), depth=1)
    result = experiment.run()
    rows = result.select(quantity=completion.RATIO)
    assert [row.at["part"] for row in rows] == [completion.ENCODER, completion.DECODER]
    assert rows.column("verdict") == verdicts
    assert [row.null.mean for row in rows] == [1.0, 1.0]
    (row,) = result.select(quantity=completion.ERROR, at={"prediction": completion.MODEL})
    assert (row.value, row.null.draws) == (pytest.approx(error), (2.0,) * len(ratios))
    caption = experiment.plot(result).get_supxlabel()
    assert ("nothing here is an effect of learning" in " ".join(caption.split())) == (error > 0.5)


def noise(seed):
    return gaussian(20, 3, 12, 12, seed=seed).sigmoid(), gaussian(10, 3, 12, 12, seed=seed + 1).sigmoid()


@figure("crate.noise", source=completion.SOURCE, view=completion.draw)
def completed_noise(*, masked: float = setting(0.75), seed: int = 0):
    sizes = {"seeds": 1, "steps": 2, "dim": 8, "depth": 1, "patch_size": 4}
    return completion.completion.sweep.function(images=noise, masked=masked, seed=seed, **sizes)


def test_other_images_can_be_completed():
    experiment = completed_noise()
    result = experiment.run()
    hidden, images = result.arrays["crate/completion/hidden"], result.arrays["crate/completion/images"]
    assert hidden.shape == (9, 12, 12)
    for picture in result.arrays["crate/completion/completed"]:
        # visible patches are copied, in the right place
        assert np.abs(picture - images)[~hidden].max() < 1e-5
    experiment.plot(result)


def test_a_patch_must_remain_visible():
    with pytest.raises(ValueError, match="masked must leave a visible patch of 9"):
        completed_noise(masked=0.95).run()
