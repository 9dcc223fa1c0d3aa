"""
Do the tokens of a network cluster?
===================================

If every layer were the same simple attention, tokens would move on a sphere until they meet. Where do they
go, and does a network do this?

First the flow itself, then tokens that seem to cluster and do not, and last the patches of the digits.
"""

from functools import partial

import torch

import transformer_theory as tt
from transformer_theory.core.table import collect
from transformer_theory.theories import particles

# %%
# Independent tokens in high dimension follow one equation: all cosines rise together to 1.
generator = torch.Generator().manual_seed(0)
X = particles.unit(torch.randn(16, 512, generator=generator, dtype=torch.float64))
times = (1.0, 2.0, 4.0, 8.0)
measured = particles.mean_cosine(particles.flow(X, partial(particles.softmax_field, beta=1.0), times=times))
for t, value, expected in zip(times, measured.tolist(), particles.common_cosine(times, n=16, beta=1.0)):
    print(f"time {t:g}: mean cosine {value:.3f}, equation {expected:.3f}")

# %%
# On the circle several clusters last; their number grows like the square root of beta.
circle = particles.unit(torch.randn(16, 32, 2, generator=generator, dtype=torch.float64))
for beta in (1.0, 9.0, 36.0):
    states = particles.flow(
        circle, partial(particles.softmax_field, beta=beta), times=(20.0,), tolerance=1e-5
    )
    print(f"beta {beta:g}: {particles.count_clusters(states[0]).double().mean():.1f} clusters")

# %%
# Anisotropy and positions raise the cosine within a sequence. They are in the cosine between sequences as
# well, and their difference is 0.
own = torch.randn(200, 8, 32, generator=generator, dtype=torch.float64)
common = torch.randn(200, 1, 32, generator=generator, dtype=torch.float64)
places = 2 + 2 * torch.randn(8, 32, generator=generator, dtype=torch.float64)
for name, tokens in {
    "positions alone": places + own,
    "40 % in common": places + 0.6**0.5 * own + 0.4**0.5 * common,
}.items():
    sums = particles.pair_sums(*particles.directions(tokens), draws=19)
    within = float(sums.within[0] / sums.within[1])
    print(
        f"{name}: cosine {within:.2f}, less between sequences {sums.difference:.4f}, share "
        f"{sums.share:.2f}; null {max(sums.chance):.4f}"
    )

# %%
# The patches of the digits, and where the flow takes them.
problem = particles.ON_DATA.read(tt.data.load("digits"))
table, arrays = collect(particles.ON_DATA.measure(problem, generator, draws=19))
for row in table:
    print(
        f"{row.quantity}: {row.value:.3f}"
        + ("" if row.null is None else f", null {row.null.low:.3f} to {row.null.high:.3f}")
    )
figure = particles.ON_DATA.plot(
    tt.Result("compare", table=table, arrays=arrays, sources=particles.THEORY.sources)
)
