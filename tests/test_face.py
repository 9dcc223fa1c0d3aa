"""The public face: the names others rely on, the registry behind them, and what an import costs."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import transformer_theory as tt
from transformer_theory.core.claims import Claim, Verification
from transformer_theory.core.experiment import Experiment
from transformer_theory.core.sources import entries, software
from transformer_theory.core.theory import Theory
from transformer_theory.theories import THEORIES, claim, claims, experiment, theory

ROOMS = sorted(path.parent.name for path in (Path(tt.__file__).parent / "theories").glob("*/__init__.py"))


def test_the_registry_is_a_plain_tuple_of_every_room():
    assert type(THEORIES) is tuple
    assert sorted(record.name for record in THEORIES) == ROOMS
    assert len(ROOMS) >= 4
    assert tt.theories() is THEORIES
    assert all(isinstance(record, Theory) for record in THEORIES)
    assert all(getattr(tt, record.name).THEORY is record for record in THEORIES)


WAYS = (  # each list begins where nothing of the library has been imported; ROOMS stands for the number of rooms
    (
        "import transformer_theory as tt; assert len(tt.theories()) == ROOMS",
        "import transformer_theory as tt; from transformer_theory.theories import crate; assert len(tt.theories()) == ROOMS",
        "from transformer_theory import attention_svm, scan_snap, rate_reduction, crate, metrics, models, theories; assert theories()",
        "from transformer_theory import *; assert len(theories()) == ROOMS and callable(compare)",
    ),
    (
        "from transformer_theory.theories import THEORIES; import transformer_theory as tt; assert tt.theories() is THEORIES",
        "import transformer_theory.theories; import transformer_theory as tt; assert len(tt.theories()) == ROOMS",
    ),
    ("import transformer_theory.theories.crate.problem; import transformer_theory as tt; assert len(tt.theories()) == ROOMS",),
    (
        "from transformer_theory.compare import choose; import transformer_theory as tt; assert callable(tt.compare) and callable(choose)",
        "import transformer_theory.cli, transformer_theory.compare; import transformer_theory as tt; assert len(tt.theories()) == ROOMS",
    ),
)


def test_compare_keeps_its_signature():
    parameters = inspect.signature(tt.compare).parameters
    assert list(parameters)[:2] == ["data", "theories"]
    assert all(parameters[name].kind is parameters[name].KEYWORD_ONLY for name in ("seed", "steps", "device", "progress"))


def test_every_exported_name_exists_and_is_explained():
    assert sorted(tt.__all__) == sorted(set(tt.__all__))
    for name in tt.__all__:
        assert name == "__version__" or (getattr(tt, name).__doc__ or "").strip(), name


LAZY = ("cvxpy", "scipy", "sklearn", "matplotlib", "joblib", "distributed", "jinja2", "latex2mathml", "rich", "pandas", "threadpoolctl")
LAZY += ("beartype", "lightning_fabric", "pytorch_lightning", "transformers", "accelerate", "safetensors", "PIL", "pooch")


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> list[str]:
    """What a fresh process tells of an import: a line of what is new, one of what should be late, then a line for each way that fails."""
    code = f"""
import sys, warnings, torch, numpy, einops, jaxtyping
sys.dont_write_bytecode, sys.pycache_prefix = False, {str(tmp_path_factory.mktemp("compiled"))!r}  # it imports several times
warnings.simplefilter("error")

def settings():
    return torch.get_rng_state().tolist(), torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled()

before, settings_before = set(sys.modules), settings()
import transformer_theory as tt
assert settings() == settings_before
new = {{name.split('.')[0] for name in set(sys.modules) - before}} - sys.stdlib_module_names
print(sorted(new - {{'torch', 'numpy', 'einops', 'jaxtyping', '_distutils_hack'}}))
assert tt.data.load and tt.theories() and tt.compare and tt.verify and tt.probe and tt.cite and tt.__version__
from transformer_theory import attention_svm, scan_snap, rate_reduction, crate, metrics, models
assert attention_svm.THEORY.name == 'attention_svm' and models.CRATE and metrics.rate_reduction
import transformer_theory.cli
print(sorted(set(sys.modules) & set({LAZY!r})))
for ways in {WAYS!r}:
    for name in [name for name in sys.modules if name.split('.')[0] == 'transformer_theory']:
        del sys.modules[name]
    for way in ways:
        try:
            exec(way.replace('ROOMS', '{len(ROOMS)}'), {{}})
        except Exception as error:
            print(way, '->', type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_an_import_brings_only_what_it_needs_and_changes_nothing(told):
    assert told[:2] == ["['transformer_theory']", "[]"]


def test_theories_is_the_function_however_it_is_reached(told):
    assert told[2:] == []


def test_names_find_their_records():
    for record in THEORIES:
        assert theory(record.name) is record
        assert claims(record.name) == record.claims
        for found in record.claims:
            assert isinstance(found, Claim)
            assert claim(found.id) is found
            assert claims(found.id) == (found,)
        for kind in record.experiments:
            assert issubclass(kind, Experiment)
            assert experiment(kind.name) is kind
    assert len(claims("all")) == sum(len(record.claims) for record in THEORIES)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory("crat"), "unknown theory 'crat'; did you mean 'crate'"),
        (lambda: claim("attention_svm/global-directions"), "did you mean 'attention_svm/global-direction'"),
        (lambda: claims("scansnap"), "unknown claim or theory 'scansnap'; did you mean 'scan_snap'"),
        (lambda: experiment("zzzzz"), r"unknown experiment 'zzzzz'; the nearest of \d+ are: .*; `transformer-theory list` shows all$"),
        (
            lambda: experiment("crate"),
            "run takes one experiment, got the theory 'crate'; its experiments are crate.unrolled",
        ),
        (lambda: experiment("attention_svm"), r"its experiments are (attention_svm\.\w+, ){5}\.\.\. \(15\)$"),
        (lambda: claims("foo"), "unknown claim or theory 'foo'; the nearest of "),
        (lambda: tt.cite("foo"), "`transformer-theory list` with references.bib shows all$"),
        (lambda: tt.verify("attention_svm/globaldirection"), "did you mean 'attention_svm/global-direction'"),
        (lambda: tt.verify("crate"), "verify takes one claim, got the theory 'crate'; its claims are crate/"),
        (lambda: tt.cite("rate_reductio"), "did you mean 'rate_reduction'"),
        (lambda: tt.verify(THEORIES[0].claims[0].id, seeds=()), "seeds must name at least one seed"),
    ],
)
def test_unknown_names_get_the_nearest(call, message):
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_verify_gives_a_verdict():
    verdict = tt.verify("attention_svm/global-direction", seeds=range(1))
    assert isinstance(verdict, Verification)
    assert verdict.seeds == (0,)


def test_cite_takes_theories_claims_and_keys():
    for record in THEORIES:
        text = tt.cite(record.name)
        assert all(entries()[source.key] in text for source in record.sources)
        for found in record.claims:
            assert tt.cite(found.id) == f"{entries()[found.source.key]}\n\n{software()}"
    for key, entry in entries().items():
        assert tt.cite(key) == f"{entry}\n\n{software()}"
    assert tt.cite("crate").startswith("@")
    assert tt.cite("software") == software()


def test_the_version_is_the_packages():
    from importlib.metadata import version

    assert tt.__version__ == version("transformer-theory")


def test_names_are_shown_whole_where_they_are_to_be_copied(capsys):
    from transformer_theory.cli import main

    assert main(["list"]) == 0
    shown = capsys.readouterr().out.split()
    for record in THEORIES:
        assert {found.id for found in record.claims} <= set(shown)
        assert {kind.name for kind in record.experiments} <= set(shown)
