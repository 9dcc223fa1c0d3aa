"""
What does a white-box layer do, before any training?
====================================================

Eight untrained layers of CRATE compress tokens into subspaces in two of three forms; in the third they do the
opposite.

The steps of a layer, unrolled on tokens from a mixture of subspaces: the exact gradient step and the paper's
attention lower the coding rate, the residual form with tied output raises it here, where the subspaces are
orthogonal, and a token needs few atoms of the right dictionary.
"""

import torch

from transformer_theory import crate
from transformer_theory.core.plotting import axes, label_ends, line
from transformer_theory.data.synthetic import subspace_mixture
from transformer_theory.metrics import unit_norm
from transformer_theory.theories.crate.sparse_coding import signed_dictionary
from transformer_theory.theories.crate.unrolled import forms, guaranteed_rates, unroll

generator = torch.Generator().manual_seed(0)

# %%
# Tokens near four orthogonal subspaces of dimension six, with the bases known.

mixture = subspace_mixture(64, seq=32, dim=24, classes=4, rank=6, noise=0.1, generator=generator)
tokens, bases, eps = mixture.data.tokens, mixture.bases, 2.0
print(f"incoherence {crate.incoherence(bases):.1e}, incompleteness {crate.incompleteness(bases):.1e}")

# %%
# Eight steps in each form. The exact step has a guarantee.

runs = {
    name: unroll(tokens, bases, step, eps=eps, layers=8) for name, step in forms(bases, n=32, eps=eps).items()
}
bound = guaranteed_rates(runs["exact"], bases, eps=eps)
for name, run in runs.items():
    print(f"{name:>13}: R^c {run.rates[0]:.3f} -> {run.rates[-1]:.2g}")

# %%
# Sparse codes: FISTA finds the optimum of the non-negative LASSO, and verifies it. Random subspaces of the
# same sizes are the chance level.

sample = unit_norm(tokens[::8].flatten(0, 1))


def share(subspaces: torch.Tensor, lam: float) -> float:
    """Share of non-zeros of the optimal code; the dictionary has all directions of the subspaces with both
    signs.
    """
    return float(crate.nonzeros(crate.fista(sample, signed_dictionary(subspaces), lam=lam).code))


random = crate.random_subspaces(4, 24, 6, generator=generator)
weights = [0.01, 0.02, 0.05, 0.1, 0.2]
shares, null = ([share(subspaces, lam) for lam in weights] for subspaces in (bases, random))
print("non-zeros", [f"{a:.3f} (null {b:.3f})" for a, b in zip(shares, null)])

# %%
# Both halves of a layer.

figure, (left, right) = axes(1, 2)
for name, colour in (("exact", "crate"), ("paper", "rate_reduction"), ("tied residual", "scan_snap")):
    line(left, range(9), (runs[name].rates / runs[name].rates[0]).clamp(min=1e-3), name=colour, label=name)
line(left, range(9), bound / bound[0], name="crate", label="exact, bound", linestyle="--")
left.set(title="$R^c(Z; U)$, start = 1 (floor .001)", xlabel="layer", yscale="log")
label_ends(left)
line(right, weights, shares, name="crate", label="the tokens' subspaces")
line(right, weights, null, name="null", label="random subspaces")
right.axhline(1 / 8, color="black", linestyle=":", label="1 / (2 K)")
right.set(title="Non-zeros of the sparse code", xlabel="$\\lambda$", xscale="log", ylim=(0, 0.85))
right.legend(loc="upper right")
figure.savefig("crate.png", dpi=150)
