"""Theories of transformers, side by side: what each predicts, what really happens on the same data, and where the two agree.

    import transformer_theory as tt

    result = tt.compare(tt.data.load("digits"))                # every theory on the same data and the same trained networks
    print(tt.verify("attention_svm/global-direction"))         # one claim, with a control that must fail
    print(tt.cite("crate"))                                    # BibTeX

Rooms (one theory each): attention_svm, scan_snap, joma, rate_reduction, crate. Ground: data, metrics, models, attention, linalg, probes.
The name ``theories`` is the function; its package is reached by ``from transformer_theory.theories import ...``.
"""

from .cli import starting

__version__ = "0.1.0"

with starting():
    from . import data, metrics, models
    from .compare import compare
    from .core.claims import Claim, Evidence, Verification
    from .core.errors import Infeasible, NotConverged
    from .core.experiment import Experiment, RandomExperiment
    from .core.result import Result
    from .core.sources import Source
    from .core.theory import Theory
    from .data import TokenData
    from .maths import linalg
    from .models import attention
    from .probes import probe
    from .theories import attention_svm, cite, crate, joma, rate_reduction, scan_snap, theories, verify

__all__ = [
    "Claim",
    "Evidence",
    "Experiment",
    "Infeasible",
    "NotConverged",
    "RandomExperiment",
    "Result",
    "Source",
    "Theory",
    "TokenData",
    "Verdict",
    "__version__",
    "attention",
    "attention_svm",
    "cite",
    "compare",
    "crate",
    "data",
    "joma",
    "linalg",
    "metrics",
    "models",
    "probe",
    "rate_reduction",
    "scan_snap",
    "theories",
    "verify",
]
