"""The public package: the names others rely on, the registry behind them, and what an import costs."""

import inspect
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

import transformer_theory as tt
from tests.cases import each_case
from transformer_theory.cli import catalogue
from transformer_theory.core.claims import Claim, Verification
from transformer_theory.core.experiment import Experiment
from transformer_theory.core.sources import entries, portable, software
from transformer_theory.core.theory import Theory
from transformer_theory.theories import THEORIES, claim, claims, experiment, list_theories, theory


def test_the_registry_lists_every_theory():
    assert type(THEORIES) is tuple
    assert tuple(record.name for record in list_theories()) == THEORIES
    assert all(isinstance(record, Theory) for record in list_theories())
    assert all(getattr(tt, name).THEORY.name == name for name in THEORIES)
    assert tt.list_theories() is list_theories()


def test_compare_keeps_its_signature():
    parameters = inspect.signature(tt.compare).parameters
    assert list(parameters)[:2] == ["data", "theories"]
    assert all(
        parameters[name].kind is parameters[name].KEYWORD_ONLY
        for name in ("seeds", "claim_seeds", "steps", "device", "progress")
    )


def test_every_exported_name_exists_and_is_documented():
    assert sorted(tt.__all__) == sorted(set(tt.__all__))
    assert set(tt.__all__) >= set(THEORIES)
    assert len(set(tt.__all__) - {*THEORIES, "data", "metrics", "models", "__version__"}) <= 30
    assert set(tt.__all__) <= set(dir(tt))
    for name in tt.__all__:
        assert name == "__version__" or (getattr(tt, name).__doc__ or "").strip(), name
    with pytest.raises(AttributeError, match="nothing"):
        _ = tt.nothing


IMPORTS = (
    *(
        f"import transformer_theory.theories.{name} as one; assert one.THEORY.name == {name!r}"
        for name in THEORIES
    ),
    "import importlib, transformer_theory as tt; assert all(getattr(tt, name) is "
    f"importlib.import_module('transformer_theory.theories.' + name) for name in {THEORIES!r})",
    "from transformer_theory import attention_svm, scan_snap, joma, rate_reduction, crate, metrics, models; "
    "assert models.CRATE",
    "from transformer_theory import *; assert len(list_theories()) == NUMBER and callable(compare)",
    "import transformer_theory.cli, transformer_theory.comparison; import transformer_theory as tt; assert "
    "callable(tt.compare)",
)
LATE = (
    "cvxpy",
    "scipy",
    "sklearn",
    "matplotlib",
    "joblib",
    "distributed",
    "jinja2",
    "latex2mathml",
    "rich",
    "pandas",
    "threadpoolctl",
)
LATE += (
    "beartype",
    "lightning_fabric",
    "pytorch_lightning",
    "transformers",
    "accelerate",
    "safetensors",
    "PIL",
    "pooch",
    "networkx",
    "IPython",
)


def test_an_import_is_cheap_and_changes_nothing():
    """In a fresh process: heavy libraries are loaded where they are used, and the command line is not loaded
    at all.
    """
    code = f"""
import sys, warnings, torch
warnings.simplefilter("error")

def settings():
    return torch.get_rng_state().tolist(), torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled()

before = settings()
import transformer_theory as tt
assert tt.data.load and tt.list_theories() and tt.compare and tt.verify and tt.probe and tt.cite and tt.__version__
assert settings() == before
print(sorted(set(sys.modules) & set({LATE!r})))
print(sorted(name for name in sys.modules if name.startswith("transformer_theory.cli")))
for code in {IMPORTS!r}:
    for name in [name for name in sys.modules if name.split('.')[0] == 'transformer_theory']:
        del sys.modules[name]
    exec(code.replace('NUMBER', '{len(THEORIES)}'), {{}})
"""  # noqa: E501
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[]", "[]"]


def test_the_package_is_typed():
    """A type checker reads the annotations of an installed package only if it holds py.typed."""
    root = Path(tt.__file__).parent
    assert (root / "py.typed").is_file()
    settings = tomllib.loads((root.parent / "pyproject.toml").read_text(encoding="utf-8"))
    assert "py.typed" in settings["tool"]["setuptools"]["package-data"]["transformer_theory"]


def test_names_find_their_records():
    for record in list_theories():
        assert theory(record.name) is record
        assert claims(record.name) == record.claims
        for one in record.claims:
            assert isinstance(one, Claim)
            assert claim(one.id) is one
            assert claims(one.id) == (one,)
        for kind in record.experiments:
            assert issubclass(kind, Experiment)
            assert experiment(kind.name) is kind
    assert len(claims("all")) == sum(len(record.claims) for record in list_theories())


@each_case(
    ("call", "message"),
    [
        (lambda: theory("crat"), "'crat'; did you mean 'crate'"),
        (lambda: claim("attention_svm/global-directions"), "did you mean 'attention_svm/global-direction'"),
        (lambda: claims("scansnap"), "'scansnap'; did you mean 'scan_snap'"),
        (
            lambda: experiment("zzzzz"),
            r"'zzzzz'; none of the \d+ known names is similar; `transformer-theory list` shows them$",
        ),
        (
            lambda: catalogue.list_theories(SimpleNamespace(name="nosuch")),
            r"'nosuch'; none of the \d+ known names is similar; `transformer-theory list` shows them$",
        ),
        (
            lambda: claim("joma/foo"),
            r"'joma/foo'; the nearest of \d+ are: (joma/[\w-]+, ){4}joma/[\w-]+; `transformer-theory list` "
            r"shows all$",
        ),
        (lambda: experiment("crate"), r"the theory 'crate'; its experiments are crate\.\w+, "),
        (lambda: experiment("attention_svm"), r"(attention_svm\.\w+, ){5}\.\.\. \(\d+\)$"),
        (lambda: claims("zzzzz"), "'zzzzz'; none of the "),
        (
            lambda: tt.cite("zzzzz"),
            "none of .* is similar; `transformer-theory list` with references.bib shows them$",
        ),
        (lambda: tt.verify("attention_svm/globaldirection"), "did you mean 'attention_svm/global-direction'"),
        (lambda: tt.verify("crat"), "unknown claim or theory 'crat'; did you mean 'crate'"),
        (lambda: tt.verify([]), "verify takes at least one claim or theory, got none"),
        (lambda: tt.cite("rate_reductio"), "did you mean 'rate_reduction'"),
        (lambda: tt.verify(list_theories()[0].claims[0].id, seeds=()), "seeds"),
    ],
)
def test_unknown_names_get_the_nearest(call, message):
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_verify():
    result = tt.verify("attention_svm/global-direction", seeds=range(1))
    assert isinstance(result, Verification)
    assert result.seeds == (0,)
    assert (result.verdict, result.control) == ("consistent", "fails")


def test_verify_takes_names_of_theories_and_lists():
    outcomes = tt.verify(["joma/gradient", "joma/gradient", "joma/blow-up"], seeds=1)
    assert [outcome.id for outcome in outcomes] == ["joma/gradient", "joma/blow-up"]


def test_cite_takes_theories_claims_and_keys():
    for record in list_theories():
        text = tt.cite(record.name)
        assert all(portable(entries()[source.key]) in text for source in record.sources)
        for one in record.claims:
            cited = dict.fromkeys(source.key for source in (one.source, one.corrected) if source)
            assert tt.cite(one.id) == "\n\n".join([*(portable(entries()[key]) for key in cited), software()])
            assert all(portable(entries()[key]) in text for key in cited)
    for key, entry in entries().items():
        assert tt.cite(key) == f"{portable(entry)}\n\n{software()}"
    assert tt.cite("software") == software()


def test_the_version_is_the_packages():
    from importlib.metadata import version

    assert tt.__version__ == version("transformer-theory")
