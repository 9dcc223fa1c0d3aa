"""Every experiment: its quick settings run, and its result can be stored, loaded and drawn."""

import json
import logging
import re
import time
from dataclasses import is_dataclass, replace

import matplotlib.figure
import numpy as np
import pytest
import torch
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D

from tests.cases import each_case
from transformer_theory.core.experiment import Experiment
from transformer_theory.core.plotting import svg
from transformer_theory.core.result import Result
from transformer_theory.core.sources import Source
from transformer_theory.theories import list_theories

EXPERIMENTS = [(theory.name, kind) for theory in list_theories() for kind in theory.experiments]
every_experiment = pytest.mark.parametrize(
    ("theory", "kind"), EXPERIMENTS, ids=[kind.name for _, kind in EXPERIMENTS]
)
REPEATED = 0.2  # CPU seconds up to which a run is repeated
# Smaller than the quick settings, whose networks learn enough for an answer: all that is tested here does not
# depend on what is learnt.
SMALLER = {
    "attention_svm.concave_head": {"trials": 4, "steps": 300},
    "attention_svm.convergence_types": {"trials": 2, "dims": (5, 20)},
    "attention_svm.factor_norms": {"trials": 2, "steps": 400},
    "attention_svm.graph": {"trials": 2},
    "attention_svm.local_paths": {"trials": 3},
    "attention_svm.long_run": {"trials": 2, "steps": 1000, "naive_steps": 500},
    "attention_svm.mirror": {"steps": (100, 100, 200)},
    "attention_svm.trained_vit": {"steps": 4, "every": 2},
    "bottleneck.plane": {"starts": 1},
    "chain_of_thought.lengths": {"steps_per_operation": 3, "train": 60, "test": 20},
    "crate.completion": {"steps": 5},
    "crate.memberships": {"images": 100, "steps": 5},
    "crate.emergence": {"images": 60, "steps": 3, "dim": 32, "depth": 1},
    "crate.layers": {"steps": 5, "dim": 32, "depth": 2},
    "graph_tokens.maps": {"steps": 10},
    "in_context.functions": {"steps": 5},
    "induction.formation": {"steps": 20, "every": 10},
    "induction.heads": {"steps": 10},
    "induction.strategies": {"steps": 10},
    "joma.invariant": {"steps": 10},
    "joma.text_depth": {"steps": 10, "measurements": 3},
    "particles.clusters": {"time": 2.0},
    "random_features.errors": {"heads": 5},
    "rate_reduction.label_corruption": {"steps": 8, "batch": 200},
    "rate_reduction.landscape": {"starts": 1},
    "rate_reduction.redunet_digits": {"layers": 5, "training": 600},
    "rate_reduction.training_dynamics": {"steps": 25},
    "scan_snap.text_attention": {"steps": 6},
    "scan_snap.text_rates": {"steps": 6},
    "turing.precision": {"steps": 100},
}


def small(kind: type[Experiment]) -> Experiment:
    return replace(kind.quick(), **SMALLER.get(kind.name, {}))


def cut_off(figure: matplotlib.figure.Figure) -> list[str]:
    """Titles, labels, legends and captions that do not fit into the width of a figure that has been drawn."""
    shown = [figure._supxlabel, *figure.texts, *figure.legends]
    for ax in figure.axes:
        shown += [ax.title, ax._left_title, ax.xaxis.label, ax.yaxis.label, ax.get_legend(), *ax.texts]
    boxes = {artist: artist.get_window_extent() for artist in shown if artist is not None}
    outer = figure.bbox.padded(1)  # pixel
    return [
        str(artist)
        for artist, box in boxes.items()
        if box.width and not outer.containsx(box.x0) * outer.containsx(box.x1)
    ]


def borrowed(figure: matplotlib.figure.Figure, name: str) -> set[str]:
    """Colours of other theories among the curves and points."""
    drawn = [to_hex(curve.get_color()) for curve in figure.findobj(Line2D)]
    drawn += [to_hex(tint) for points in figure.findobj(PathCollection) for tint in points.get_facecolor()]
    return {tint.upper() for tint in drawn} & {
        theory.colour for theory in list_theories() if theory.name != name
    }


def fits_a_page(figure: matplotlib.figure.Figure) -> bool:
    """Whether there is a caption, the figure is no wider than the text of a page, and no text is smaller than
    7 points.
    """
    texts = []
    for ax in figure.axes:
        legend = ax.get_legend()
        texts += [
            *ax.texts,
            *(legend.get_texts() if legend else ()),
            ax.xaxis.label,
            ax.yaxis.label,
            *ax.get_xticklabels(),
        ]
    legible = all(text.get_fontsize() >= 7 for text in texts if text.get_text())
    return bool(figure.get_supxlabel()) and figure.get_size_inches()[0] <= 7.0 and legible


def test_names_are_unique():
    names = [kind.name for _, kind in EXPERIMENTS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", dict.fromkeys(theory for theory, _ in EXPERIMENTS))
def test_the_record_is_complete(name: str):
    kinds = [(theory, kind) for theory, kind in EXPERIMENTS if theory == name]
    each_case(("theory", "kind"), kinds, ids=[kind.name for _, kind in kinds])(is_complete)()


def is_complete(theory: str, kind: type[Experiment]):
    assert kind.name.startswith(f"{theory}.")
    assert (kind.__doc__ or "").strip()
    assert not (kind.__doc__ or "").startswith(f"{kind.__name__}("), (
        "the docstring is the one that dataclass made"
    )
    assert kind.sources
    assert all(isinstance(source, Source) for source in kind.sources)
    assert is_dataclass(kind)
    assert isinstance(kind(), kind), "every setting must have a default"


@every_experiment
def test_it_runs_is_stored_and_drawn_and_the_seed_decides(
    theory: str, kind: type[Experiment], tmp_path, request, caplog
):
    torch.manual_seed(1)
    state, numpy_state = torch.get_rng_state(), np.random.get_state()[1]
    started = time.process_time()
    result = small(kind).run()
    seconds = time.process_time() - started
    print(f"{kind.name}: {seconds:.2f} s")
    assert torch.equal(state, torch.get_rng_state()), "torch's global generator was used"
    assert np.array_equal(numpy_state, np.random.get_state()[1]), "numpy's global generator was used"
    assert result.name == kind.name
    assert result.table
    assert all(row.theory == theory and row.kind == "figure" for row in result.table)
    assert all(row.quantity.strip() for row in result.table)
    assert all(row.source for row in result.table if row.threshold is not None), (
        "a threshold without a source"
    )
    if kind.name != "crate.layers":  # five steps of training change too little for its inequalities
        assert set(result.table.column("verdict")) <= {None, "consistent", "not covered", "holds", "fails"}
    assert json.loads(json.dumps(result.settings)) == result.settings

    stored = Result.load(result.save(tmp_path / "result"))
    assert stored.table == result.table
    assert stored.settings == result.settings
    assert stored.sources == result.sources
    assert stored.arrays.keys() == result.arrays.keys()
    assert all(
        np.array_equal(stored.arrays[name], result.arrays[name], equal_nan=True) for name in result.arrays
    )
    with caplog.at_level(logging.WARNING):
        figure = small(kind).plot(stored)
        assert isinstance(figure, matplotlib.figure.Figure)
        figure.set_dpi(72)  # that of an SVG, which is drawn first: the text then lies where it was drawn
        written = svg(figure)
        assert not cut_off(figure)
    assert not caplog.records
    assert not re.search(r"stroke-dasharray:\s*[;\"]", written), (
        "strict readers draw no line whose dashes are empty"
    )
    if theory == "attention_svm":
        assert fits_a_page(figure)
    if theory in ("attention_svm", "joma", "scan_snap"):
        assert not borrowed(figure, theory), "a theory's colour stands for something else"

    if seconds < REPEATED:
        request.getfixturevalue("unchecked")  # the first run has checked the shapes
        torch.manual_seed(2)
        assert small(kind).run().table == result.table
