"""Stored networks, measured on test images."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import torch

from ..core import listeners
from ..core.measurement import Measurement
from ..core.statistics import EQUAL_SCALE, UNTRAINED
from ..core.table import Arrays, Table
from ..core.theory import Theory
from ..data import Images, TokenData
from ..probes.features import features_with_words
from ..probes.measure import metrics_of
from ..training.image.evaluate import (
    StoredNetwork,
    maps,
    measure_copies,
    measure_metrics,
    measure_objective,
    timeline,
)
from ..training.image.side_by_side import runs_of, side_by_side
from ..training.monitor import PICTURED
from ..training.objectives.protocol import scaled
from .on_data import Stream, on_view
from .small_networks import (
    CODEBOOK_SIZE,
    FEATURE_SEQUENCES,
    RESPONSE_SEQUENCES,
    by_layer,
    headlines,
    projections,
    synthetic_tests,
)


def measure_stored_networks(
    networks: Sequence[StoredNetwork],
    data: TokenData,
    images: tuple[Images, Images],
    theories: Sequence[Theory],
    seed: int,
) -> Stream:
    """Yields the measurements of stored networks on test images, and the theories on their features.

    Args:
        networks: networks to measure; each is a single network, so there are no seeds.
        data: tokens of the test images.
        images: training and test images.
        theories: theories to compare.
        seed: seed of the synthetic inputs, the visual words and the theories' models.
    """
    train, test = images
    yield images_and_labels(data, test.pixels[:PICTURED].double() / 255)
    rows: list[Measurement] = []
    for network in networks:
        listeners.progress(f"{network.name}: {len(test)} test images")
        rows += measure_objective(network, train, test)
    rows += side_by_side(runs_of(networks))
    shares = {row.quantity: row.unit == "share" for row in rows}
    # grouped by quantity, with shares (accuracies) first
    for quantity in sorted(shares, key=lambda name: not shares[name]):
        yield from Table(rows).select(quantity=quantity)
    for network in networks:
        yield from _network(network, data, test, theories, seed)


def _network(
    network: StoredNetwork, data: TokenData, test: Images, theories: Sequence[Theory], seed: int
) -> Stream:
    """Yields the measurements of one stored network."""
    listeners.progress(f"{network.name}: metrics of all theories, here, in copies and in untrained networks")
    measured, untrained = measure_metrics(network, test, metrics=partial(metrics_of, theories))
    beside, copies = measure_copies(network, test, metrics=partial(metrics_of, theories))
    yield from _timeline(network, theories, measured)
    pixels = scaled(test.pixels[:RESPONSE_SEQUENCES], next(network.measured.parameters()))
    answers = [*synthetic_tests(theories, network.measured, pixels, network.name, seed)]
    yield from headlines(
        theories,
        network.name,
        measured,
        {EQUAL_SCALE: copies, UNTRAINED: untrained},
        beside=beside,
        answers=answers,
    )
    yield from by_layer(theories, measured)
    yield from answers
    yield maps(network, test)
    generator = torch.Generator().manual_seed(seed)
    features = features_with_words(
        network.measured,
        data[:FEATURE_SEQUENCES],
        layer=network.last_block,
        inputs="images",
        words=CODEBOOK_SIZE,
        generator=generator,
    )
    yield projections(network.name, features)
    yield from on_view(theories, features, network.name, seed=seed, arrays=True, noise=True)


def _timeline(
    network: StoredNetwork, theories: Iterable[Theory], measured: Sequence[Measurement]
) -> Iterator[Measurement]:
    """Yields the measurements over a network's training, and those on test images for theories that its run
    did not measure.

    A network without a run, or whose run is reported with another network, has only the measurements on test
    images.
    """
    names = {"network", *(theory.name for theory in theories)}
    training = timeline(network).where(lambda row: row.theory in names)
    recorded = set(training.column("theory"))
    yield from training
    yield from (row for row in measured if row.theory not in recorded)


def images_and_labels(data: TokenData, images: torch.Tensor | None) -> Arrays:
    """Returns the images of the attention maps, in [0, 1], and the labels of the features."""
    arrays = Arrays()
    if data.labels is not None:
        arrays["network/labels"] = data.labels[:FEATURE_SEQUENCES].numpy()
    if images is not None:
        arrays["network/images"] = images[:PICTURED].numpy()
    return arrays
