"""In these tests an error of the probe itself is an error, not a row; tests of the guard ask
for ``guarded``.
"""

import pytest

from transformer_theory.probes.probing import Probe


@pytest.fixture(autouse=True)
def probe_errors_are_raised(request, monkeypatch) -> None:
    if "guarded" in request.fixturenames:
        return

    def fault(self, error, layer=None, name=""):
        raise error

    monkeypatch.setattr(Probe, "_fault", fault)


@pytest.fixture
def guarded() -> None:
    """The probe as users have it: its errors become rows."""
