"""The first screen of one network: a small version of ``python -m benchmarks.null_networks``."""

import functools
import re
from dataclasses import replace

import pytest

from benchmarks import null_networks
from benchmarks.null_networks import PLANTED, measured, said, split, untrained
from transformer_theory import measure
from transformer_theory.comparison import user_models
from transformer_theory.comparison.judged import Quantity, headlines, quantities
from transformer_theory.core.judgement import ONE_NETWORK, judge
from transformer_theory.core.measurement import Measurement, Null
from transformer_theory.core.result import Result
from transformer_theory.core.statistics import COPIES, EQUAL_SCALE, RANGE_DRAWS
from transformer_theory.metrics.named_tokens import SINK_MASS
from transformer_theory.metrics.networks import FEATURE_RANK
from transformer_theory.probes import measure as measuring
from transformer_theory.probes.cost import Cost
from transformer_theory.report.sentences import network_statements, other_outcomes
from transformer_theory.theories import choose, list_theories

THEORIES = ["scan_snap", "joma", "length", "collapse"]
COPIES_DRAWN = 39
estimate = user_models.estimate
estimates: list[Cost] = []


@pytest.fixture(autouse=True)
def _few_theories(unchecked, monkeypatch):
    """Few theories, and one estimate of memory and time, since all networks have the same sizes."""

    def once(*given, **options):
        if not estimates:
            estimates.append(estimate(*given, **options))
        return estimates[0]

    def few(network, inputs, labels, **options):
        with monkeypatch.context() as patch:
            patch.setattr(user_models, "estimate", once)
            return measure(network, inputs, labels, theories=THEORIES, **options)

    monkeypatch.setattr(null_networks, "measure", few)


@functools.cache
def planted(name: str) -> Result:
    return measured(PLANTED[name][0](0), copies=COPIES_DRAWN)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_effect_is_on_the_first_screen(name):
    _, theory = PLANTED[name]
    result = planted(name)
    assert theory in said(result)["headlines"]
    chosen = {each.theory: each for each in headlines(quantities(result, list_theories()), list_theories())}
    assert chosen[theory].judged.outcome == "as predicted"
    q = chosen[theory].judged.q
    assert q is not None
    assert 1 / (1 + COPIES_DRAWN) <= q <= 0.05


def test_nothing_is_said_of_untrained_networks():
    """Each family of tests errs in 5 % of the networks, so that all of four err with probability 6e-6, and
    more than two with .0005.
    """
    found = [said(measured(untrained(seed), copies=COPIES_DRAWN)) for seed in range(4)]
    for family in ("headlines", "heads and layers", "tokens"):
        assert sum(bool(each[family]) for each in found) <= 2, family


def test_what_is_tested_has_all_copies_and_the_rest_has_the_first():
    _, theory = PLANTED["queries and keys read one feature"]
    result = planted("queries and keys read one feature")
    draws: dict[str, set[int]] = {}
    for row in result.table:
        if row.layer is not None and row.null is not None and row.null.kind == EQUAL_SCALE:
            draws.setdefault(row.quantity, set()).add(len(row.null.draws))
    in_networks = choose([theory])[0].in_networks
    assert in_networks is not None
    assert draws[in_networks.headline] == {COPIES_DRAWN}
    assert draws[SINK_MASS] == {COPIES_DRAWN}
    assert draws["contraction of differences between tokens"] == {RANGE_DRAWS}
    assert draws[FEATURE_RANK] == {RANGE_DRAWS}
    others = {
        null.kind
        for row in result.table.select(quantity=FEATURE_RANK)
        for null in row.nulls
        if null.kind in COPIES
    }
    assert others == {EQUAL_SCALE}


def test_the_metrics_of_all_headlines_with_a_side_are_tested():
    tested = {type(metric) for metric in measuring.tested_metrics(choose(None))}
    _, samples = split()
    result = measure(untrained(1), samples.tokens, samples.labels, networks=0)
    for theory in choose(None):
        own = theory.in_networks
        if own is not None and own.side is not None and result.table.select(quantity=own.headline):
            for metric in own.metrics():
                if getattr(metric, "quantity", "") == own.headline:
                    assert type(metric) in tested
            assert any(type(metric) in tested for metric in own.metrics()), theory.name


def test_quantities_of_the_labels_have_no_sentence():
    """Networks trained on permuted labels leave their copies in them as well."""
    of_labels = {
        theory.name for theory in choose(None) if theory.in_networks and theory.in_networks.of_labels
    }
    assert of_labels == null_networks.ABOUT_LABELS
    reads = {"label", "class", "classes"}
    for theory in choose(None):
        if theory.in_networks is not None:
            words = set(re.findall(r"[a-z]+", f"{theory.in_networks.headline} {theory.in_networks.meaning}"))
            assert (theory.name in of_labels) == bool(reads & words), theory.name
    row = Measurement("router", "in network", "information", 1.0, side=">=", bounds=(0.0, 2.0))
    row = replace(row, nulls=(Null(EQUAL_SCALE, tuple(0.001 * i for i in range(99))),))
    (judged,) = judge([(row, (row,))], ONE_NETWORK)
    quantity = Quantity("router", "Router", "information", "", (row,), judged, headline=True)
    assert quantity.is_large
    assert [title for title, *_ in network_statements([quantity], [quantity])] == ["Router"]
    labelled = replace(quantity, of_labels=True)
    assert network_statements([labelled], [labelled]) == []
    ((words, titles),) = other_outcomes([labelled], [labelled])
    assert words == (
        "as predicted, but a quantity of the labels, which needs networks trained on permuted labels beside "
        "this one"
    )
    assert titles == "Router"
