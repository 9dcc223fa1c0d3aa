"""Claims about chance levels in networks, and about the computation of repeated padding; all are the
library's own.
"""

import math

import torch
from torch import Generator
from torch.nn import functional

from ....core.claims import NEAR, Measured, but, claim
from ....core.sources import Source
from ....maths.linalg import stable_rank
from ....models.embedding import build
from ..hierarchy import chance_recovery, random_hierarchy, recovery
from ..in_networks import gaussian_rank
from ..joint import Layer, Stack
from .sources import OWN

UNITS, CLASSES, HIERARCHIES = 400, 20, 100


@claim(
    "joma/recovery-by-chance",
    measures="distance of the recovery, mean over 100 hierarchies, from this level",
    at_most=0.008,
    margin=NEAR,
    source=Source("tian2024joma", "Table 1", "own"),
    assumptions=(
        "400 independent units, 20 classes, the lowest latents of the smaller setting of Table 1",
        "latents that are active in all classes or in none have no correlation and are left out",
    ),
    control=but(r"uses the asymptotic level $\sqrt{2 \ln m / C}$", asymptotic=True),
)
def recovery_by_chance(generator: Generator, *, asymptotic: bool = False) -> Measured:
    r"""m independent Gaussian units recover latents over C classes at the level $E \max_{u \le m} r_u$ of
    independent correlations r, where $r \sqrt{(C-2)/(1-r^2)}$ has Student's distribution with $C - 2$ degrees
    of freedom: .63 for m = 400, C = 20. The statement is the library's own. The threshold is ours.
    """
    values = []
    for _ in range(HIERARCHIES):
        activity = random_hierarchy(generator, classes=CLASSES).activity()[1]
        values.append(
            float(
                recovery(3 + torch.randn(CLASSES, UNITS, generator=generator, dtype=torch.float64), activity)
            )
        )
    predicted = math.sqrt(2 * math.log(UNITS) / CLASSES) if asymptotic else chance_recovery(UNITS, CLASSES)
    value = sum(values) / len(values)
    return Measured(abs(value - predicted), {"recovery": value, "predicted": predicted})


@claim(
    "joma/repeated-padding",
    measures="largest distance of logits and entropies from a computation on whole sequences",
    at_most=1e-10,
    source=OWN,
    assumptions=("no positional encoding", "two layers, thirteen positions, nine of them padding"),
    control=but("counts the padding once", repeated=False),
)
def repeated_padding(generator: Generator, *, repeated: bool = True) -> float:
    r"""Under causal attention k copies of one token at the start of a sequence stay equal in all layers, and
    act as one token with $\ln k$ added to its score, which makes the training of Table 1 cheap. The statement
    is the library's own.
    """
    model = build(lambda: Stack(vocabulary=12, classes=4, dim=16, width=10, depth=2), generator).double()
    assert isinstance(model, Stack)
    words = torch.randint(11, (6, 4), generator=generator)
    ids = torch.cat([torch.full((6, 9), 11), words], dim=1)
    tokens, wanted, entropies = model.embedding(ids), [], []
    mask = torch.ones(13, 13, dtype=torch.bool).tril()
    with torch.no_grad():
        for layer in model.layers:
            assert isinstance(layer, Layer)
            query, key, value = (functional.linear(tokens, weight) for weight in layer.qkv.weight.chunk(3))
            # Identity matrices as values return the attention itself.
            weights = functional.scaled_dot_product_attention(
                query, key, torch.eye(13).double().expand(6, 13, 13), attn_mask=mask
            )
            tokens = layer.attention_norm(
                tokens + functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
            )
            tokens = layer.mlp_norm(tokens + layer.upper(functional.relu(layer.lower(tokens))))
            entropies.append(torch.special.entr(weights[:, -1]).sum(-1))
        wanted = [model.head(tokens[:, -1]), *entropies]
        logits, traces = model.trace(ids if repeated else ids[:, 8:])
    found = [logits, *(trace.entropy for trace in traces)]
    return max(float((a - b).abs().max()) for a, b in zip(found, wanted))


@claim(
    "joma/gaussian-stable-rank",
    measures="largest relative distance from the mean of 400 draws",
    at_most=0.03,
    margin=NEAR,
    source=Source("johnstone2001distribution", status="own"),
    assumptions=("64 x 16 and 48 x 32 matrices of independent normal entries",),
    control=but(r"uses the limit of large matrices, $mn / (\sqrt m + \sqrt n)^2$", finite=False),
)
def gaussian_stable_rank(generator: Generator, *, finite: bool = True) -> float:
    r"""The mean stable rank of an m x n Gaussian matrix, $m \ge n$, is nearly $mn / (\mu - 1.2065\, s)$ with
    $\mu = (\sqrt{m-1} + \sqrt n)^2$ and $s = (\sqrt{m-1} + \sqrt n)(1/\sqrt{m-1} + 1/\sqrt n)^{1/3}$, by the
    Tracy-Widom law of the largest singular value. Stable ranks in networks are compared with such matrices.
    The statement is the library's own. The threshold is ours.
    """
    gaps = []
    for m, n in ((64, 16), (48, 32)):
        ranks = stable_rank(torch.randn(400, m, n, generator=generator, dtype=torch.float64))
        predicted = gaussian_rank(m, n) if finite else m * n / (math.sqrt(m) + math.sqrt(n)) ** 2
        gaps.append(abs(predicted / float(ranks.mean()) - 1))
    return max(gaps)


CLAIMS = (recovery_by_chance, repeated_padding, gaussian_stable_rank)
