"""
Can a small transformer approximate any function of sequences?
==============================================================

A network with two heads of size one and feed-forward layers of width four, written down weight by weight.

Feed-forward layers round the tokens to a grid. Attention layers give each token a code that determines the
whole sequence. Feed-forward layers replace codes by values. First one sequence through the attention layers,
then all sequences, then a function and its error.
"""

from fractions import Fraction

import numpy as np
import torch

from transformer_theory import universal
from transformer_theory.core.plotting import axes, heatmap, line

# %%
# One sequence, (0, 2, 3) in units of δ = 1/4. Each selective shift moves the tokens of one code; the last
# layer is the global shift.
mapping = universal.ContextualMapping(d=1, n=3, delta=Fraction(1, 4))
tokens = mapping.embed([[0], [2], [3]])
for number, layer in enumerate(mapping.layers()):
    tokens = layer(tokens)
    print(f"layer {number} with {len(layer.heads)} heads: codes {universal.column_codes(tokens, 4).tolist()}")
print(
    "read back from the code of the first token:", mapping.decode(mapping.codes([[0], [2], [3]])[:1]).tolist()
)

# %%
# All 64 sequences. Those with distinct tokens have codes of their own; (0, 0, 1) and (0, 1, 1) do not.
# Positions mend it.
grids = mapping.grids()
distinct = universal.has_distinct_tokens(grids, 4)
for text, chosen in (("distinct tokens", distinct), ("all sequences", np.ones(64, dtype=bool))):
    shared = universal.collisions(universal.contexts(grids[chosen], 4), mapping.codes(grids[chosen]))
    print(f"{text}: {int(chosen.sum())} sequences, {shared} shared codes")
print(f"share of sequences with a repeated token: {float(universal.excluded_share(4, 1, 3))}")
positions = universal.ContextualMapping(d=1, n=3, delta=Fraction(1, 4), positions="integers")
codes = positions.codes(grids)
print(f"with positions: {codes.size} tokens, {len(np.unique(codes))} codes")

# %%
# Softmax attention needs a high inverse temperature; then all codes are right to less than 1/2, and are
# found.
for beta in (1e2, 1e3, 1e4, universal.sufficient_inverse_temperature(positions)):
    error = np.abs(positions.codes(grids, dtype=np.float64, inverse_temperature=beta) - codes).max()
    print(f"inverse temperature {beta:.0f}: largest error of a code {error:.1e}")

# %%
# A random smooth function of three tokens. The error halves with δ, unless the attention layers are left out.
f = universal.random_function(torch.Generator().manual_seed(0), n=3)
widths = (2, 4, 8, 16)
figure, (left, right) = axes(1, 2, height=2.8)
for attention, name, text in (("all", "universal", "with attention"), ("none", "raw", "without")):
    networks = [
        universal.UniversalApproximator(f, 3, 1, Fraction(1, k), attention=attention).fit() for k in widths
    ]
    errors = [network.error(1, samples=5000) for network in networks]
    print(text, [round(error, 3) for error in errors])
    line(left, [1 / k for k in widths], errors, name=name, marker="o", label=text)
    if attention == "all":
        print(f"layers for δ = 1/8: {networks[2].layer_counts()}, {networks[2].parameters():,} weights")
left.set(title="$L^1$ error", xlabel="δ", xscale="log", yscale="log")
left.legend()

# %%
# The first output over the first two tokens, third token 0.3, with δ = 1/8.
network = universal.UniversalApproximator(f, 3, 1, Fraction(1, 8)).fit()
points = torch.cartesian_prod(
    (torch.arange(64) + 0.5) / 64, (torch.arange(64) + 0.5) / 64, torch.tensor([0.3])
).double()
heatmap(right, network(points[..., None])[:, 0, 0].reshape(64, 64).T.flip(0), "output", cmap="RdBu_r")
right.set(title="Network on a slice", xlabel="first token", ylabel="second token", xticks=[], yticks=[])
