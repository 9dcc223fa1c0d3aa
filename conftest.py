"""Fixtures and settings of all tests: a seeded generator, run-time shape checks, one thread, no display and
no network.

The package is not imported at the top: pytest's jaxtyping plugin must install its import hook first, which
adds the run-time checks.
"""

import gc
import ipaddress
import os
import socket
from collections.abc import Iterator

import jaxtyping
import pytest

from tests.shape_checks import shapes_only

# The tests run side by side (pytest -n), so each process takes one core; subprocesses inherit the setting.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ["MPLBACKEND"] = "Agg"
# pytest -n sets it, and the command line would take it for the width of the terminal
os.environ.pop("COLUMNS", None)

# Collection imports everything and makes many objects, none of which is garbage, so the garbage collector
# would walk through them in vain.
gc.disable()


def pytest_collection_finish() -> None:
    """Starts the garbage collector, which from now on ignores the modules and the collected tests, and comes
    more rarely than usual.

    Many tests import further libraries and draw figures: thousands of objects, of which few are garbage.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


jaxtyping.jaxtyped = shapes_only  # type: ignore[assignment]


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Switches the run-time shape checks off, so that the library's own messages about bad input show."""
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
    """A test that connects to another machine fails at once instead of waiting for a server."""
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
    """Closes the figures that a test leaves open."""
    import sys

    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
