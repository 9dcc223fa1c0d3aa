"""
What happens inside a network while it learns?
==============================================

A small CRATE learns digits, and two theories read it as it does: does attention compress, and do classes move apart?

Every few passes over the images the theories read held-out ones: compression, sparsity, rate reduction. Each reading has its null.
"""

import tempfile
from dataclasses import replace
from pathlib import Path

import transformer_theory as tt
from transformer_theory import crate, rate_reduction
from transformer_theory.core.plotting import axes, line
from transformer_theory.training.image_recipes import recipe
from transformer_theory.training.loop import train

# %%
# Images are bytes with a class each. A recipe holds the settings, one frozen record; what differs from it is said here. On the command
# line this is ``transformer-theory train crate --data digits --epochs 8 --interval 34 --theories crate,rate_reduction``.

data = tt.data.images("digits")
settings = replace(recipe("crate", image_size=data[0].size), epochs=8, interval=34)
folder = Path(tempfile.mkdtemp()) / "run"
result = train(data, settings, folder, theories=[crate.THEORY, rate_reduction.THEORY])
for row in result.select(theory="network", quantity=("held-out accuracy", "test accuracy")):
    print(f"step {row['step']:4}: {row['quantity']} {row['value']:.1%}")
print("stored:", ", ".join(sorted(path.name for path in folder.iterdir())))

# %%
# All readings are rows of one table: a quantity, a value, its null, the layer and the step. Heads are averaged here; grey is the null.


def curve(quantity: str, layer: int, column: str) -> tuple[list[int], list[float]]:
    """Mean over heads of one column of the rows, step by step."""
    rows = [row for row in result.select(quantity=quantity, layer=layer) if row.get(column) is not None]
    steps = sorted({row["step"] for row in rows})
    values = [[row[column] for row in rows if row["step"] == step] for step in steps]
    return steps, [sum(of_step) / len(of_step) for of_step in values]


figure, panels = axes(1, 3, height=2.6)
for panel, theory, quantity in zip(
    panels,
    ("crate", "crate", "rate_reduction"),
    (crate.THEORY.order_parameter, "share of non-zeros", rate_reduction.THEORY.order_parameter),
):
    for layer, shade in ((0, "-"), (1, ":")):
        line(panel, *curve(quantity, layer, "value"), name=theory, linestyle=shade, label=f"layer {layer + 1}")
        line(panel, *curve(quantity, layer, "null"), name="null", linestyle=shade)
    panel.set(title=quantity, xlabel="step")
panels[2].legend(loc="upper left")
figure.savefig("training.png", dpi=150)
