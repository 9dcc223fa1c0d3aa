"""
Where does gradient descent send attention?
===========================================

One head and 2,000 steps of descent: attention picks one token per input, and the weights become those of a
support vector machine.

W turns towards the solution of the max-margin problem of the tokens that it selects, with the smallest
Frobenius norm. If the factors of W = K Q^T are trained, K Q^T turns towards the solution with the smallest
nuclear norm. A head with random weights has a positive cosine to its own solution too: the chance level.
"""

import torch

from transformer_theory import attention_svm
from transformer_theory.core.plotting import COLOURS, axes, heatmap, line
from transformer_theory.maths.linalg import cosine
from transformer_theory.theories.attention_svm.dynamics import random_factors, random_start
from transformer_theory.theories.attention_svm.problem import random_selection
from transformer_theory.theories.attention_svm.selection import locally_optimal

generator = torch.Generator().manual_seed(0)

# %%
# Six inputs of eight tokens in ten dimensions; each token has a score, and the best one is not always the one
# that descent finds.

instance = attention_svm.cross_attention(inputs=6, tokens=8, dim=10, generator=generator)
begin = random_start(instance, generator=generator)
steps = [0, 10, 20, 50, 100, 200, 300, 500, 700, 1000, 1500, 2000]
states = list(attention_svm.trajectory(instance, begin, steps=steps))
end = states[-1]
selected = instance.selected(end.W)
print("selected tokens:", selected.tolist(), " best tokens:", instance.optimal().tolist())

# %%
# The max-margin solutions of the selected tokens, each with its optimality conditions verified.

constraints = attention_svm.constraints(instance.tokens, instance.query, selected)
frobenius = attention_svm.frobenius_max_margin(constraints)
nuclear = attention_svm.nuclear_max_margin(constraints)
print(
    f"Frobenius: rank {frobenius.rank}, KKT residual {frobenius.kkt:.0e};  nuclear: rank {nuclear.rank}, "
    f"{nuclear.kkt:.0e}"
)
optimal = locally_optimal(instance.scores, selected, constraints, frobenius)
print("every selected token scores above its neighbours:", bool(optimal.all()))

# %%
# The factors, trained on the same data with the penalty of the published runs, go to the nuclear solution of
# the tokens that they select.

smallest = torch.finfo(torch.float64).eps
factors = random_factors(instance, generator=generator)
factored = list(attention_svm.trajectory(instance, factors, steps=steps, eps=smallest, penalty=smallest))
pairs = attention_svm.constraints(instance.tokens, instance.query, instance.selected(factored[-1].W))
targets = attention_svm.frobenius_max_margin(pairs), attention_svm.nuclear_max_margin(pairs)

# %%
# For an infeasible selection, the error carries a proof.

narrow = attention_svm.cross_attention(inputs=12, tokens=6, dim=3, generator=generator)
random = random_selection(narrow, generator=generator)
try:
    attention_svm.frobenius_max_margin(attention_svm.constraints(narrow.tokens, narrow.query, random))
except attention_svm.Infeasible as error:
    print(error)

# %%
# Cosine to both solutions with the chance level of W, and the attention of W at the end.

result = attention_svm.alignment(end.W, instance.tokens, instance.query, generator=generator, draws=8)
figure, (left, middle, right) = axes(1, 3, width=9.5)
left.axhline(result.null.mean, color=COLOURS["null"], linestyle="--", linewidth=1, label="chance level of W")
for ax, run, (to_frobenius, to_nuclear), title in (
    (left, states, (frobenius, nuclear), "W: cosine to the solution"),
    (middle, factored, targets, "K and Q: cosine to the solution"),
):
    line(
        ax, steps, [float(cosine(s.W, to_frobenius.W)) for s in run], name="attention_svm", label="Frobenius"
    )
    line(ax, steps, [float(cosine(s.W, to_nuclear.W)) for s in run], name="scan_snap", label="nuclear")
    ax.set(title=title, xlabel="step", ylim=(-0.3, 1.05))
    ax.legend(loc="lower right")
heatmap(right, instance.attention(end.W), "attention", vmin=0, vmax=1, cmap="Blues")
right.scatter(instance.optimal(), range(6), s=22, facecolors="none", edgecolors="#D55E00")
right.set(title="Attention (best token ringed)", xlabel="token", ylabel="input")
print(f"cosine {result.cosine:.3f}, chance level {result.null.low:.3f} to {result.null.high:.3f}")
figure.savefig("attention_svm.png", dpi=150)
