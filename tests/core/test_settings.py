"""Settings of experiments: values out of range are refused by name before anything is measured; ``--help``
shows text and range.
"""

import math
from dataclasses import dataclass, fields, replace

import pytest

from tests.cases import each_case
from transformer_theory.cli import main
from transformer_theory.core.experiment import Experiment, RandomExperiment, range_text, setting, settings_of
from transformer_theory.theories import list_theories
from transformer_theory.training.image.settings import Settings

EXPERIMENTS = [kind for theory in list_theories() for kind in theory.experiments]
every_experiment = pytest.mark.parametrize("kind", EXPERIMENTS, ids=lambda kind: kind.name)


def out_of_range(field):
    """Values just beyond each limit of a field."""
    whole = isinstance(field.default[0] if isinstance(field.default, tuple) else field.default, int)
    for name, limit in field.metadata["limits"].items():
        yield {"ge": limit - 1, "gt": limit, "le": limit + 1, "lt": limit, "multiple_of": 10 * limit + 1}[
            name
        ]
    yield from [0.5] if whole else [math.nan, math.inf, -math.inf]


@every_experiment
def test_every_field_has_a_text_and_a_range_and_refuses_what_is_beyond(kind: type[Experiment], unchecked):
    assert all(field.metadata["help"] for field in fields(kind))
    assert all(field.metadata.get("limits") for field in fields(kind) if not isinstance(field.default, str))
    assert kind.seed is None or "seed" in [field.name for field in settings_of(kind)]
    for field in settings_of(kind):
        if isinstance(field.default, str):
            continue
        for value in out_of_range(field):
            given = (*field.default, value) if isinstance(field.default, tuple) else value
            with pytest.raises(
                ValueError, match=rf"^{field.name} must be an? .*{range_text(field)}, got .*{value}"
            ):
                replace(kind(), **{field.name: given})
        if isinstance(field.default, tuple):
            with pytest.raises(ValueError, match=rf"^{field.name} must be a tuple of .*, got \(\); "):
                replace(kind(), **{field.name: ()})


@dataclass(frozen=True)
class Worded(Experiment):
    """An experiment with a text among its settings."""

    word: str = setting("1011", help="the input")


def test_a_text_must_be_a_text():
    assert Worded(word="").word == ""
    with pytest.raises(
        ValueError, match=r"^word must be a text, got 3; give a text, or leave it out \(default: '1011'\)"
    ):
        Worded(word=3)


@every_experiment
def test_help_shows_texts_ranges_and_the_seed_where_random_numbers_are_drawn(kind, tmp_path, capsys):
    assert main(["run", kind.name, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    drawn = issubclass(kind, RandomExperiment)
    assert ("--seed" in shown) == drawn == ("seed" in [field.name for field in fields(kind)])
    for field in settings_of(kind):
        values = field.default if isinstance(field.default, tuple) else (field.default,)
        default = " ".join(f"{value:.6g}" if isinstance(value, float) else str(value) for value in values)
        text = "; ".join(filter(None, (field.metadata["help"], range_text(field))))
        assert f"{text} (default: {default})" in shown
    if not drawn:
        assert main(["run", kind.name, "--quick", "--seed", "1", "--out", str(tmp_path / "run")]) == 2
        assert "--seed" in capsys.readouterr().err
        assert not list(tmp_path.iterdir())


@each_case(
    ("name", "option", "values"),
    [
        ("rank", "feasible", ["0"]),
        ("rank", "official", ["-1"]),
        ("multi_token", "dims", ["4", "-1"]),
        ("multi_token", "every", ["0"]),
        ("mirror", "powers", ["1e300", "2", "3"]),
        ("mirror", "steps", ["5"]),
        ("multi_token", "every", ["100000"]),
        ("long_run", "naive-steps", ["-1"]),
        ("long_run", "rate", ["1e300"]),
        ("probability_map", "threshold", ["nan"]),
        ("long_run", "dim", ["1"]),  # unit tokens of one dimension are equal or opposite
        ("trajectories", "scale", ["0"]),
        ("multi_input", "plain-rate", ["1e300"]),
        ("graph", "seed", ["99999999999999999999"]),
    ],
)
def test_the_command_line_prints_one_line_and_writes_nothing(
    name: str, option: str, values: list[str], tmp_path, capsys, unchecked
):
    out = tmp_path / "deep" / "run"
    assert main(["run", f"attention_svm.{name}", "--quick", f"--{option}", *values, "--out", str(out)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"transformer-theory: --{option} must ")
    assert ", got " in line
    assert not list(tmp_path.iterdir())


@dataclass(frozen=True)
class Free(RandomExperiment):
    """A plain field, a setting without a range, and one with a limit that no short decimal writes."""

    anything: float = math.inf
    share: float = setting(0.5, help="50 % of all")
    fine: float = setting(0.5, gt=1e-12, lt=1)

    name = "test.free"


def test_undeclared_fields_are_not_checked(unchecked):
    assert Free(anything=math.nan).run is not None
    assert [range_text(field) for field in settings_of(Free)] == [
        "at least 0 and at most 4294967295",
        "",
        "above 1e-12 and below 1",
    ]
    for wrong in (math.inf, "0.5", None, True, (0.5,)):
        with pytest.raises(
            ValueError,
            match=r"^share must be a finite number, got .*; give such a value, or leave it out \(default: "
            r"0\.5\)",
        ):
            Free(share=wrong)  # pyright: ignore[reportArgumentType]
    assert Free(share=3, fine=1e-11).share == 3


@pytest.mark.parametrize("kind", [Free, Settings])
def test_a_seed_is_one_of_numpy(kind):
    """Which takes 32 bits; torch takes more."""
    assert kind(seed=2**32 - 1).seed == 2**32 - 1
    with pytest.raises(ValueError, match="seed must be an integer"):
        kind(seed=2**32)
