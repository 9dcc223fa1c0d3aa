"""Figures as functions of coordinates: settings, rows, references and seeds; views draw the rows alone."""

import dataclasses

import numpy as np
import pytest
from matplotlib.colors import to_hex

from transformer_theory.core.experiment import Experiment, setting
from transformer_theory.core.figure import (
    Axis,
    Panel,
    bands,
    curves,
    figure,
    matrix,
    mean,
    reading,
    scatter,
    share,
    size_map,
    with_range,
)
from transformer_theory.core.measurement import Measurement, Null
from transformer_theory.core.plotting import TINTS, colour
from transformer_theory.core.result import Result
from transformer_theory.core.sources import Source
from transformer_theory.core.table import Arrays, Table

SOURCE = Source("tian2023scan", "Fig. 3")
MEAN_AND_ENDS = {"distance": 1.0, "smallest of distance": 0.0, "largest of distance": 2.0}


@figure(
    "scan_snap.squares",
    source=SOURCE,
    over={"n": Axis(1, 2, 3, setting="sizes", ge=1, help="sizes"), "scale": Axis(1.5, 2.5)},
    where=lambda n: n < 3,
    reference=lambda n, scale: 4.0 if n == 2 else None,
    basis="printed",
    quantity="square",
    view=curves("n", panels=(Panel("Squares", lines="scale"),), caption="Power {power}."),
    quick={"sizes": (1, 2)},
)
def squares(n: int, scale: float, *, power: int = setting(2, ge=1, help="exponent")) -> float:
    """Powers of small numbers."""
    return float(n**power)


@figure("scan_snap.seeds", source=SOURCE, over={"n": Axis(1, 2, 3)}, view=curves("n", panels=(Panel(),)))
def seeds(n: int, *, seed: int = 0) -> list:
    """The seed of each call."""
    return [
        reading("seed", seed, reference=(1.0, "limit")),
        share("even", [seed % 2 == 0] * 4, at={"of": "seed"}),
    ]


@figure(
    "scan_snap.one_seed", source=SOURCE, over={"n": Axis(1, 2)}, quantity="seed", view=lambda result: None
)
def one_seed(n: int, *, seed: int = setting(3, help="seed of every call")) -> int:
    """The same seed in every call."""
    return seed


@figure("scan_snap.orbit", source=SOURCE, view=curves("step", panels=(Panel(),)), quick={"steps": 2})
def orbit(*, steps: int = setting(3, ge=1, help="number of steps"), seed: int = 0):
    """Readings, a row and an array of one call."""
    yield reading("start", seed)
    for step in range(steps):
        yield with_range(mean("distance", (step, step + 2.0), step=step), (step, step + 2))
    yield row("a row", 1.0, at={"T": 2})
    yield Arrays({"picture": np.eye(2)})


def test_a_function_becomes_an_experiment_with_its_axes_and_keywords_as_settings():
    assert issubclass(squares, Experiment)
    assert squares() == squares(sizes=(1, 2, 3), scale=(1.5, 2.5), power=2)
    assert squares.quick() == squares(sizes=(1, 2))
    assert squares.__doc__ == "Powers of small numbers."
    assert [field.metadata["help"] for field in dataclasses.fields(squares)] == ["sizes", "", "exponent"]
    assert squares.seed is None
    assert squares.sweep.function(3, 1.5) == 9.0  # the defaults are the numbers, not their declarations
    with pytest.raises(ValueError, match="sizes must be a tuple of integers at least 1"):
        squares(sizes=(0,))


@pytest.mark.parametrize("workers", [None, 2])
def test_rows_carry_their_coordinates(workers):
    result = squares().run(workers=workers)
    assert [(dict(row.at), row.value) for row in result.table] == [
        ({"n": n, "scale": scale}, n**2.0) for n in (1, 2) for scale in (1.5, 2.5)
    ]
    assert {(row.theory, row.kind, row.quantity, row.source) for row in result.table} == {
        ("scan_snap", "figure", "square", SOURCE)
    }
    assert not result.arrays


def test_published_numbers_hold_at_the_default_settings_only():
    assert squares().run().table.column("predicted") == [None, None, 4.0, 4.0]
    assert squares(sizes=(2,)).run().table.column("predicted") == [4.0, 4.0]  # an axis may change
    assert squares(sizes=(2, 2)).run().table.column("predicted") == [4.0, 4.0]  # a repetition adds nothing
    assert squares(power=3).run().table.column("predicted") == [None] * 4
    assert seeds(seed=2).run().table.column("predicted")[::2] == [1.0] * 3  # a limit always holds


def test_every_call_has_its_own_seed_unless_it_is_declared():
    assert seeds(seed=2).run().select(quantity="seed").column("value") == [6, 7, 8]
    assert one_seed(seed=2).run().table.column("value") == [2, 2]
    assert one_seed().run().table.column("value") == [3, 3]  # its default is the declared one


@pytest.mark.parametrize("workers", [None, 2])
def test_a_function_without_axes_is_called_once(workers):
    result = orbit(steps=2, seed=5).run(workers=workers)
    assert [(one.quantity, one.step, one.value) for one in result.table] == [
        ("start", None, 5.0),
        *((name, step, value + step) for step in (0, 1) for name, value in MEAN_AND_ENDS.items()),
        ("a row", None, 1.0),
    ]
    assert (orbit.quick(), result.settings["seed"]) == (orbit(steps=2), 5)
    assert result.arrays["picture"].tolist() == [[1, 0], [0, 1]]


def test_a_mean_has_the_interval_of_student_and_its_ends_have_none():
    one, low, high = with_range(mean("gain", (1.0, 2.0, 6.0), "seeds", side=">=", at={"n": 2}), (1, 2, 6))
    half = 4.302653 * (7 / 3) ** 0.5  # t of two degrees of freedom times the error of the mean, root of 7 / 3
    assert (one.value, one.columns["n"], one.columns["interval_kind"]) == (3.0, 3, "over seeds")
    assert one.columns["interval"] == pytest.approx((3 - half, 3 + half))
    assert (low.value, high.value) == (1.0, 6.0)
    assert low.columns == high.columns == {"n": 3, "at": {"n": 2}}
    assert "interval" not in mean("gain", [1.0]).columns


def test_a_reading_with_a_bound_has_the_verdict():
    kept = reading("gap", 0.5, at_most=1.0, n=3)
    assert kept.columns == {"op": "<=", "threshold": 1.0, "verdict": "consistent", "n": 3}
    assert reading("gap", 2.0, at_most=1.0).columns["verdict"] == "violated"
    assert reading("gap", 0.5, at_least=1.0, covered=False).columns["verdict"] == "not covered"


def test_a_spread_hides_the_intervals():
    """The interval of a mean of two values may be so wide that the curve would look flat."""
    rows = [row("loss", 1.0, step=1, interval=(-90.0, 90.0), interval_kind="over seeds")]
    rows += [row("loss", 2.0, step=2), row("spread of loss", 0.5, step=1), row("spread of loss", 0.5, step=2)]
    (ax,) = bands(panels=(Panel(quantity="loss"),), spread="spread")(result_of(rows)).axes
    assert -1 < ax.get_ylim()[0] < ax.get_ylim()[1] < 4
    (ax,) = bands(panels=(Panel(quantity="loss"),))(result_of(rows)).axes
    assert ax.get_ylim()[1] > 80


def test_axes_without_a_point_are_refused():
    with pytest.raises(ValueError, match=r"sizes, scale must have a combination that scan_snap\.squares"):
        squares(sizes=(3,)).run()


def test_a_share_has_its_interval_and_number_of_trials():
    row = seeds().run().select(quantity="even", at={"of": "seed", "n": 2}).one()
    assert (row.value, row.n, row.unit) == (0, 4, "share")
    assert row.interval == pytest.approx((0, 1 - 0.025**0.25))
    missing = share("none", 0, 0, reason="nothing settled")
    assert (missing.value, missing.columns["reason"], missing.columns["interval"]) == (
        None,
        "nothing settled",
        (0, 1),
    )


def result_of(rows) -> Result:
    return Result("scan_snap.made_up", {"trials": 7}, Table(rows))


def row(quantity: str, value: float | None, **columns) -> Measurement:
    return Measurement(
        "scan_snap", "figure", quantity, value, reason="" if value is not None else "none", **columns
    )


def test_curves_draw_lines_bands_and_published_numbers():
    drawn = squares().plot(squares().run())
    (ax,) = drawn.axes
    first, second, marks = ax.get_lines()
    assert (first.get_label(), second.get_label()) == ("scale = 1.5", "scale = 2.5")
    assert marks.get_xydata().tolist() == [[2, 4], [2, 4]]
    assert " ".join(drawn.get_supxlabel().split()) == "Power 2."
    rows = [row("share", 0.5, at={"n": n}, interval=(0.3, 0.8)) for n in (2, 1)]
    (ax,) = curves("n", panels=(Panel(),))(result_of(rows)).axes
    (line,) = ax.get_lines()
    assert line.get_xdata().tolist() == [1, 2]
    assert to_hex(line.get_color()).upper() == colour("scan_snap")
    (band,) = ax.collections
    assert band.get_paths()[0].get_extents().intervaly.tolist() == [0.3, 0.8]


def test_lines_are_chosen_ordered_and_layered():
    rows = [row("error", k, at={"run": run, "t": t}) for k, run in enumerate("abc") for t in (1.0, 2.0)]
    looks = {"c": {"label": "last"}, "a": {}}
    layers = (Panel("Errors", "error", lines=("run", looks)), Panel("", "error", {"run": "b"}))
    (ax,) = curves("t", panels=(layers,))(result_of(rows)).axes
    labels = [line.get_label() for line in ax.get_lines()]
    assert labels[:2] == ["last", "a"]
    assert len(labels) == 3
    assert [to_hex(line.get_color()).upper() for line in ax.get_lines()[:2]] == list(TINTS[:2])


def test_pairs_have_a_curve_each_in_the_colour_of_the_first_and_the_dashes_of_the_second():
    rows = [
        row("error", 1.0, at={"run": run, "d": d, "t": t}) for run in "ab" for d in (2, 3) for t in (1, 2)
    ]
    (ax,) = curves("t", panels=(Panel(lines=("run", "d")),))(result_of(rows)).axes
    drawn = [(to_hex(line.get_color()).upper(), line.get_label(), line.get_linestyle()) for line in ax.lines]
    assert drawn == [
        (tint, f"{run}, d = {d}", dashes)
        for run, tint in zip("ab", TINTS)
        for d, dashes in ((2, "-"), (3, ":"))
    ]


def test_every_pair_is_drawn_also_where_the_dashes_repeat():
    rows = [row("error", 1.0, at={"run": "a", "d": d, "t": t}) for d in range(6) for t in (1, 2)]
    (ax,) = curves("t", panels=(Panel(lines=("run", "d")),))(result_of(rows)).axes
    assert [line.get_label() for line in ax.lines] == [f"a, d = {d}" for d in range(6)]


def test_predictions_are_black_where_the_curves_share_them_and_coloured_elsewhere():
    def predicted(**of: dict[int, float]) -> list[tuple[str, str]]:
        rows = [
            row("error", 1.0, at={"run": run, "t": t}, predicted=number, basis="theory")
            for run, numbers in of.items()
            for t, number in numbers.items()
        ]
        (ax,) = curves("t", panels=(Panel(lines="run", predicted="theory"),))(result_of(rows)).axes
        return [(to_hex(line.get_color()), line.get_label()) for line in ax.lines[len(of) :]]

    tints = [(TINTS[0].lower(), "theory"), (TINTS[1].lower(), "_")]
    assert predicted(a={1: 1.0, 2: 2.0}, b={1: 1.0, 2: 2.0}) == [("#000000", "theory")]
    assert predicted(a={1: 1.0, 2: 2.0}, b={1: 1.0}) == [("#000000", "theory")]
    assert predicted(a={1: 1.0, 2: 2.0}, b={1: 1.0, 2: 3.0}) == tints
    assert predicted(a={1: 1.0, 3: 2.0}, b={2: 5.0, 4: 6.0}) == tints  # no shared place


def test_levels_are_numbers_or_values_of_quantities():
    rows = [row("error", 1.0, at={"t": t}) for t in (1, 2)] + [row("optimum", 0.25)]
    panel = Panel(quantity="error", levels={"chance": 0.5, "best": "optimum"})
    (ax,) = curves("t", panels=(panel,))(result_of(rows)).axes
    assert [(line.get_label(), line.get_ydata()[0]) for line in ax.lines[1:]] == [
        ("chance", 0.5),
        ("best", 0.25),
    ]


def test_bands_show_spread_and_null_distributions():
    rows = [row("loss", 2.0, step=step, nulls=(Null("untrained", (3.0, 4.0)),)) for step in (0, 10)]
    rows += [row("deviation of loss", 0.5, step=step) for step in (0, 10)]
    (ax,) = bands(panels=(Panel(quantity="loss"),), spread="deviation")(result_of(rows)).axes
    extents = [band.get_paths()[0].get_extents().intervaly.tolist() for band in ax.collections]
    assert extents == [[1.5, 2.5], [3.0, 4.0]]
    rows += [
        row(f"{end} of loss", value, step=s) for end, value in (("low", 1.0), ("high", 5.0)) for s in (0, 10)
    ]
    (ax,) = bands(panels=(Panel(quantity="loss"),), spread=("low", "high"))(result_of(rows)).axes
    assert ax.collections[0].get_paths()[0].get_extents().intervaly.tolist() == [1.0, 5.0]


def test_maps_show_values_with_their_intervals():
    cells = {(2, 3): 0.25, (2, 4): None, (5, 3): 1.0}
    rows = [
        row("share", value, unit="share", at={"n": n, "T": T, "d": 6}, interval=(0.05, 1.0))
        for (n, T), value in cells.items()
    ]
    view = size_map("n", "T", "d", quantities={"share": "feasible"}, names={"n": "inputs", "T": "tokens"})
    (ax,) = view(result_of(rows)).axes
    assert sorted(text.get_text() for text in ax.texts) == [".25\n±.75", "1.00\n±.95", "–", "–"]
    assert np.isnan(np.asarray(ax.images[0].get_array(), dtype=float)).sum() == 2
    rows = [row("entropy", float(k), at={"K": k, "rate": rate}) for k in (1, 2) for rate in (0.1, 0.2)]
    ax, bar = matrix("K", "rate", panels=(Panel("Entropy"),))(result_of(rows)).axes
    assert np.asarray(ax.images[0].get_array()).tolist() == [[1, 1], [2, 2]]
    assert bar.get_label() == "<colorbar>"


def test_points_pair_quantities_at_the_same_place():
    rows = [
        row(name, value * n, at={"n": n}) for name, value in (("norm", 1.0), ("gap", 2.0)) for n in (1, 2)
    ]
    rows.append(row("gap", 9.0, at={"n": 3}))  # has no norm
    (ax,) = scatter("norm", "gap", panels=(Panel(),))(result_of(rows)).axes
    assert ax.get_lines()[0].get_xydata().tolist() == [[1, 2], [2, 4]]
    rows = [row("gap", 2.0, predicted=1.0), row("gap", 5.0)]
    (ax,) = scatter("predicted", "gap", panels=(Panel(),))(result_of(rows)).axes
    assert ax.get_lines()[0].get_xydata().tolist() == [[1, 2]]


def test_a_result_without_coordinates_must_be_run_again():
    rows = [row("error", 1.0, at={"setting": "n=2, T=3"})]
    with pytest.raises(ValueError, match=r"rows of the panels of scan_snap\.made_up, got none; run it again"):
        curves("n", panels=(Panel(at={"T": 3}),))(result_of(rows))
