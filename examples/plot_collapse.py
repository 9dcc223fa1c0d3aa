"""
Do tokens become alike?
=======================

Attention averages tokens. How fast do their differences vanish, and what prevents it?

First attention without skip connections, then random weights and depth, and last the heads of a network.
"""

import torch

import transformer_theory as tt
from transformer_theory.core.table import collect
from transformer_theory.models import ViT
from transformer_theory.theories import collapse

generator = torch.Generator().manual_seed(0)

# %%
# Without a skip connection one layer is cubic in small differences; the exact law is R W C_a V.
mean, differences = torch.randn(2, 16, 8, generator=generator, dtype=torch.float64)
W, V = torch.randn(2, 1, 8, 8, generator=generator, dtype=torch.float64) / 8**0.5
for size in (0.1, 0.01):
    x = mean[:1] + size * differences
    after = collapse.residual(collapse.pure_attention(x, W, V))
    error = (after - collapse.cubic_law(x, W[0], V[0])).norm() / after.norm()
    print(
        f"differences of size {size}: {float(after.norm()):.1e} afterwards, relative error of the law "
        f"{float(error):.0e}"
    )

# %%
# Scaled by one over the root of their number, layers with skip connections do not make tokens equal.
for layers in (4, 16):
    for alpha in (1.0, layers**-0.5):
        found = float(collapse.mean_cosine(collapse.stream(32, 64, layers, alpha, generator)))
        print(
            f"{layers} layers, alpha {alpha:.2f}: cosine {found:.3f}, predicted "
            f"{collapse.depth_cosine(alpha, layers, 32):.3f}"
        )

# %%
# How many keys hold the weight of a row depends on b, the deviation of the scores over the root of log n.
for b in (0.5, 1.0, 3.0):
    mean_participation = float(collapse.gaussian_participation(4096, b, 50, generator).mean())
    print(
        f"b = {b}: participation {mean_participation:.4f} of 4,096 keys, limit {collapse.limit(b, 4096):.4f}"
    )

# %%
# What random heads keep of the differences between the patches of the digits.
data = tt.data.load("digits")
table, arrays = collect(collapse.ON_DATA.measure(collapse.ON_DATA.read(data), generator, draws=0))
for row in table:
    print(
        f"{row.quantity}: {row.value:.3f}"
        + ("" if row.predicted is None else f", predicted {row.predicted:.3f}")
    )
figure = collapse.ON_DATA.plot(
    tt.Result("compare", table=table, arrays=arrays, sources=collapse.THEORY.sources)
)

# %%
# The heads of a network, here an untrained one, beside their keys permuted in each row.
model = ViT.for_tokens(16, 4, 10, dim=32, depth=2, heads=2)
with tt.probe(model, [collapse.HeadContraction()], draws=19) as p, torch.no_grad():
    model(data.tokens[:64].float())
for row in p.result().table:
    if row.null is not None and row.value is not None:
        print(
            f"layer {row.layer}, head {row.head}, {row.quantity}: {row.value:.3f}, null {row.null.low:.3f} "
            f"to {row.null.high:.3f}"
        )
