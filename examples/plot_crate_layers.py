"""
Do trained layers compress? CRATE and a ViT
===========================================

Layer by layer: rates before and after attention, exact zeros, and the rate reduction by class.

CRATE's layers are derived as steps that compress tokens and make them sparse. Whether trained layers do so
can be measured in any network. Each curve has a chance level, since random weights have curves too.
"""

import torch

import transformer_theory as tt
from transformer_theory import crate, models
from transformer_theory.core.plotting import axes, line
from transformer_theory.theories.crate.in_networks import AFTER, NONZEROS
from transformer_theory.theories.crate.layer_curves import REDUCTION
from transformer_theory.training import accuracy, train_classifier

# %%
# Handwritten digits as 16 patches of four pixels; two networks of the same width, depth and number of heads
# learn them for 120 steps, each with its own learning rate. This is a short training, above all for the ViT:
# docs/theories/crate.md has longer runs with several seeds.

generator = torch.Generator().manual_seed(0)
train, validation = tt.data.load("digits").split(0.75, generator)
sizes = {"dim": 32, "depth": 3, "heads": 4}
seq, token_dim = train.tokens.shape[1:]
networks = {
    "CRATE": models.build(lambda: models.CRATE.for_tokens(seq, token_dim, train.classes, **sizes), generator),
    "ViT": models.build(lambda: models.ViT.for_tokens(seq, token_dim, train.classes, **sizes), generator),
}
rates = {"CRATE": 3e-3, "ViT": 2e-3}
for name, model in networks.items():
    train_classifier(
        model, train, validation, steps=120, warm_up=12, learning_rate=rates[name], generator=generator
    )
    count = sum(parameter.numel() for parameter in model.parameters())
    print(
        f"{name:>5}: {count:,} parameters, accuracy {accuracy(model, validation):.1%} on {len(validation)} "
        "validation digits"
    )

# %%
# One line per network. The null is the same weights with the entries of every tensor in another order.

tables = {
    name: crate.layerwise(model, validation.tokens, validation.labels, name=name)
    for name, model in networks.items()
}
for name, table in tables.items():
    for row, null in zip(table, table.column("null")):
        print(f"{name:>5} layer {row.layer} {row.quantity:30} {row.value:8.3f} (null {null.median:.3f})")

# %%
# Rates after attention, zeros and classes; dashed: the null.

PANELS = {
    AFTER: "$R^c$ after attention, nats",
    NONZEROS: "share of non-zeros",
    REDUCTION: "$\\Delta R$ by class, nats",
}
figure, panels = axes(1, 3, height=2.6)
for panel, (quantity, title) in zip(panels, PANELS.items()):
    for name, colour in (("CRATE", "crate"), ("ViT", "attention_svm")):
        curve = tables[name].select(quantity=quantity)
        layers = [layer + 1 for layer in curve.column("layer")]
        line(panel, layers, curve.column("value"), name=colour, label=name)
        line(panel, layers, [null.median for null in curve.column("null")], name=colour, linestyle="--")
    panel.set(title=title, xlabel="layer", xticks=layers, ylim=(0, None))
panels[0].legend(loc="lower left")
figure.savefig("crate_layers.png", dpi=150)
