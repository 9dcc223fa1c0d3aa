"""One synthetic comparison for all tests of the report."""

import pytest


@pytest.fixture(scope="session")
def compared():
    from tests.report.synthetic import comparison

    return comparison()


@pytest.fixture(scope="session")
def theories():
    from tests.report.synthetic import THEORIES

    return THEORIES


@pytest.fixture(scope="session")
def page(compared, theories) -> str:
    from transformer_theory.report import page

    return page(compared, theories=theories)


@pytest.fixture(scope="module")
def browser():
    from tests.report.browser import open_browser

    started = open_browser()
    yield started
    started.close()
