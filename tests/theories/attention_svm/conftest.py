"""What several test files of this theory use."""

from collections.abc import Callable
from functools import cache

import jaxtyping
import pytest

from transformer_theory.core.experiment import Experiment
from transformer_theory.core.result import Result


@pytest.fixture(scope="session")
def run() -> Callable[[Experiment], Result]:
    """Runs an experiment once for all tests, without shape checks, which the contract of experiments makes on
    each.
    """

    @cache
    def once(experiment: Experiment) -> Result:
        before = jaxtyping.config.jaxtyping_disable
        jaxtyping.config.update("jaxtyping_disable", True)
        try:
            return experiment.run()
        finally:
            jaxtyping.config.update("jaxtyping_disable", before)

    return once
