"""Which tokens gain attention, and which lose it."""

import torch
from torch import Generator, Tensor

from ....core.claims import Claim, Evidence
from ....core.sources import Source
from ..closed_form import scanning_time
from ..flow import EXACT, LEMMA4, MODIFIED, exact_flow, lemma4_flow, modified_flow
from ..problem import SequenceClasses
from .instances import equally_common, several_common, weakly_overlapping

PAPER = "tian2023scan"


def _smallest_move(logits: Tensor, classes: SequenceClasses) -> Evidence:
    """Worst case of "distinct tokens rise, common tokens fall", as a share of the largest move: positive if all obey."""
    move = logits[-1, 0]
    signed = torch.where(classes.common(), -move, move) / move.abs().max()
    return Evidence(float(signed.min()), 0.0, ">=", covered=classes.weak_overlap().holds and int(classes.common().sum()) == 1)


def _fates(generator: Generator) -> Evidence:
    classes = weakly_overlapping(generator)
    t0 = scanning_time(classes=classes.classes, vocab_size=classes.vocab_size, eta_y=1.0)
    times = t0 * torch.tensor([0.5, 2.0, 50.0], dtype=torch.float64)
    found = _smallest_move(lemma4_flow(classes, times, eta_y=1.0, eta_z=0.05, tolerance=1e-8).logits, classes)
    exact = _smallest_move(exact_flow(classes, times, eta_y=1.0, eta_z=0.05, tolerance=1e-8).logits, classes)
    return Evidence(found.value, found.bound, found.op, covered=found.covered, detail={"exact flow": exact.value})


def _growing_common(generator: Generator, instance) -> Evidence:
    """The move of the common token that moves most upwards, in the flow where it does so least, as a share of the largest move."""
    classes = instance(generator)
    t0 = scanning_time(classes=2, vocab_size=classes.vocab_size, eta_y=1.0)
    times = t0 * torch.tensor([2.0, 50.0], dtype=torch.float64)
    upward = []
    for flow in (exact_flow, modified_flow, lemma4_flow):
        move = flow(classes, times, eta_y=1.0, eta_z=0.05, tolerance=1e-8).logits[-1, 0]
        upward.append(float(move[classes.common()].max() / move.abs().max()))
    return Evidence(min(upward), 0.0, ">=", detail=dict(zip((EXACT, MODIFIED, LEMMA4), upward)))


def _fates_control(generator: Generator) -> Evidence:
    classes = several_common(generator)
    t0 = scanning_time(classes=2, vocab_size=classes.vocab_size, eta_y=1.0)
    times = t0 * torch.tensor([0.5, 2.0, 50.0], dtype=torch.float64)
    return _smallest_move(lemma4_flow(classes, times, eta_y=1.0, eta_z=0.05, tolerance=1e-8).logits, classes)


CLAIMS = (
    Claim(
        id="scan_snap/single-common-token",
        statement=r"In Lemma 4's flow distinct tokens gain attention, $\dot z_l > 0$, and a single common token loses it, $\dot z_l < 0$. "
        r"Here: the smallest move in the predicted direction, as a share of the largest move, after $50\, t_0'$.",
        source=Source(PAPER, "Thm. 2"),
        assumptions=("infinitely many, infinitely long sequences", "one common token", "weak overlap (Assumption 2)"),
        check=_fates,
        control=_fates_control,
        control_description="has two common tokens, one of them rare in one of the classes: its logit grows",
        corrects="That common tokens lose attention holds for a single one; of several, one may gain it "
        r"(`scan_snap/several-common-tokens`). And in the appendix the term with $q_0$ in $\beta$ needs a minus: as printed, a common "
        "token would grow where classes overlap by less than about $1/M$.",
    ),
    Claim(
        id="scan_snap/several-common-tokens",
        statement=r"Of several common tokens one may gain attention, $\dot z_l > 0$: frequent in one class and rare in the other it works "
        r"as a distinct one, in the exact flow, Lemma 3's and Lemma 4's. Here: its move as a share of the largest, in the flow where it is "
        r"least.",
        source=Source(PAPER, "Thm. 2"),
        assumptions=("infinitely many, infinitely long sequences", "two common tokens, the second of different probability in the classes"),
        check=lambda generator: _growing_common(generator, several_common),
        control=lambda generator: _growing_common(generator, equally_common),
        control_description="makes the common tokens equally likely in both classes (Corollary 2): then all of them lose attention",
        corrects="That common tokens lose attention holds for a single one only.",
    ),
)
