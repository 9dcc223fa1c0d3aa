"""
Which patches does a vision transformer attend to?
==================================================

Patches of one group show the class together. Does attention find the group, and must it, for the model to
generalise?

First two written solutions that are one function, then trained ones, label-relevant tokens, and last the
patches of the digits.
"""

import torch

import transformer_theory as tt
from transformer_theory.core.table import collect
from transformer_theory.theories import vision
from transformer_theory.theories.vision.patches import sigma

# %%
# Attention to the own group generalises. Its rows at other patches give the same function, with no weight on
# the own group.
data = vision.SpatialPatchData(q=0.1)
own, other = vision.group_attention(data.groups), vision.other_group_attention(data.groups)
x = torch.randn(100, 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
first, second = (sigma(24 * x @ S.mT).sum(1) for S in (own, other))
print(
    f"accuracy {vision.group_accuracy(data):.4f}; by the sum of the patches {vision.sum_accuracy(data):.4f}"
)
masses = [float(vision.group_mass(S, data.groups)) for S in (own, other)]
print(f"mass {masses[0]:.2f} and {masses[1]:.2f}, chance {vision.chance(24, 3):.3f}")

print(f"largest difference of F: {float((first - second).abs().max() / first.abs().max()):.0e}")

# %%
# Trained: P P^T associates; free scores generalise without.
for name, options in {
    "P P^T, diagonal": {"rank": 24, "diagonal": True, "spread": 0.1},
    "free, no diagonal": {},
}.items():
    generator = torch.Generator().manual_seed(0)
    found = vision.train_patches(data, generator=generator, optimiser="adam", steps=600, **options)
    print(
        f"{name}: accuracy {found.accuracy:.3f}, ranking {found.association.ranking:.2f}, mass "
        f"{found.association.mass:.2f}"
    )

# %%
# The fewer tokens carry the label, the less is learnt from 64 samples.
for alpha in (0.1, 0.2, 0.4):
    trained = vision.train_tokens(
        vision.LabelRelevantTokens(alpha), 64, networks=4, generator=torch.Generator().manual_seed(0)
    )
    print(
        f"share {alpha}: accuracy {float(trained.accuracy.mean()):.2f}, mass on relevant tokens "
        f"{float(trained.mass.mean()):.2f}"
    )

# %%
# Which patches of the digits tell the class?
problem = vision.ON_DATA.read(tt.data.load("digits"))
table, arrays = collect(vision.ON_DATA.measure(problem, torch.Generator().manual_seed(0), draws=19))
for row in table:
    print(
        f"{row.quantity}: {row.value:.2f}"
        + ("" if row.null is None else f", largest null draw {row.null.high:.2f}")
    )
figure = vision.ON_DATA.plot(tt.Result("compare", table=table, arrays=arrays, sources=vision.THEORY.sources))
