"""
Is sparse attention about the text?
===================================

A decoder learns a few pages, and the same pages with their words shuffled: attention becomes sparse in both.

Scan-and-snap says that attention becomes sparse while a model learns the next word. Here a causal decoder of
one layer learns a few pages that come with the library (any plain-text file will do), and its attention is
measured meanwhile. The null is the same text with its words in another order: it has word frequencies and no
other structure, and attention becomes sparse all the same, while the model memorises. On a text this short a
falling entropy is weak evidence; both models are far worse on the validation words at the end than at the
start.
"""

import numpy as np
import torch

from transformer_theory import models, probe
from transformer_theory.core.plotting import axes, heatmap, line
from transformer_theory.data import Text
from transformer_theory.data.text import SHIPPED
from transformer_theory.metrics import AttentionMaps, AttentionStatistics
from transformer_theory.theories.scan_snap.language_training import sgd, train_decoder
from transformer_theory.training.tasks import next_word_loss

# %%
# The words of the text, of which the last fifth is for validation, and the same words shuffled.

text = Text.read(SHIPPED)
print(f"{len(text)} words, {len(text.vocabulary)} different ones: {' '.join(text.vocabulary.words[1:9])} ...")
order = torch.randperm(len(text), generator=torch.Generator().manual_seed(0))
texts = {"text": text, "shuffled words": Text(text.ids[order], text.vocabulary)}

# %%
# The decoder is that of the word-language-model tutorial, smaller; the MLP of its first layer learns at twice
# the rate.

STEPS, MEASURED = 200, range(0, 201, 20)
curves, maps = {}, {}
for name, whole in texts.items():
    train, validation = whole.split(0.8)
    windows = validation.windows(40)
    generator = torch.Generator().manual_seed(0)
    model = models.build(
        lambda: models.Decoder(vocabulary=len(text.vocabulary), dim=64, hidden=64), generator
    )
    curves[name] = []

    def callback(step, network, *, name=name, windows=windows):
        keeper = AttentionMaps(keep=1)
        with probe(network, [AttentionStatistics(), keeper]) as p:
            value = float(next_word_loss(network, windows))
        entropy = p.result().select(quantity="attention entropy").one().value
        curves[name].append(entropy)
        maps[name] = keeper.arrays()["attention/00"][0, 0]
        if step in (0, 100, 200):
            print(
                f"{name}, step {step}: entropy {entropy:.2f} nats, validation loss {value:.2f} nats per word"
            )

    train_decoder(
        model,
        train,
        optimiser=sgd(5.0),
        steps=STEPS,
        generator=generator,
        batch=10,
        callback_steps=MEASURED,
        callback=callback,
    )

# %%
# Left: the entropy of attention. Middle and right: the map of one validation window at the end, queries down,
# keys across; keys after the query are white.

figure, (left, middle, right) = axes(1, 3, width=7.6, height=2.6)
for (name, entropies), tint in zip(curves.items(), ("scan_snap", "null")):
    line(left, MEASURED, entropies, name=tint, label=name)
left.set(title="Attention entropy, nats", xlabel="step", ylim=(0, 2.8))
left.legend(loc="lower left")
for ax, (name, attention) in zip((middle, right), maps.items()):
    causal = np.where(np.tri(len(attention), dtype=bool), attention, np.nan)
    heatmap(ax, causal, "weight" if ax is right else "", vmin=0, vmax=1, bar=ax is right)
    ax.set(title=name, xlabel="key", ylabel="query")
