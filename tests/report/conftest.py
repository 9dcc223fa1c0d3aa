"""One synthetic comparison for all tests of the report."""

import pytest


@pytest.fixture(scope="session")
def compared():
    from tests.report.synthetic import result

    return result()


@pytest.fixture(scope="session")
def theories():
    from tests.report.synthetic import THEORIES

    return THEORIES


@pytest.fixture(scope="session")
def page(compared, theories) -> str:
    from transformer_theory.report import html

    return html(compared, theories=theories)
