"""Theories of transformers: what each predicts, what is measured on data and in networks, and where the two
agree.

    import transformer_theory as tt

    result = tt.compare(tt.data.load("digits"))     # every theory on the same data and trained networks
    result.plot()                                   # one figure; tt.figures(result) has all of them
    result.report("runs/digits")                    # the page with everything, which a notebook shows
    result.to_pandas()                              # the numbers
    tt.measure(network, inputs, labels).report()    # every theory in a network of your own
    print(tt.verify("attention_svm/global-direction"))    # one claim, with a control that must fail
    tt.reach("crate", seeds=2, until="full block")  # how far a theory extends as assumptions are relaxed
    print(tt.cite("crate"))                         # BibTeX

:func:`list_theories` names the theories; they share data, metrics, models, probes and training. All names are
imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

from .core.presentation import present_with

present_with(lambda: import_module(".report", __name__))  # pyright: ignore[reportArgumentType] - a module has the functions

if TYPE_CHECKING:
    from . import data, metrics, models
    from .comparison import compare
    from .comparison.interventions import intervene
    from .comparison.reach import reach
    from .comparison.user_models import measure
    from .core.claims import Claim, Verification, claim
    from .core.experiment import Experiment
    from .core.ladder import Ladder, Rung
    from .core.measurement import Measurement, Null
    from .core.metric import Activations, Metric
    from .core.result import Result
    from .core.sources import Source
    from .core.theory import InNetworks, OnData, Theory
    from .data import TokenData
    from .probes import activations, probe, respond
    from .report.figures import figures
    from .theories import (
        attention_svm,
        bottleneck,
        chain_of_thought,
        cite,
        collapse,
        crate,
        experiment,
        graph_tokens,
        in_context,
        induction,
        joma,
        length,
        list_theories,
        particles,
        random_features,
        rate_reduction,
        router,
        scan_snap,
        theory,
        turing,
        universal,
        verify,
        vision,
    )
    from .training.image import train

_MODULES = ("data", "metrics", "models")
_FROM = {
    "comparison": ("compare",),
    "comparison.interventions": ("intervene",),
    "comparison.reach": ("reach",),
    "comparison.user_models": ("measure", "probe_model"),
    "core.claims": ("Claim", "Measured", "Verification", "claim"),
    "core.experiment": ("Experiment",),
    "core.errors": ("Infeasible", "NotConverged"),
    "core.intervention": ("Intervention",),
    "core.ladder": ("Ladder", "Rung"),
    "core.measurement": ("Measurement", "Null"),
    "core.metric": ("Activations", "Metric"),
    "core.result": ("Result",),
    "core.sources": ("Source",),
    "core.theory": ("InNetworks", "OnData", "Theory"),
    "data": ("TokenData",),
    "probes": ("activations", "probe", "respond"),
    "report.figures": ("figures",),
    "theories": ("cite", "experiment", "list_theories", "theory", "verify"),
    "training.image": ("train",),
}
_MODULE_OF = {name: module for module, names in _FROM.items() for name in names}

__all__ = [
    "Activations",
    "Claim",
    "Experiment",
    "InNetworks",
    "Ladder",
    "Measurement",
    "Metric",
    "Null",
    "OnData",
    "Result",
    "Rung",
    "Source",
    "Theory",
    "TokenData",
    "Verification",
    "__version__",
    "activations",
    "attention_svm",
    "bottleneck",
    "chain_of_thought",
    "cite",
    "claim",
    "collapse",
    "compare",
    "crate",
    "data",
    "experiment",
    "figures",
    "graph_tokens",
    "in_context",
    "induction",
    "intervene",
    "joma",
    "length",
    "list_theories",
    "measure",
    "metrics",
    "models",
    "particles",
    "probe",
    "random_features",
    "rate_reduction",
    "reach",
    "respond",
    "router",
    "scan_snap",
    "theory",
    "train",
    "turing",
    "universal",
    "verify",
    "vision",
]


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        value = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    elif name in _MODULES:
        value = import_module(f".{name}", __name__)
    elif name in import_module(".theories", __name__).THEORIES:
        value = import_module(f".theories.{name}", __name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *import_module(".theories", __name__).THEORIES})
