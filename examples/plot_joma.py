"""
Does attention follow from the MLP's weights?
=============================================

While attention and an MLP learn together a quantity is conserved, so one follows from the other: sparse
first, dense later.

The theory predicts the attention logits from the squared weights of the lower layer, so attention can be
integrated out. First the law itself, then the two phases, then a tree of latents, where near relatives are
learnt first; last, handwritten digits.
"""

import torch

import transformer_theory as tt
from transformer_theory import joma
from transformer_theory.core.plotting import axes, label_ends, line, shades
from transformer_theory.core.result import Result
from transformer_theory.core.table import collect
from transformer_theory.theories.joma import Exponential, Model, Softmax, invariants, nonlinear
from transformer_theory.theories.joma.dynamics import tanh

generator = torch.Generator().manual_seed(0)

# %%
# One block, tanh units, cross-entropy. With exponential attention z - Σv²/2 is conserved exactly, with
# softmax attention nearly.
contexts = joma.sampled_contexts(generator)
start = joma.gaussian_block(contexts, units=5, scale=0.3, generator=generator)
for form in (Exponential(normaliser=2.0), Softmax()):
    model = Model(form, tanh)
    path = joma.gradient_flow(start, contexts, model, step=0.05, steps=400, save_steps=range(0, 400, 10))
    change = path.states.logits[:, 0] - path.states.logits[0, 0]
    exact = form == Exponential(normaliser=2.0)
    predicted = invariants.first_term(form, path) if exact else invariants.fixed_mean(model, contexts, path)
    fit = invariants.goodness_of_fit(predicted[-1], change[-1])
    print(
        f"{type(form).__name__}: correlation {float(fit.correlation):.4f}, relative error "
        f"{float(fit.error):.1e}"
    )

# %%
# The MLP's own dynamics, near a critical point μ: the entropy of attention drops and bounces; above a linear
# MLP it only drops.
mu = nonlinear.published_mu()
figure, (left, right) = axes(1, 2, height=2.8)
for descent, name, label in (
    (nonlinear.salient_descent, "joma", "nonlinear"),
    (nonlinear.linear_descent, "raw", "linear"),
):
    entropy = nonlinear.attention_entropy(descent(mu), temperature=3.0)
    curve = nonlinear.bounce(entropy)
    print(
        f"{label} MLP: entropy {curve.start:.3f}, least {curve.least:.3f} after {curve.index} steps, "
        f"{curve.end:.3f} at the end"
    )
    line(left, range(1, len(entropy) + 1), entropy, name=name, label=label)
left.set(title="Entropy of attention", xlabel="step", ylabel="nats", xscale="log")
left.legend()

# %%
# A block predicts one leaf of a binary tree from the others. Their common ancestor is H levels up: the
# sibling is learnt first.
tree = joma.uniform_tree(rho=0.7, levels=4, zero=(0.4, 0.82))
task = joma.masked_leaf(tree, 3000, generator=generator)
start = joma.gaussian_block(task.contexts, units=2, scale=0.01, generator=generator)
path = joma.gradient_descent(
    start, task.contexts, Model(Exponential(normaliser=8.0)), rate=0.5, steps=150, save_steps=range(0, 150, 5)
)
logits = task.by_kinship(path.states.logits[:, 0] - path.states.logits[0, 0])
for up, tint in enumerate(shades(tree.levels), 1):
    print(
        f"H = {up}: P(leaf | leaf) = {tree.cooccurrence(up):.3f}, attention logit "
        f"{float(logits[-1, up - 1]):.3f}"
    )
    line(right, 2 * path.times, logits[:, up - 1], color=tint, label=f"H = {up}")
right.set(title="Attention logits by kinship", xlabel="step", ylabel="change of z")
label_ends(right)

# %%
# Handwritten digits: 16 visual words per image, the label is the next token. The assumptions are measured;
# the prediction meets its null.
digits, theory = tt.data.load("digits"), joma.THEORY.on_data
table, arrays = collect(theory.measure(theory.read(digits), torch.Generator().manual_seed(0), draws=19))
for row in table:
    if row.value is not None:
        null = f" (null {row.null.mean:.3g})" if row.null else ""
        print(f"{row.quantity} {row.setting}: {row.value:.3g}{null} {row.verdict or ''}")
figure = theory.plot(Result("digits", table=table, arrays=arrays))
