"""
How much of the label can a representation keep?
================================================

The information curve of a joint law, with a bound on the distance from the optimum, and the trade-off at
which it leaves zero.

First the curve and its onset, which is below its local value. Then the Gaussian case, the words and labels of
the digits, and random starts of the fixed-point iteration.
"""

import torch

import transformer_theory as tt
from transformer_theory import bottleneck
from transformer_theory.theories.bottleneck.figures.plane import plane
from transformer_theory.theories.bottleneck.on_data import ON_DATA

generator = torch.Generator().manual_seed(1)

# %%
# The onset of a random law is 1/eta, not 1/sigma_2^2.
joint = bottleneck.random_joint(8, 4, generator)
onset = bottleneck.onset(joint)
print(f"onset {onset.beta:.3f}, local value {onset.local_beta:.3f}")

# %%
# Each point of the curve has a bound on its distance from the optimum.
curve = bottleneck.information_bottleneck(
    joint, [factor * onset.beta for factor in (0.99, 1.02, 2.0, 10.0, 100.0)]
)
for point in curve.points:
    print(
        f"beta {point.beta:6.1f}: I(X;Z) {point.compression:.4f}, I(Z;Y) {point.relevance:.4f}, gap "
        f"{point.gap:.0e}"
    )

# %%
# Gaussian variables have a closed form; a variational bottleneck learns it.
pair = bottleneck.GaussianPair(torch.diag(torch.tensor([1.0, 1.5], dtype=torch.float64)), 1.0)
model = bottleneck.train_variational(pair, 4.0, 2, steps=400, generator=generator)
rate, gain = bottleneck.variational_bound(model, pair, 50_000, generator)
exact = bottleneck.gaussian_bottleneck(pair.eigenvalues(), 4.0)
print(
    f"rate {rate:.3f}, closed form {exact[0]:.3f}; information about y {gain:.3f}, closed form {exact[1]:.3f}"
)

# %%
# Words and labels of the digits.
for row in ON_DATA.measure(ON_DATA.read(tt.data.load("digits")), generator, draws=99):
    if isinstance(row, tt.Measurement):
        print(f"{row.quantity}: {row.value:.3f}" + (f", null up to {row.null.high:.3f}" if row.null else ""))

# %%
# Random starts of the fixed-point iteration stay below the curve.
experiment = plane(starts=8)
figure = experiment.plot(experiment.run())
