"""
Can a network be built from data, without training?
===================================================

A hundred layers from handwritten digits, without back-propagation: classes move into subspaces of their own.

ReduNet's layers are gradient steps on the rate reduction ΔR. We build them, plot ΔR by layer, and classify
unseen digits.
"""

import torch

import transformer_theory as tt
from transformer_theory import metrics, rate_reduction
from transformer_theory.core.plotting import axes, heatmap, line

# %%
# The digits, all pixels in one vector of norm 1, and a split that keeps the classes' shares.
generator = torch.Generator().manual_seed(0)
train, test = tt.data.load("digits").split(0.75, generator)
features, unseen = (metrics.unit_norm(part.tokens.flatten(1)) for part in (train, test))
labels, truth = train.labels, test.labels

# %%
# How far apart are the classes, in nats? Compare the number with its null: the same with permuted labels.
eps = 0.1**0.5
permuted = labels[torch.randperm(len(labels), generator=generator)]
print(f"ΔR of the pixels        {metrics.rate_reduction(features, labels, eps=eps):6.2f} nats")
print(f"   with permuted labels {metrics.rate_reduction(features, permuted, eps=eps):6.2f}")

# %%
# The optimum for 64 dimensions and these class sizes: orthogonal classes that fill their subspaces evenly.
best = rate_reduction.optimum(torch.bincount(labels).tolist(), 64, eps=eps)
print(f"   at the optimum       {best.value:6.2f}, ranks {best.ranks}")

# %%
# A hundred layers, without back-propagation. The rate reduction rises at each.
net = rate_reduction.construct(features, labels, layers=100, eps=eps, step=0.5)
print(
    f"   after ReduNet        {net.reductions[-1]:6.2f}, smallest rise of a layer "
    f"{net.reductions.diff().min():.3f}"
)

# %%
# ReduNet separates permuted labels too, so only unseen digits are evidence.
moved = net.transform(unseen)
before = rate_reduction.nearest_subspace(features, labels, unseen, rank=6) == truth
after = rate_reduction.nearest_subspace(net.features, labels, moved, rank=6) == truth
print(
    f"nearest subspace, {len(truth)} unseen digits: {before.double().mean():.2%} before, "
    f"{after.double().mean():.2%} after"
)

# %%
# Absolute cosines of the unseen digits, sorted by class: entries off the diagonal blocks fade.
order = truth.argsort()
figure, (left, middle, right) = axes(1, 3, height=2.6)
line(left, range(len(net.reductions)), net.reductions, name="rate_reduction")
left.axhline(best.value, linestyle=":", color="0.5")
left.set_title("ΔR by layer, nats")
heatmap(middle, (unseen[order] @ unseen[order].T).abs(), "|cosine| before", vmin=0, vmax=1, bar=False)
heatmap(right, (moved[order] @ moved[order].T).abs(), "|cosine| after", vmin=0, vmax=1, bar=False)
figure.savefig("rate_reduction.svg")
