"""What every test may use: a seeded generator, shape checks that can be switched off, one thread, no screen and no network.

Nothing of the package is imported here at the top: pytest's jaxtyping plugin must come first, so that it can add the run-time checks.
"""

import ipaddress
import os
import socket
from collections.abc import Iterator

import pytest

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # the tests run side by side (pytest -n), so each takes one core; subprocesses inherit it
os.environ["MPLBACKEND"] = "Agg"
os.environ.pop("COLUMNS", None)  # pytest -n gives its processes one, and piped tables are as wide as it says


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Switches the run-time shape checks off, so that the library's own messages about bad input show."""
    import jaxtyping

    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture
def generator():
    """A ``torch.Generator`` with a fixed seed, fresh for each test."""
    import torch

    return torch.Generator().manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Torch on one thread, which also makes sums reproducible."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def no_network() -> Iterator[None]:
    """A test that reaches out of this machine fails at once instead of waiting for a server."""
    connect = socket.socket.connect

    def local_only(self: socket.socket, address) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_local(address[0]):
            raise OSError(f"tests must not need the network, got a connection to {address[0]}")
        connect(self, address)

    socket.socket.connect = local_only  # type: ignore[method-assign]
    yield
    socket.socket.connect = connect  # type: ignore[method-assign]


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@pytest.fixture(autouse=True)
def closed_figures() -> Iterator[None]:
    """Figures that a test leaves open are closed."""
    import sys

    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
