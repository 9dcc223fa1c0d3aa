"""
What does attention learn if only its values are trained?
=========================================================

With frozen query-key matrices, attention is linear in its values. Its limit of many heads is a kernel in
closed form.

First the kernel, then three targets beside an MLP with as many trained numbers, and last the labels of the
digits.
"""

import torch

from transformer_theory import data, random_features
from transformer_theory.core.result import Result
from transformer_theory.core.table import collect
from transformer_theory.theories.random_features.figures.errors import errors

generator = torch.Generator().manual_seed(0)

# %%
# The distance of the Gram matrix from the closed form falls as the root of the number of heads.
x = random_features.sphere(20, generator=generator)
closed = random_features.attention_kernel(x, spread=4.0)
for heads in (100, 400, 1600, 6400):
    features = random_features.RandomFeatureAttention.draw(
        heads, 4, spread=4.0, generator=generator
    ).features(x)
    print(f"{heads} heads: {float((features @ features.mT - closed).norm() / closed.norm()):.3f}")

# %%
# Errors against the number of inputs and of keys, with fewer sizes than in the stored figure.
experiment = errors(samples=(64, 128, 256), keys=(2, 4, 8), heads=50)
experiment.plot(experiment.run())

# %%
# On the digits, attention sees a bag of patches; the MLP knows their places.
digits = data.load("digits")
problem = random_features.ON_DATA.read(digits)
table, arrays = collect(random_features.ON_DATA.measure(problem, generator, draws=99))
for row in table:
    print(f"{row.quantity}: {row.value:.2f}, chance up to {row.null.high:.2f}")
random_features.ON_DATA.plot(Result("digits", table=table, arrays=arrays))
