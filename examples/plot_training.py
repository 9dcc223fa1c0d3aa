"""
What happens inside a network while it learns?
==============================================

A small CRATE learns digits, and two theories measure it meanwhile: does attention compress, and do classes
move apart?

Every few epochs their metrics are computed on validation images: compression, sparsity, rate reduction, each
with its null.
"""

import tempfile
from dataclasses import replace
from pathlib import Path

import transformer_theory as tt
from transformer_theory import crate, rate_reduction
from transformer_theory.core.plotting import axes, line
from transformer_theory.probes.measure import mean_over_heads
from transformer_theory.training.image import train
from transformer_theory.training.image.recipes import image_recipe

# %%
# Images are bytes with a class each. A recipe holds the settings, one frozen record, of which a few are
# changed here. On the command line this is ``transformer-theory train crate --data digits --epochs 5
# --interval 34 --theories crate,rate_reduction``.

data = tt.data.images("digits")
settings = replace(image_recipe("crate", image_size=data[0].size), epochs=5, interval=34)
theories = (crate.THEORY, rate_reduction.THEORY)
folder = Path(tempfile.mkdtemp()) / "run"
result = train(
    data,
    settings,
    folder,
    metrics=lambda: [metric for theory in theories for metric in theory.in_networks.metrics()],
    theories=[theory.name for theory in theories],
    sources=[source for theory in theories for source in theory.sources],
)
for row in result.select(theory="network", quantity="accuracy"):
    print(f"step {row.step:4}: {row.split} accuracy {row.value:.1%}")
print("stored:", ", ".join(sorted(path.name for path in folder.iterdir())))

# %%
# All measurements are rows of one table: quantity, value, null, layer, step. Heads are averaged here; grey is
# the null.

figure, panels = axes(1, 3, height=2.6)
quantities = (
    ("crate", crate.THEORY.in_networks.headline),
    ("crate", "share of non-zeros"),
    ("rate_reduction", rate_reduction.THEORY.in_networks.headline),
)
for panel, (theory, quantity) in zip(panels, quantities):
    for layer, dashes in ((0, "-"), (1, ":")):
        rows = mean_over_heads(result.select(theory=theory, quantity=quantity, layer=layer))
        steps = [row.step for row in rows]
        line(
            panel,
            steps,
            [row.value for row in rows],
            name=theory,
            linestyle=dashes,
            label=f"layer {layer + 1}",
        )
        line(panel, steps, [row.null.mean for row in rows], name="null", linestyle=dashes)
    panel.set(title=quantity, xlabel="step")
panels[2].legend(loc="upper left")
figure.savefig("training.png", dpi=150)
