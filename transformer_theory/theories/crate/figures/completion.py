"""Completion of masked images by a CRATE-MAE: reconstructions, their errors beside simple predictions, and
the work of each layer.

Source: :cite:t:`pai2024masked`, :cite:t:`he2022masked`.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from einops import rearrange
from torch import Tensor

from ....core.experiment import setting, sweep
from ....core.figure import DASHED, Reading, figure, mean
from ....core.format import counted
from ....core.measurement import Null, judge
from ....core.plotting import COLOURS, caption, colour, stacked, style
from ....core.result import Result
from ....core.sources import Source
from ....core.statistics import student_interval
from ....core.table import Arrays, Table
from ....models import CRATEMAE, build, random_mask
from ....training.fitting import State, fit, permuted
from ....training.optimisers import warm_up_cosine
from ....training.tasks import StreamTask
from .. import networks
from .masked_patches import (
    LINEAR,
    NEAREST,
    POSITION_MEAN,
    layer_streams,
    masked_error,
    predictions,
    rate_ratio,
    readout_error,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SOURCE = Source("pai2024masked")
# an encoder layer is partially inverted by a decoder layer
INVERSE = Source("pai2024masked", "Fig. 1", "second-hand")
MODEL, UNTRAINED = "CRATE-MAE", "untrained networks"
ERROR = "error on masked patches"
READOUT = "error of a linear map from the tokens of masked patches"
RATIO = "R^c after attention over before"
ENCODER, DECODER = "encoder", "decoder"
BATCH = 64  # images per step
HEADS = 4
MAX_PLOTTED = 9
HIDDEN = (0.75, 0.84, 0.93)  # colour of hidden patches in the figure

Images = Callable[[int], tuple[Tensor, Tensor]]  # seed -> training and test images, see digit_images


def digit_images(seed: int) -> tuple[Tensor, Tensor]:
    """Returns the training and test part of the digits, [n, channels, size, size] in [0, 1]."""
    parts = networks.digit_parts(seed=seed)
    assert parts.train.images is not None
    assert parts.test.images is not None
    return parts.train.images, parts.test.images


def train_network(
    images: Images,
    *,
    seed: int,
    steps: int,
    dim: int,
    depth: int,
    patch_size: int,
    masked: float,
    learning_rate: float,
) -> dict[str, Any]:
    """Trains one network. Returns its errors, those of the controls and of an untrained network, the values
    by layer, and pictures.

    Raises:
        ValueError: the sizes do not fit, or no patch would remain visible.
    """
    pixels, test_pixels = images(seed)
    centre, scale = pixels.float().mean(), pixels.float().std()
    train, test = ((part.float() - centre) / scale for part in (pixels, test_pixels))
    sizes = {"image_size": train.shape[-1], "channels": train.shape[1], "patch_size": patch_size}
    sizes |= {"heads": HEADS, "dim": dim, "depth": depth}
    model, untrained = (_autoencoder(seed=s, **sizes) for s in (seed, seed + 1))
    seq, batch = model.patches.seq, min(BATCH, len(train))
    generator = torch.Generator().manual_seed(seed)
    train_hidden, hidden = (
        random_mask(len(part), seq, generator=generator, share=masked) for part in (train, test)
    )
    if bool(hidden[0].all()):
        raise ValueError(
            f"masked must leave a visible patch of {seq}, got {masked}; lower it, or choose smaller patches"
        )

    def batches(source: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        for chosen in permuted(len(train), batch, source):
            yield train[chosen], random_mask(batch, seq, generator=source, share=masked)

    def schedule(state: State) -> float:
        return warm_up_cosine((state.step + 1) / (steps + 1), warm_up=0.1)

    options = {"lr": learning_rate, "betas": (0.9, 0.99), "weight_decay": 0.05}
    optimiser, task = torch.optim.AdamW(model.parameters(), **options), StreamTask(_loss, batches)
    options = {"steps": steps, "generator": generator, "schedule": schedule, "clip": 1.0}
    fit(model, task, optimiser=optimiser, **options)

    truth, train_truth = model.patches(test), model.patches(train)
    with torch.no_grad():
        completed = {MODEL: model(test, hidden), UNTRAINED: untrained(test, hidden)}
    completed |= predictions(train_truth, truth, hidden)
    readouts, ratios = [], []
    for network in (model, untrained):
        streams = layer_streams(network, test, hidden)
        train_streams = layer_streams(network, train, train_hidden)
        # Tokens before the first layer, then after every layer; the class token has no patch.
        pairs = zip(
            [train_streams[0].before, *(s.after for s in train_streams)],
            [streams[0].before, *(s.after for s in streams)],
        )
        fitted = ((seen[:, 1:][train_hidden], new[:, 1:][hidden]) for seen, new in pairs)
        readouts.append(
            [readout_error(seen, train_truth[train_hidden], new, truth[hidden]) for seen, new in fitted]
        )
        ratios.append([np.nan, *(rate_ratio(stream) for stream in streams)])

    def as_images(patches: Tensor) -> np.ndarray:
        grid = {"h": train.shape[-1] // patch_size, "p": patch_size, "q": patch_size}
        return rearrange(patches, "n (h w) (p q c) -> n (h p) (w q) c", **grid).numpy()

    shown = [torch.where(hidden[..., None], completed[name], truth)[:MAX_PLOTTED] for name in (MODEL, LINEAR)]
    cover = hidden[:MAX_PLOTTED, :, None].expand(-1, -1, patch_size**2)
    return {
        "errors": {name: masked_error(patches, truth, hidden) for name, patches in completed.items()},
        "layers": np.array([readouts, ratios]),  # [quantity, trained or untrained, 1 + layers]
        "images": rearrange(test_pixels[:MAX_PLOTTED], "n c h w -> n h w c").float().numpy(),
        "hidden": as_images(cover)[..., 0],
        "completed": np.stack([as_images(patches * scale + centre) for patches in shown]),
    }


def _loss(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    return model.loss(*batch)


def _autoencoder(*, seed: int, **sizes: Any) -> CRATEMAE:
    """Returns an untrained network in evaluation mode."""
    model = build(lambda: CRATEMAE(**sizes), torch.Generator().manual_seed(seed)).eval()
    assert isinstance(model, CRATEMAE)
    return model


@style()
def draw(result: Result) -> "Figure":
    """Draws images, masked images and two completions, one column per image; below, the errors and the values
    by layer.
    """
    images, hidden, completed = (
        result.arrays[f"crate/completion/{name}"] for name in ("images", "hidden", "completed")
    )
    rows = {"image": images, "masked": np.where(hidden[..., None], np.array(HIDDEN), images)}
    rows |= dict(zip((MODEL, "linear"), completed))
    drawn, (above, below) = stacked([2.9, 2.0], height=5.6)
    grid = above.subplots(len(rows), len(images), squeeze=False)
    for line, (name, pictures) in zip(grid, rows.items()):
        for ax, picture in zip(line, pictures):
            colours = np.broadcast_to(picture, (*picture.shape[:2], 3))
            ax.imshow(np.clip(colours, 0, 1), interpolation="nearest")
            ax.set(xticks=[], yticks=[])
            ax.spines[:].set_visible(False)
        line[0].set_ylabel(name, rotation=0, ha="right", va="center")
    left, middle, right = below.subplots(1, 3)
    _error_panel(left, result)
    titles = {READOUT: "Error, linear readout", RATIO: "$R^c$, after / before"}
    for ax, (quantity, title) in zip((middle, right), titles.items()):
        _layer_panel(ax, result.table.select(quantity=quantity))
        ax.set_title(title)
    right.axhline(1, color=COLOURS["null"], linewidth=0.9)
    right.legend(fontsize=7)
    seeds = len(result.table[0].nulls[0].draws)
    caption(
        drawn,
        "Above: held-out images of the first split; hidden patches are blue, and visible patches are copied "
        "into both completions. Linear: a linear prediction from the visible patches, fitted to training "
        "images. Errors: mean square over masked patches, in units of the variance of the pixels; bars and "
        f"lines: mean of {counted(seeds, 'seed')}; vertical: 95 % intervals over seeds; "
        "grey dots: the untrained networks. Readout: a linear map from the tokens of masked patches, fitted "
        "to training images; 0: the embedding. $R^c$ around attention, tokens of norm one: the theory has "
        "encoder layers (e) below 1 and decoder layers (d) above 1." + _note(result),
    )
    return drawn


@figure(
    "crate.completion",
    source=(SOURCE, Source("he2022masked"), Source("alpaydin1998optical")),
    view=draw,
    quick={"seeds": 1, "steps": 200, "dim": 32, "depth": 1},
)
def completion(
    *,
    seeds: int = setting(3, ge=1, help="number of splits, masks and initial weights"),
    steps: int = setting(1100, ge=1, help="optimiser steps, 64 images per step"),
    dim: int = setting(64, ge=8, multiple_of=4, help="width, in four heads"),
    depth: int = setting(2, ge=1, help="layers of the encoder, and of the decoder"),
    patch_size: int = setting(2, ge=1, help="side of a patch, pixels"),
    masked: float = setting(0.75, gt=0, lt=1, help="share of the patches that are hidden"),
    learning_rate: float = setting(8e-3, gt=0, help="peak learning rate"),
    seed: int = 0,
    images: Images = digit_images,
) -> Iterator[Reading | Arrays]:
    """Reconstructions of held-out digits by a CRATE-MAE, their errors beside simple predictions, and what
    each layer does.

    The error is the mean square over the masked patches, in units of the variance of the pixels: a constant
    grey has about 1. The controls are the mean patch of the training images at the position, the nearest
    visible patches, a linear prediction fitted to the training images, and an untrained network. In the
    theory encoder layers compress, so attention lowers R^c, and decoder layers reverse it; the ratios have a
    verdict if the network beats the mean patch, "inconclusive" where the interval over seeds contains 1.
    """
    shared = {"images": images, "steps": steps, "dim": dim, "depth": depth, "patch_size": patch_size}
    shared |= {"masked": masked, "learning_rate": learning_rate}
    # Seeds advance by two, because the untrained network of a seed has the next one.
    runs = sweep(train_network, [{"seed": 1000 * seed + 2 * k, **shared} for k in range(seeds)])
    errors = {name: [run["errors"][name] for run in runs] for name in runs[0]["errors"]}
    place: dict[str, Any] = {"over": "seeds", "model": MODEL, "split": "test"}
    at, nulls = {"prediction": MODEL}, (Null(UNTRAINED, tuple(errors[UNTRAINED])),)
    yield mean(ERROR, errors[MODEL], at=at, nulls=nulls, side="<=", **place)
    for name in (POSITION_MEAN, NEAREST, LINEAR):
        yield mean(ERROR, errors[name], at={"prediction": name}, **place)
    learnt = sum(errors[MODEL]) < sum(errors[POSITION_MEAN])
    # [seeds, quantities, trained or untrained, 1 + layers]
    layers = np.stack([run["layers"] for run in runs])
    for layer in range(layers.shape[-1]):
        half, number = (ENCODER, layer) if layer <= depth else (DECODER, layer - depth)
        place |= {"at": {"part": half}, "layer": number}
        (readout, first), (ratio, second) = layers[:, :, :, layer].transpose(1, 2, 0)
        yield mean(READOUT, readout, nulls=(Null(UNTRAINED, tuple(first)),), side="<=", **place)
        if layer:
            op = "<=" if half == ENCODER else ">="
            ends = student_interval(ratio.tolist())  # None for a single seed, which decides nothing
            verdict = None
            if learnt and ends:
                verdict = judge(float(ratio.mean()), op, 1.0, converged=not ends[0] <= 1 <= ends[1])
            bound = {"predicted": 1.0, "op": op, "threshold": 1.0, "verdict": verdict, "side": op}
            nulls = (Null(UNTRAINED, tuple(second)),)
            yield mean(RATIO, ratio, nulls=nulls, source=INVERSE, **bound, **place)
    yield Arrays({f"crate/completion/{name}": runs[0][name] for name in ("images", "hidden", "completed")})


def _note(result: Result) -> str:
    """Returns a sentence for the caption if the network is not better than the mean patch; otherwise an empty
    text.
    """
    error, mean = (
        result.table.select(quantity=ERROR, at={"prediction": name}).one().value or 0.0
        for name in (MODEL, POSITION_MEAN)
    )
    return (
        ""
        if error < mean
        else " The network is no better than the mean patch, so that nothing here is an effect of learning."
    )


def _error_panel(ax: "Axes", result: Result) -> None:
    """Plots one bar per prediction."""
    rows = result.table.select(quantity=ERROR)
    bars = {row.at["prediction"]: row.value or 0.0 for row in rows}
    (untrained,) = rows.select(at={"prediction": MODEL}).column("null")
    bars["untrained network"] = untrained.mean
    places = range(len(bars))
    tints = [colour("crate")] + [COLOURS["null"]] * (len(bars) - 1)
    ax.barh(places, list(bars.values()), color=tints, alpha=0.45, height=0.75)
    for place, (name, value) in enumerate(bars.items()):
        ax.text(0.02 * max(bars.values()), place, f"{name} {value:.2f}", va="center", fontsize=7)
    ax.set_yticks([])
    ax.invert_yaxis()
    ax.set_title("Error on masked patches")


def _layer_panel(ax: "Axes", rows: Table) -> None:
    """Plots a quantity by layer, with its intervals, and the untrained networks with the mean of
    each layer.
    """
    depth = max(rows.column("layer"))
    decoder = [depth if row.at["part"] == DECODER else 0 for row in rows]
    places = [layer + before for layer, before in zip(rows.column("layer"), decoder)]
    for place, interval, null in zip(places, rows.column("interval"), rows.column("null")):
        if interval:
            ax.plot([place] * 2, interval, color=colour("crate"), linewidth=1.0)
        ax.plot([place] * len(null.draws), null.draws, "o", color=COLOURS["null"], markersize=2.5)
    ax.plot(places, rows.column("value"), "-o", color=colour("crate"), label="trained", markersize=2.5)
    nulls = [null.mean for null in rows.column("null")]
    ax.plot(places, nulls, linestyle=DASHED, color=COLOURS["null"], label="untrained")
    labels = ["0"] + [f"e{k + 1}" for k in range(depth)] + [f"d{k + 1}" for k in range(depth)]
    ax.set_xticks(range(2 * depth + 1), labels)
    ax.axvline(depth + 0.5, color="#E4E7EB", linewidth=1.2, zorder=0)
    ax.set_xlim(-0.3, 2 * depth + 0.3)
    ax.set_xlabel("layer")
