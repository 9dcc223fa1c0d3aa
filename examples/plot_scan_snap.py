"""
Which tokens does attention learn to attend to?
===============================================

Attention leaves tokens that many classes share and moves to those of one: exactly so in theory, roughly so on
digits.

A one-layer model learns to predict the next token. In theory attention scans until t0' = K ln M / eta_Y, and
then all but freezes. First an instance that meets the assumptions, in three dynamics; then handwritten
digits, where every visual word occurs in every class.
"""

import torch

import transformer_theory as tt
from transformer_theory.core.plotting import axes, line, shades
from transformer_theory.theories.scan_snap import (
    analyse,
    closed_form,
    exact_flow,
    lemma4_flow,
    relative_gains,
    single_common,
)

# %%
# Two classes, one common token (20 %), ten distinct tokens each, 1000 next tokens to choose from.
classes = single_common(torch.linspace(0.1, 1, 10, dtype=torch.float64).expand(2, -1), 0.2, vocab_size=1000)
weak = classes.weak_overlap()
print(
    f"Assumption 2: {weak.lower:.3f} <= |eigenvalues of E| = {weak.largest:.3f} < {weak.upper:.3f}: "
    f"{weak.holds}"
)

t0 = closed_form.scanning_time(classes=2, vocab_size=1000, eta_y=1.0)
times = t0 * torch.logspace(-1, 4, 40, dtype=torch.float64)
rates = {"eta_y": 1.0, "eta_z": 0.01}
flows = {"exact flow": exact_flow(classes, times, **rates), "Lemma 4": lemma4_flow(classes, times, **rates)}
closed = -closed_form.B(times, classes=2, vocab_size=1000, overlap=float(classes.overlap()[0, 1]), **rates)

# %%
# The common token loses attention in all three. Lemma 4's flow follows the closed form; the exact one is many
# times slower, because it is driven by the overlap of the classes, which is also what Lemma 4 neglects.
curves = {name: flow.logits[:, 0, 0] for name, flow in flows.items()} | {"closed form": closed}
for name, values in curves.items():
    print(f"logit of the common token after {float(times[-1]):.2g} steps, {name}: {float(values[-1]):.4f}")
for name, flow in flows.items():
    error = relative_gains(classes, flow.logits).error
    print(f"largest relative error of the relative gain r(0) chi(t), {name}: {error:.1e}")

figure, (left,) = axes(height=2.6, width=4)
for (name, values), tint, dash in zip(curves.items(), shades(3), ("-", "-", "--")):
    line(left, times, values, color=tint, label=name, linestyle=dash)
left.set_xscale("log")
left.set_xlabel("step")
left.set_title("Attention logit of the common token")
left.legend()

# %%
# Handwritten digits: 16 visual words per image, the last one is the query, the label is the next token. No
# word belongs to one digit alone, so the theorems do not apply. From counts alone the exact flow still
# predicts the order in which the words gain, and that agreement disappears when the labels are shuffled. The
# flow overstates the size of the changes: a sequence has 15 words, in the theory it has infinitely many.
digits = tt.data.load("digits")
assert digits.ids is not None
assert digits.next_id is not None
analysis = analyse(digits.ids[:, :-1], digits.ids[:, -1], digits.next_id, vocab_size=digits.vocab_size)
print(analysis)

# %%
# Longer sequences, drawn word by word from the same classes, remove the error: it was an effect of length.
(comparison,) = analysis.comparisons
counts, labels = comparison.data.classes.sample_counts(
    1000, context=240, generator=torch.Generator().manual_seed(0)
)
words = torch.arange(counts.shape[1]).expand(len(counts), -1)
ids = words.flatten().repeat_interleave(counts.long().flatten()).view(len(counts), 240)
(drawn,) = analyse(ids, torch.full_like(labels, digits.vocab_size), labels).comparisons
for source, match in (
    ("15 words of the digits", comparison.matches[0]),
    ("240 words drawn", drawn.matches[0]),
):
    print(
        f"{source}: {match.dynamics}, relative error of the logits {match.error:.2f}, rank correlation "
        f"{match.order.value:.2f}"
    )
figure = analysis.plot()
