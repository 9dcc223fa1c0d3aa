"""One thread for small matrices: several wait for one another longer than they work, many times longer on a busy machine."""

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Runs its block with one thread in torch and in the numerical libraries, and restores their numbers afterwards.

    It also makes results independent of the number of cores. Source: none, this is machinery.
    """
    import scipy.linalg  # noqa: F401 - loads scipy's own BLAS, so that it is limited too
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(limits=1):
            yield
    finally:
        torch.set_num_threads(before)
