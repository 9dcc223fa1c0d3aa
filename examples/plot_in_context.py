"""
Which algorithm does a transformer run on the examples of its prompt?
=====================================================================

One layer of linear attention takes one step of gradient descent on the examples; trained, it takes the best
preconditioned step.

First a written layer, then the best step in closed form and a trained layer, statistics by attention, and
last how much a language model gains from its context.
"""

import torch

import transformer_theory as tt
from transformer_theory import in_context
from transformer_theory.core.result import Result
from transformer_theory.core.table import collect
from transformer_theory.data import digits
from transformer_theory.maths.linalg import cosine
from transformer_theory.models import Decoder, build
from transformer_theory.theories.in_context.figures.algorithms import algorithms
from transformer_theory.theories.in_context.in_networks import InContextScore
from transformer_theory.theories.in_context.references import many_steps, ridge

generator = torch.Generator().manual_seed(0)

# %%
# Five layers of linear attention with written weights are five steps of descent, up to rounding.
spectrum = torch.tensor([2.0, 1.0, 0.5, 0.25, 0.1], dtype=torch.float64)
inputs = in_context.gaussian_inputs(spectrum)
prompts = in_context.linear_prompts(500, 20, inputs, generator=generator)
answers = in_context.LinearAttentionGD(eta=0.3, steps=5)(prompts)
print(f"largest difference: {float((answers - many_steps(prompts, 0.3, 5)).abs().max()):.1e}")

# %%
# The best single step is preconditioned by the inverse of Gamma. A layer that is trained for a second comes
# close to it.
covariance, eye = torch.diag(spectrum), torch.eye(5, dtype=torch.float64)
G = in_context.preconditioner(covariance, 20)
plain = in_context.optimal_step(covariance, 20) * eye
for name, matrix in (
    ("best step", G),
    ("plain step", plain),
    ("inverse covariance", torch.linalg.inv(covariance)),
):
    print(
        f"{name}: risk {in_context.risk(matrix, covariance, 20):.4f}, cosine to the best "
        f"{float(cosine(matrix, G)):.3f}"
    )


def draw(generator):
    return in_context.linear_prompts(128, 20, inputs, generator=generator)


model = in_context.train_attention(draw, 5, steps=400, generator=generator)
print(f"trained layer: cosine {float(cosine(model.preconditioner(), G)):.4f}")
row = in_context.slope_on_step(model, prompts, G)
print(
    f"slope of its answers on the best step: {row.value:.3f}, with other contexts {row.null.low:.2f} to "
    f"{row.null.high:.2f}"
)

# %%
# Ridge by three heads of ReLU attention, and selection of its strength by validation inside the prompt.
few = in_context.linear_prompts(
    40, 20, in_context.gaussian_inputs(torch.ones(5)), noise=0.1, generator=generator
)
_, answers = in_context.ridge_transformer(few, 0.1, 60)
print(f"largest distance to ridge after 60 layers: {float((answers - ridge(few, 0.1)).abs().max()):.1e}")
weights, losses, _ = in_context.select(few, (0.003, 0.3), layers=40, held_out=10, temperature=0.02)
print(f"mean weight of the smaller strength: {float(weights[:, 0].mean()):.2f}")
experiment = algorithms(layers=(1, 10, 20, 30), prompts=10)
figure = experiment.plot(experiment.run())

# %%
# The user's tokens as inputs: which step is the best for the patches of digits?
theory = in_context.THEORY.on_data
table, arrays = collect(theory.measure(theory.read(digits()), generator, draws=0))
for row in table:
    print(
        f"{row.quantity}: {row.value:.3f}"
        + ("" if row.predicted is None else f" (predicted {row.predicted:.3f})")
    )
figure = theory.plot(Result("digits", table=table, arrays=arrays))

# %%
# The in-context score of a model of ids, here with random weights: the loss of the same ids late minus early.
network = build(lambda: Decoder(vocabulary=50, dim=32, depth=2, heads=2), generator)
made = in_context.repeated_context(
    torch.randint(50, (16, 32), generator=generator), {"vocabulary": 50}, generator
)
targets = made.pop("targets")
print(tt.respond(network, made, [InContextScore()], targets=targets, null_kind="other contexts").table[0])
