"""Exchanges of a change with its random ones within each sequence: the formula by hand, their size under
exchangeability, and which controls draw for every sequence anew.
"""

import contextlib
import itertools
import math
from collections.abc import Collection

import pytest
import torch

from tests.cases import each_case
from transformer_theory.core.intervention import Control, Intervention, NotChanged
from transformer_theory.core.measurement import Null
from transformer_theory.core.sources import Source
from transformer_theory.models import CRATE, ViT
from transformer_theory.probes.intervene import (
    EXCHANGES,
    Applied,
    Drawing,
    _planned,
    _size,
    apply_intervention,
    exchanged,
)
from transformer_theory.probes.sample import LOSS, Sample
from transformer_theory.probes.subject import Effects, Subject, halves_of
from transformer_theory.theories import list_theories


def test_signs_are_exchanged_with_one_random_change():
    own, drawn = torch.tensor([4.0, 2.0, 1.0]), torch.tensor([[0.0, 1.0, 0.0]])
    value, draws = exchanged(own, drawn)
    assert value == pytest.approx(7 / 3)
    # the mean 1/3 of the random ones and every mean of the differences 4, 1, 1 with signs
    possible = {(1 + 4 * a + b + c) / 3 for a, b, c in itertools.product((-1, 1), repeat=3)}
    assert len(draws) == 7  # as many as there are beside the one that was found
    assert {round(each, 9) for each in draws} <= {round(each, 9) for each in possible}
    _, more = exchanged(own.repeat(4), drawn.repeat(1, 4))
    assert len(more) == EXCHANGES
    assert Null("n", draws).p(value, ">=") >= 1 / 8


def test_the_mean_of_the_exchanges_is_that_of_the_random_changes():
    generator = torch.Generator().manual_seed(0)
    own, drawn = 5 + torch.randn(40, generator=generator), torch.randn(9, 40, generator=generator)
    value, draws = exchanged(own, drawn)
    null = Null("n", draws)
    assert value == pytest.approx(float(own.mean()), abs=1e-6)
    assert null.mean == pytest.approx(float(drawn.mean()), abs=0.05)
    assert null.p(value, ">=") == 1 / (1 + EXCHANGES)
    # a change that is like its random ones is equal to them, not beyond
    same, draws = exchanged(drawn[0], drawn[:1].expand(9, -1))
    assert set(draws) == {same}


DISTRIBUTIONS = {
    "normal": lambda shape, generator: torch.randn(shape, generator=generator),
    "one of twenty answers changes": lambda shape, generator: (
        -((torch.rand(shape, generator=generator) < 0.05).double())
    ),
    "heavy tails": lambda shape, generator: torch.randn(shape, generator=generator).exp() ** 3,
}


@each_case("distribution", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
@each_case(("n", "draws"), [(4, 1), (8, 3), (64, 9)])
def test_findings_among_exchangeable_changes_are_as_rare_as_the_level(distribution, n, draws):
    """400 times, with an effect of each sequence that all its changes share."""
    generator = torch.Generator().manual_seed(0)
    found = torch.zeros(2)
    for _ in range(400):
        pool = distribution((1 + draws, n), generator) + 3 * torch.randn(n, generator=generator)
        value, null = exchanged(pool[0], pool[1:])
        for side, name in enumerate((">=", "<=")):
            found[side] += Null("n", null).p(value, name) <= 0.05
    assert bool((found / 400 <= 0.05 + 3 * (0.05 * 0.95 / 400) ** 0.5).all())


def test_one_answer_of_many_is_no_finding():
    """No random change of 64 sequences ever changes the answer, the named one does once: p is 1 in 1 + K."""
    own = torch.zeros(64)
    own[5] = -1.0
    value, draws = exchanged(own, torch.zeros(9, 64))
    assert Null("n", draws).p(value, "<=") == pytest.approx(0.1, abs=0.04)


def equal_sequences(
    network, tokens: torch.Tensor, known: Collection[tuple[str, str]] = ()
) -> dict[tuple[str, str], tuple[bool, bool]]:
    """For each control that is not known, whether it is one of every sequence, and whether equal sequences
    have equal losses.
    """
    labels = torch.arange(len(tokens)) % 4
    whole = Subject(network, Sample(tokens, labels, 64))
    halves = halves_of(network, whole.sample)
    # two sequences in turn, since some changes bring values of the next one; ten pairs, since some have no
    # close call
    turn = torch.arange(16) % 2
    equal = [
        Subject(network, Sample(tokens[turn + first], labels[turn + first], 16, torch.full_like(turn, 5)))
        for first in range(0, 20, 2)
    ]
    found = {}
    for theory in list_theories():
        for one in theory.interventions:
            try:
                structure = apply_intervention(whole, halves, theory.name, one, limits={}).structure
            except ValueError:
                continue
            for control in one.controls:
                if (theory.name, control.kind) in known:
                    continue
                drawn = structure
                if control.structure is not None:
                    drawn = control.structure(structure, torch.Generator().manual_seed(0))
                change, spread = control.change or one.change, []
                for pair in equal:
                    with contextlib.suppress(NotChanged):
                        after = pair.effects(change, control.kind, site=one.site, structure=drawn)
                        spread.append(float(after.changed[LOSS][::2].std()))
                    if spread and not spread[-1] < 1e-5:
                        break  # one pair with different losses is enough
                if spread:
                    found[theory.name, control.kind] = control.is_of_sequences, max(spread) < 1e-5
    return found


def test_controls_of_every_sequence_differ_among_equal_sequences_and_others_do_not():
    torch.manual_seed(0)
    tokens = torch.randn(140, 8, 6)
    vit = ViT.for_tokens(8, 6, 4, dim=16, depth=2, heads=2).eval()
    for name, parameter in vit.named_parameters():
        if "qkv" in name:
            parameter.data *= 4  # scores of a trained network: an exchange of the two largest ones is seen
    found = equal_sequences(vit, tokens)
    # the attention of CRATE is too even for the close calls that the ViT has
    crate = CRATE.for_tokens(8, 6, 4, dim=16, depth=2, heads=2).eval()
    found |= equal_sequences(crate, tokens, known=found)
    assert {control for control, (own, equal) in found.items() if own == equal} == set()
    assert {theory for theory, _ in found} >= {
        "attention_svm",
        "bottleneck",
        "collapse",
        "crate",
        "in_context",
        "joma",
        "length",
        "particles",
        "rate_reduction",
        "router",
        "scan_snap",
        "turing",
        "vision",
    }
    assert {own for own, _ in found.values()} == {True, False}


def drawing(*, is_common: bool, n: int = 64) -> Drawing:
    control = Control("other keys", lambda attended: attended, is_common=is_common)
    source = Source("tian2023scan", status="own")
    one = Intervention("test", lambda attended: attended, "kept", (control,), source)
    subject = Subject(torch.nn.Identity(), Sample(torch.zeros(n, 1), None, n))
    applied = Applied("scan_snap", one, subject, None, Effects({}, {}), seconds=0.5)
    return Drawing(applied, control, [None] * control.planned, 0, n)


def test_more_sequences_come_before_more_draws():
    own, common = drawing(is_common=False), drawing(is_common=True)
    assert len(own.structures) == 9
    assert len(common.structures) == 99
    planned = {size: _planned(own, size) for size in (1, 20, 64, 127, 128, 600, 9000)}
    assert planned == {
        1: (1, 8),
        20: (1, 20),
        64: (1, 64),
        127: (1, 64),
        128: (2, 64),
        600: (9, 64),
        9000: (9, 64),
    }
    # draws of a common change are of no use below 99
    assert {size: _planned(common, size) for size in (1, 500, 990, 9000)} == {
        1: (99, 4),
        500: (99, 5),
        990: (99, 10),
        9000: (99, 64),
    }
    assert _planned(drawing(is_common=False, n=3), 1) == (1, 3)


def test_the_time_is_divided_among_the_controls_that_follow():
    group = [drawing(is_common=False) for _ in range(4)]
    # half a second for each sequence of each draw
    assert _size(group, 4 * 64 * 0.5) == 127
    assert _size(group, 4 * 64 * 0.5 - 1) == 63
    assert _size(group, -1.0) == 1
    assert _size(group, math.inf) == 9 * 64


def test_the_agreement_of_outputs_is_one_share_per_sequence():
    (measure,) = Sample(torch.zeros(3, 4), None, 3).measures()
    before = torch.eye(5)[torch.tensor([[0, 1, 2, 3], [4, 4, 4, 4], [1, 2, 3, 0]])]
    after = torch.eye(5)[torch.tensor([[0, 1, 2, 4], [4, 4, 4, 4], [0, 0, 0, 4]])]
    assert measure.of(after, None, before.argmax(-1)).tolist() == [0.75, 1, 0]
    assert measure.of(after[:, 0], None, before[:, 0].argmax(-1)).tolist() == [1, 1, 0]
