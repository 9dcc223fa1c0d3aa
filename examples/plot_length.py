"""
What does a head hold on to when the sequence is many times longer?
====================================================================

A head picks one key among 16. What will it do among 4,096?

First one row of attention, then a head that is trained on 16 keys and run on more, then the heads of a vision
transformer.
"""

import math

import torch

from transformer_theory import length, models, probe

# %%
# One row: the bound of dispersion, and the identity that replaces it. The ratio of the gap to log(n - 1) is
# critical at 1.
scores = torch.zeros(16, dtype=torch.float64)
scores[3] = 5.0
gap = length.score_gap(scores)
print(
    f"largest weight {float(length.top_weight(scores)):.3f}, gap {float(gap):.2f}, over log(n - 1): "
    f"{float(gap) / math.log(15):.2f}"
)
for n in (16, 256, 4096):
    scaled = length.winner_weight(gap * length.log_factor(n, 16), n)
    print(
        f"{n:5d} keys: {float(length.winner_weight(gap, n)):.3f}, with scores times log n {float(scaled):.3f}"
    )

# %%
# A head that retrieves the largest of 16 numbers. Its scores at 16 keys predict its largest weight at any
# length.
generator = torch.Generator().manual_seed(0)
head = length.train_head("maximum", generator=generator, steps=600)
short = length.short_scores(head, "maximum", generator=generator)
for n in (16, 64, 256, 1024):
    found = length.at_length(head, "maximum", n, short, generator=generator, sequences=100)
    print(
        f"{n:5d} keys: largest weight {found.top:.3f}, predicted {found.predicted:.3f}; on the right key "
        f"{found.right:.3f}"
    )

# %%
# The heads of an untrained vision transformer: all are far below the critical value.
torch.manual_seed(0)
network = models.ViT.for_tokens(16, 4, 10, dim=32, depth=2, heads=2)
with probe(network, length.THEORY.in_networks.metrics(), draws=19) as p, p.accumulate(0):
    network(torch.randn(64, 16, 4, generator=generator))
for row in p.result().table.select(theory="length"):
    chance = "" if row.null is None else f", null {row.null.low:.2f} to {row.null.high:.2f}"
    print(
        f"layer {row.layer}, head {row.head}: {row.quantity}{f' ({row.setting})' if row.setting else ''} "
        f"{row.value:.2f}{chance}"
    )

# %%
# The figure of the page, with few steps.
experiment = length.THEORY.experiments[0].quick()
figure = experiment.plot(experiment.run())
