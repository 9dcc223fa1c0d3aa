"""
Does a selector choose the token that carries the label?
========================================================

A router scores the tokens, one of them is chosen, and a head predicts the label from it alone. Accuracy does
not say that it chose the right one.

First the gradient of a random choice, then a shortcut that is exact and misses half of the needles, selectors
that learn, and last a selector on the digits.
"""

import torch

import transformer_theory as tt
from transformer_theory import router
from transformer_theory.core.table import collect
from transformer_theory.theories.router.choice import exact_gradient
from transformer_theory.theories.router.figures.gradient import gradient
from transformer_theory.theories.router.needle import chosen_tokens, shortcut
from transformer_theory.theories.router.selector import train_on_needles

# %%
# The largest score with Gumbel noise is a sample of the softmax. Its straight-through gradient is too small.
scores = torch.tensor([1.0, 0.0, -1.0])
chosen = router.sample_choice(scores, 20_000, generator=torch.Generator().manual_seed(0))
print("chosen:", (torch.bincount(chosen) / 20_000).tolist(), "softmax:", torch.softmax(scores, 0).tolist())
print(
    f"two tokens with equal scores: {router.relaxed_gradient_mean(0.0):.3f} instead of "
    f"{exact_gradient(0.0):.3f}"
)
figure = gradient(draws=20_000).plot(gradient(draws=20_000).run())

# %%
# All sequences of eight tokens. The shortcut takes the needle if its content is +1, and its neighbour if not.
needles = router.enumerate_needles(8)
choice = shortcut(needles)
hit = router.hit(choice, needles.needle)
print(f"accuracy {router.best_accuracy(chosen_tokens(needles, choice), needles.labels):.2f}, hit {hit:.2f}")
print(f"label-blind bound at this hit: {float(router.label_blind_bound(hit)):.2f}")
print(
    f"information of the position: {router.choice_information(choice, needles.labels, corrected=False):.2f} "
    "nats"
)
given = router.choice_information(choice, needles.labels, given=needles.needle, corrected=False)
print(f"information given the needle: {given:.2f} nats, log 2 = 0.69")

# %%
# Six selectors each. A penalty from the first step sends some of them to a wrong token.
for name, schedule in {
    "penalty from the first step": router.straight_through(0.05),
    "annealed": router.ANNEALED,
}.items():
    generator = torch.Generator().manual_seed(0)
    found, _ = train_on_needles(schedule, sees_contents=False, networks=6, steps=200, generator=generator)
    print(name, "hits:", [round(each, 2) for each in found.hit.tolist()])

# %%
# A selector on the digits: where it looks tells the class.
problem = router.ON_DATA.read(tt.data.load("digits"))
table, arrays = collect(router.ON_DATA.measure(problem, torch.Generator().manual_seed(0), draws=19))
for row in table:
    print(
        f"{row.quantity}: {row.value:.2f}"
        + ("" if row.null is None else f", largest null draw {row.null.high:.2f}")
    )
figure = router.ON_DATA.plot(tt.Result("compare", table=table, arrays=arrays, sources=router.THEORY.sources))
