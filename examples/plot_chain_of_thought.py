"""
What do intermediate steps buy a transformer?
=============================================

A decoder of two layers with written weights finds the longest increasing subsequence of any sequence, if it
may write down its steps.

First a question with its chain, then the written decoder, with and without the chain; a decoder that learns;
last, what a chain buys in any model of ids.
"""

import torch

from transformer_theory import chain_of_thought
from transformer_theory.models.decoder import Decoder

generator = torch.Generator().manual_seed(0)

# %%
# Five tasks. A chain ends in the answer, and every symbol of it follows from the question and the symbols
# before it.
for task in (
    chain_of_thought.Arithmetic(operations=3, modulus=5),
    chain_of_thought.Equations(variables=2, modulus=5),
    chain_of_thought.LIS(n=10, values=10),
    chain_of_thought.EditDistance(n=3, letters=3),
    chain_of_thought.Membership(n=4),
):
    question, chain, answer = task.sample(generator)
    chain_of_thought.verify(task, question, chain)
    print(f"{' '.join(question)} = {' '.join(chain)} : {' '.join(answer)}")

# %%
# A wrong step is found.
task = chain_of_thought.Arithmetic(2, 5)
try:
    chain_of_thought.verify(task, tuple("1+2*3"), tuple("1+2=3"))
except ValueError as error:
    print(error)

# %%
# Written weights: the same two layers for every length. With empty symbols in place of the chain nothing is
# right.
for n in (10, 50, 100):
    task = chain_of_thought.LIS(n, n)
    samples = [task.sample(generator) for _ in range(10)]
    model = chain_of_thought.WrittenDecoder(task)
    with_chain, filler = (
        chain_of_thought.written.whole(model, task, samples, filler=each).double().mean()
        for each in (False, True)
    )
    print(f"n = {n}: {with_chain:.0%} of the questions with the chain, {filler:.0%} with empty symbols")

# %%
# A decoder that learns: training and test questions are disjoint, the question is masked, and the answer is
# generated freely. Five numbers need no chain. Expressions do: ``transformer-theory run
# chain_of_thought.training --out runs/training`` takes minutes.
parts = chain_of_thought.split(chain_of_thought.LIS(5, 5), train=2000, test=100, generator=generator)
for mode in ("chain", "direct"):
    small = chain_of_thought.Recipe(dim=32, depth=1)
    found = chain_of_thought.train(
        parts, mode, steps=100, generator=generator, recipe=small, measured=(50, 100), questions=100
    )
    print(f"{mode}: accuracy by step {found.accuracies}")

# %%
# Any model of ids: accuracy with the chain minus without, beside filler symbols and the chain of another
# question. This one is untrained.
torch.manual_seed(0)
model = Decoder(vocabulary=40, dim=32, heads=2, hidden=32)
for row in chain_of_thought.chain_gain(
    model, limits={"vocabulary": 40, "length": 120}, questions=16, generator=generator
):
    print(f"{row.quantity}, {row.setting}: {row.value:.0%}")
