# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Quickstart notebook: your tokens, your network, a figure for your paper
#
# From numpy arrays to a figure and a table with references. Nothing is downloaded, and the whole notebook takes about two minutes on two
# cores. It needs `pip install "transformer-theory[notebook]"` ([where to get it](../start.md#install)). Put your own tokens and your own
# network where the comments say so.

# %%
import torch
from sklearn.datasets import load_digits
from torch import nn

import transformer_theory as tt

torch.set_num_threads(1)  # small networks are faster on one thread

# %% [markdown]
# ## 1. Your tokens
#
# A data set is n sequences of vectors: a numpy array or a tensor `[n, seq, dim]`. Labels are optional, and so are the ids of words
# ([all fields](../start.md#three-next-steps)). Here each handwritten digit of 8 × 8 pixels is cut into 16 patches of 2 × 2 pixels.

# %%
digits = load_digits()
images = digits.images / 16  # [1797, 8, 8], in [0, 1]
patches = images.reshape(-1, 4, 2, 4, 2).transpose(0, 1, 3, 2, 4)
patches = patches.reshape(-1, 16, 4)

# Your arrays here:
data = tt.TokenData(tokens=patches, labels=digits.target, name="my digits")
data

# %% [markdown]
# ## 2. What do theories say about these data?
#
# `compare` trains small networks from several seeds, measures untrained ones beside them, runs each theory's own model on the tokens and on
# noise of the same shape, and tests the outcome. `tt.list_theories()` has all theories; two of them and one kind of network are enough here.
# `tt.compare(data)` compares everything, which takes minutes.

# %%
result = tt.compare(
    data[:600],
    ["rate_reduction", "collapse"],
    networks=["ViT"],
    seeds=2,
    steps=120,
    claim_seeds=0,
)
result

# %%
result.plot()

# %% [markdown]
# A dot is the mean over the seeds with its interval. Grey is the null: the same quantity where the theory says nothing, such as permuted labels
# or untrained networks. **A value within its null is no finding**; [when is a number a finding?](../statistics.md) explains the tests.
#
# Every number is a row of one table. These rows have one headline on the raw tokens, and in the networks beside two nulls:

# %%
frame = result.table.summary().to_pandas()  # means over seeds
headline = frame.quantity == "rate reduction as a share of the optimum"
rows = frame[headline & frame.step.isna() & frame.layer.isna()]
columns = ["kind", "model", "value", "interval_low", "interval_high"]
rows[[*columns, "null_kind", "null_median", "p"]].round(3)

# %% [markdown]
# ## 3. Your network
#
# Any torch module will do. This one knows nothing of the library; write yours here, or load it.


# %%
class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)
        )

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class MyViT(nn.Module):
    def __init__(self, dim=64, depth=3, heads=4, classes=10):
        super().__init__()
        self.patches = nn.Conv2d(1, dim, kernel_size=2, stride=2)
        self.positions = nn.Parameter(0.02 * torch.randn(1, 16, dim))
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.head = nn.Linear(dim, classes)

    def forward(self, images):  # [batch, 1, 8, 8]
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(dim=1))


# %% [markdown]
# Train it as you always do, or load its weights. The probe in the loop is optional: it measures the network while it runs, and changes nothing
# in it. Two lines are enough, `with probe` around a forward pass on validation images, and their labels.

# %%
names = "attention_svm rate_reduction crate vision collapse particles".split()
theories = [theory for theory in tt.list_theories() if theory.name in names]
metrics = [one for theory in theories for one in theory.in_networks.metrics()]

torch.manual_seed(0)
pixels = torch.tensor(images, dtype=torch.float32).unsqueeze(1)
labels = torch.tensor(digits.target)
order = torch.randperm(len(pixels))
train, validation = order[:1500], order[1500:1756]

model = MyViT()  # your network here
optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
probe = tt.probe(model, metrics, name="my ViT")

for step in range(201):
    if step % 25 == 0:
        with probe, torch.no_grad():
            probe.step, probe.labels = step, labels[validation]
            right = model(pixels[validation]).argmax(1) == labels[validation]
    batch = train[torch.randint(len(train), (64,))]
    loss = nn.functional.cross_entropy(model(pixels[batch]), labels[batch])
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()

print(f"validation accuracy at step {step}: {right.float().mean():.1%}")

# %% [markdown]
# ## 4. What do theories see in your network?
#
# `tt.measure` runs the metrics of every theory in the network, and in 19 networks of the same kind with random weights. Labels are optional.

# %%
mine = tt.measure(model, pixels[validation], labels[validation], name="my ViT")
mine.plot()

# %% [markdown]
# A panel has the headline of one theory by layer. Compare the line with the grey band: inside it, the mean is what its null gives as well. Large
# dots are heads or layers beyond their own null. The page says it in sentences, names the heads that stand out, and lists apart what networks
# with random weights give as well:

# %%
mine.report("runs/my-vit", overwrite=True)

# %% [markdown]
# The probe in the training loop has the same quantities over the training steps. A dot marks the step at which a curve leaves its null for good.

# %%
probed = probe.result()
probed.plot("timeline")

# %% [markdown]
# ## 5. How far does a theory reach?
#
# A ladder measures one quantity in the theory's own setting, and then with one assumption after another relaxed: real tokens, everything
# trained, AdamW, and further on full blocks, depth and trained networks. Agreement is 0 at chance and 1 at the prediction.

# %%
reached = tt.reach(
    ["collapse", "bottleneck"],
    seeds=2,
    until="AdamW and mini-batches",  # leave it out for all rungs
)
reached.plot()

# %% [markdown]
# ## 6. For your paper
#
# A figure as a file; beside each page, the table in LaTeX with its `\cite` commands, and the references. They depend on the stored result
# alone, so they can be made again without measuring anything.

# %%
mine.plot().savefig("runs/my-vit.pdf")
page = result.report("runs/my-digits", overwrite=True)
print(page.path.with_name("table.tex").read_text())

# %%
print(tt.cite("rate_reduction"))

# %% [markdown]
# **Where to go from here.** [Which theory answers which question?](../which_theory.md) has a command for each. [Your own
# model](../own_models/overview.md) has a snippet for each framework, and the command that writes the page. [Probes](../probes.md) lists the
# networks that are measured correctly. [Training](../training.md) keeps seeds, untrained networks and settings
# for you. [For survey writers](../for_survey_writers.md) explains the LaTeX output.
