"""
Do trained layers compress? CRATE beside a ViT
==============================================

Layer by layer, on the same axes: rates before and after attention, exact zeros, and how far classes are apart.

CRATE's layers are derived as steps that compress tokens and make them sparse. Whether trained ones do can be read in any network. Each
curve has a null, for random weights have curves too.
"""

import torch

import transformer_theory as tt
from transformer_theory import crate, models
from transformer_theory.core.plotting import axes, line
from transformer_theory.training import accuracy, train

# %%
# Handwritten digits as 16 patches of four pixels; two networks of the same width, depth and number of heads learn them for 200 steps, each
# at its own learning rate. That is little, for the ViT above all: docs/theories/crate.md has longer runs, with several seeds.

generator = torch.Generator().manual_seed(0)
data, held_out = tt.data.load("digits").split(0.75, generator)
sizes = {"dim": 32, "depth": 3, "heads": 4}
seq, token_dim = data.tokens.shape[1:]
networks = {
    "CRATE": models.build(lambda: models.CRATE.for_tokens(seq, token_dim, data.classes, **sizes), generator),
    "ViT": models.build(lambda: models.ViT.for_tokens(seq, token_dim, data.classes, **sizes), generator),
}
rates = {"CRATE": 3e-3, "ViT": 2e-3}
for name, model in networks.items():
    train(model, data, held_out, steps=200, warm_up=20, learning_rate=rates[name], generator=generator)
    count = sum(parameter.numel() for parameter in model.parameters())
    print(f"{name:>5}: {count:,} parameters, {accuracy(model, held_out):.1%} of {len(held_out)} held-out digits")

# %%
# One line a network. The null is the same weights with the entries of every tensor in another order.

rows = [row for name, model in networks.items() for row in crate.layerwise(model, held_out.tokens, held_out.labels, name=name)]
for row in rows:
    print(f"{row['model']:>5} layer {row['layer']} {row['quantity']:40} {row['value']:8.3f} (null {row['null']:.3f})")

# %%
# What heads read, what attention leaves, zeros and classes; dashed: the null.

PANELS = {
    "R^c of Z^{l+1/2}, after attention": "$R^c$ after attention, nats",
    "share of non-zeros": "share of non-zeros",
    "rate reduction by class": "$\\Delta R$ by class, nats",
}
figure, panels = axes(1, 3, height=2.6)
for panel, (quantity, title) in zip(panels, PANELS.items()):
    for name, colour in (("CRATE", "crate"), ("ViT", "attention_svm")):
        own = [row for row in rows if row["quantity"] == quantity and row["model"] == name]
        layers = [row["layer"] + 1 for row in own]
        line(panel, layers, [row["value"] for row in own], name=colour, label=name)
        line(panel, layers, [row["null"] for row in own], name=colour, linestyle="--")
    panel.set(title=title, xlabel="layer", xticks=layers, ylim=(0, None))
panels[0].legend(loc="lower left")
figure.savefig("crate_layers.png", dpi=150)
