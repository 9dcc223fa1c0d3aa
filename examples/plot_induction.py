"""
Which heads continue what the context has shown before?
=======================================================

A previous-token head and an induction head, written by hand, predict the bigram statistics of their context.
Trained networks find them.

First the explicit head and its error, then the paths of an attention-only network, memories, and the
formation of induction heads in two layers; last the heads of a trained network.
"""

import torch

from transformer_theory import induction
from transformer_theory.theories.induction.figures.formation import formation
from transformer_theory.theories.induction.heads import random_sequences
from transformer_theory.theories.induction.in_networks import COPYING
from transformer_theory.theories.induction.scores import PREFIX, PREVIOUS

generator = torch.Generator().manual_seed(0)

# %%
# The explicit head at three scales, beside the counts. One layer without it attends uniformly.
ids = random_sequences(8, vocabulary=5, length=60, generator=generator)
counts, known = induction.in_context_bigram(ids, 5)
for scale in (5.0, 30.0, 400.0):
    head = induction.InductionHead(5, 60, scale)
    errors = [
        float((head.output(ids, composed=composed) - counts)[known].abs().max()) for composed in (True, False)
    ]
    print(f"b = {scale:g}: error {errors[0]:.1e}, one layer {errors[1]:.2f}, bound {head.bound():.1e}")

# %%
# The logits of an attention-only network are a sum over paths; here two layers of two heads, so nine paths.
network = induction.Network(vocabulary=7, length=16, layers=2, heads=2, dim=16)
model = induction.attention_only(network)
words = torch.randint(7, (4, 16), generator=generator)
terms = induction.path_expansion(model, words)
print(
    f"{len(terms)} paths, error of their sum "
    f"{float((sum(terms.values()) - model.run(words)[0]).abs().max()):.1e}"
)

# %%
# Embeddings as memory: 128 dimensions hold far more than 128 pairs.
for pairs in (128, 512, 1024, 2048):
    print(f"{pairs} pairs in 128 dimensions: recall {induction.predicted_recall(pairs, 128):.2f}")
print(f"capacity: {induction.capacity(128):.0f}")

# %%
# Induction heads form suddenly with two layers, and not with one.
experiment = formation(steps=120, every=15, blocks=64)
figure = experiment.plot(experiment.run())

# %%
# Head by head: any model of ids, for example a local GPT-2 of ``transformers``. Here a network that has just
# learnt.
trained = induction.train_induction(2, steps=120, norm=True, generator=generator)
result = induction.score_heads(trained, sequences=30)
for quantity in (PREVIOUS, PREFIX, COPYING):
    for row in result.select(quantity=quantity):
        print(
            f"{quantity}, layer {row.layer}, head {row.head}: {row.value:.2f}, largest null draw "
            f"{row.null.high:.2f}"
        )
loss = result.select(quantity="loss at a position").one()
print(f"loss of the second block: {loss.value:.2f} nats, after another first block {loss.null.median:.2f}")
figure = induction.head_map(result, PREFIX, COPYING)
