"""Claims about the measurements in networks: positions and a common direction do not count as clustering, and
shared contents do.
"""

import torch
from torch import Generator, Tensor

from ....core.claims import BY_CHANCE, Measured, but, claim
from ....core.measurement import Measurement
from ....core.metric import Activations
from ....core.sources import Source
from ..in_networks import ALIGNMENT, RISE, ValueAlignment
from ..within_between import directions, pair_sums, shuffled
from .flows import uniform

OWN = Source("geshkovski2025mathematical", status="own")
SEQUENCES, POSITIONS, DIM, DRAWS = 200, 8, 16, 99


def _tokens(generator: Generator, *, shared: float, sequences: int = SEQUENCES) -> Tensor:
    """Returns tokens with a common direction, positions, and contents of which ``shared`` is common to a
    sequence.
    """
    own, common = torch.randn(2, sequences, POSITIONS, DIM, generator=generator, dtype=torch.float64)
    positions = torch.randn(POSITIONS, DIM, generator=generator, dtype=torch.float64)
    everywhere = 2 * torch.randn(DIM, generator=generator, dtype=torch.float64)
    return everywhere + positions + shared**0.5 * common[:, :1] + (1 - shared) ** 0.5 * own


@claim(
    "particles/positions-are-no-clusters",
    measures="distance of D from the mean of 99 null draws, standard deviations",
    at_most=4.5,
    margin=BY_CHANCE,
    source=OWN,
    assumptions=("200 sequences of 8 Gaussian tokens, 16 dimensions, independent between positions",),
    control=but("a tenth of the contents is common to a sequence", shared=0.1),
)
def positions_are_no_clusters(generator: Generator, *, shared: float = 0.0) -> Measured:
    """A common direction and positions do not count as clustering: $D$ of tokens with independent contents
    lies within the null that permutes the sequences at each position.
    """
    u, valid = directions(_tokens(generator, shared=shared))
    sums = pair_sums(u, valid, draws=DRAWS)
    chance = torch.tensor(sums.chance, dtype=torch.float64)
    value = abs(sums.difference - float(chance.mean())) / float(chance.std())
    return Measured(
        value, {"D": sums.difference, "null, standard deviation": float(chance.std()), "share": sums.share}
    )


@claim(
    "particles/other-positions",
    measures="distance of D from the difference of the means over all pairs",
    at_most=1e-12,
    source=OWN,
    assumptions=("12 sequences of 8 tokens, none missing",),
    control=but("the second mean over all positions", other=False),
)
def other_positions(generator: Generator, *, other: bool = True) -> Measured:
    """$D$ is the mean cosine within a sequence less that between sequences at other positions, over explicit
    pairs. A sequence without tokens does not change it.
    """
    u, valid = directions(_tokens(generator, shared=0.3, sequences=12))
    gram = torch.einsum("sid,rjd->srij", u, u)
    same = torch.eye(12, dtype=torch.bool)[:, :, None, None]
    place = torch.eye(POSITIONS, dtype=torch.bool)
    within = gram[(same & ~place).expand_as(gram)].mean()
    between = gram[(~same & ~place if other else ~same & (place | ~place)).expand_as(gram)].mean()
    # Complete sets have a formula of their own.
    absent = torch.cat([u, torch.zeros_like(u[:1])]), torch.cat([valid, torch.zeros_like(valid[:1])])
    found = [pair_sums(u, valid).difference, pair_sums(*absent).difference]
    distance = max(abs(difference - float(within - between)) for difference in found)
    return Measured(distance, {"D": found[0], "D with a sequence without tokens": found[1]})


@claim(
    "particles/missing-tokens",
    measures="distance of the mean of D over 40 sets from 0, standard errors",
    at_most=4.5,
    margin=BY_CHANCE,
    source=OWN,
    assumptions=(
        "24 sequences of 8 tokens, nine tenths of the first or of the second half missing",
        "positions of one half share a direction",
    ),
    control=but("means over all present pairs, whatever their positions", pooled=True),
)
def missing_tokens(generator: Generator, *, pooled: bool = False) -> Measured:
    """If tokens are missing, and which ones depends on the sequence, $D$ of independent tokens still has mean
    0.
    """
    values = []
    for _ in range(40):
        x = torch.randn(24, POSITIONS, DIM, generator=generator, dtype=torch.float64)
        x[:, :4, 0] += 4  # the positions of each half have a direction of their own
        x[:, 4:, 1] += 4
        late = torch.rand(24, 1, generator=generator) < 0.5
        gone = torch.where(late, torch.arange(POSITIONS) >= 4, torch.arange(POSITIONS) < 4) & (
            torch.rand(24, 8, generator=generator) < 0.9
        )
        u, valid = directions(x * ~gone[..., None])
        if pooled:  # the mean over the pairs that are present, on both sides
            v = valid.double()
            within = (u.sum(1).square().sum() - v.sum()) / (v.sum(1).square().sum() - v.sum())
            across = (
                u.sum((0, 1)).square().sum() - u.sum(1).square().sum() - u.sum(0).square().sum() + v.sum()
            )
            count = v.sum() ** 2 - v.sum(1).square().sum() - v.sum(0).square().sum() + v.sum()
            values.append(float(within - across / count))
        else:
            values.append(pair_sums(u, valid).difference)
    found = torch.tensor(values, dtype=torch.float64)
    error = float(found.std()) / len(found) ** 0.5
    return Measured(abs(float(found.mean())) / error, {"mean": float(found.mean()), "standard error": error})


@claim(
    "particles/share-of-contents",
    measures="distance of the share from that of the contents",
    at_most=0.03,
    source=OWN,
    assumptions=(
        "positions of four times the variance of the contents, of about one length",
        "128 dimensions, common share between .2 and .8",
    ),
    control=but("D itself", scaled=False),
)
def share_of_contents(generator: Generator, *, scaled: bool = True) -> Measured:
    """$D$ divided by its largest value is the share of the contents' variance that a sequence has in common,
    in the limit of many dimensions and if positions have one length. It is smaller in few dimensions: shares
    of .2, .5 and .8 are measured as $.15$, $.39$ and $.62$ in 4 dimensions, and as $.14$, $.36$ and $.58$ if
    the positions are Gaussian.
    """
    shared = 0.2 + 0.6 * float(torch.rand((), generator=generator))
    own, common = torch.randn(2, SEQUENCES, POSITIONS, 128, generator=generator, dtype=torch.float64)
    places = 2 * torch.randn(POSITIONS, 128, generator=generator, dtype=torch.float64)
    u, valid = directions(places + shared**0.5 * common[:, :1] + (1 - shared) ** 0.5 * own)
    sums = pair_sums(u, valid)
    value = sums.share if scaled else sums.difference
    return Measured(abs(value - shared), {"common": shared, "D": sums.difference, "share": sums.share})


@claim(
    "particles/size-of-positions",
    measures="relative change of the share",
    at_most=0.005,
    source=OWN,
    assumptions=(
        "256 dimensions; all positions have one length",
        "36 % of the contents are common to a sequence",
    ),
    control=but("D itself, which falls", share=False),
)
def size_of_positions(generator: Generator, *, share: bool = True) -> Measured:
    """In the limit of many dimensions $D$ over its largest value does not change if the positions of the same
    contents become three times as large.
    """
    own, common = torch.randn(2, SEQUENCES, POSITIONS, 256, generator=generator, dtype=torch.float64)
    places, contents = uniform((POSITIONS, 256), generator) * 256**0.5, 0.6 * common[:, :1] + 0.8 * own
    found = [pair_sums(*directions(scale * places + contents)) for scale in (1.0, 3.0)]
    before, after = (each.share if share else each.difference for each in found)
    return Measured(abs(after / before - 1), {"before": before, "after": after})


@claim(
    "particles/mixing",
    measures="distance of D from the mean over 49 exchanges of tokens, standard deviations",
    at_most=4.5,
    margin=BY_CHANCE,
    source=OWN,
    assumptions=(
        "200 sequences of 8 tokens, independent between positions",
        "one layer of softmax attention with random V",
    ),
    control=but("tokens exchanged after the layer", exchanged=False),
)
def mixing(generator: Generator, *, exchanged: bool = True) -> Measured:
    """Attention mixes unrelated tokens, and $D$ rises. The chance level of exchanged inputs contains this: on
    independent tokens $D$ after a layer lies within it.
    """
    x, draws = _tokens(generator, shared=0.0), []
    V = torch.randn(DIM, DIM, generator=generator, dtype=torch.float64) / DIM**0.5

    def after(tokens: Tensor) -> float:
        u, valid = directions(tokens + torch.softmax(tokens @ tokens.mT / DIM, -1) @ tokens @ V)
        return pair_sums(u, valid).difference

    for _ in range(49):
        order = torch.rand(x.shape[:2], generator=generator).argsort(0)
        if exchanged:
            draws.append(after(shuffled(x, order)))
        else:  # exchange the tokens after the layer, as the passive null does
            y = x + torch.softmax(x @ x.mT / DIM, -1) @ x @ V
            u, valid = directions(shuffled(y, order))
            draws.append(pair_sums(u, valid).difference)
    chance = torch.tensor(draws, dtype=torch.float64)
    value = abs(after(x) - float(chance.mean())) / float(chance.std())
    return Measured(value, {"D": after(x), "null": float(chance.mean())})


def _displaced(generator: Generator, value: Tensor) -> dict[str, Measurement]:
    """Returns the rows of a block in which softmax attention with this V moves the tokens."""
    x = uniform((32, 10, DIM), generator)
    A = torch.softmax(4 * x @ x.mT, -1)
    y = x + 0.5 * A @ x @ value
    metric = ValueAlignment()
    metric.update(Activations("attention", 0, "attention", x, y - x, weights=A[:, None]))
    metric.update(Activations("block", 0, "features", x, y, after_attention=y))
    return {row.quantity: row for row in metric.compute(draws=19)}


@claim(
    "particles/value-alignment",
    measures="1 minus the mean cosine",
    at_most=1e-12,
    source=OWN,
    assumptions=("softmax attention on uniform tokens",),
    control=but("a random orthogonal V", identity=False),
)
def value_alignment(generator: Generator, *, identity: bool = True) -> Measured:
    """If $V = cI$ with $c > 0$, the displacement of each token by attention has cosine 1 with the attended
    mean, both without their component along the token.
    """
    scale = 0.1 + float(torch.rand((), generator=generator))
    value = scale * (
        torch.eye(DIM, dtype=torch.float64)
        if identity
        else torch.linalg.qr(torch.randn(DIM, DIM, generator=generator).double()).Q
    )
    row = _displaced(generator, value)[ALIGNMENT]
    return Measured(1 - float(row.value or 0.0), {"covered": float(row.verdict == "holds")})


@claim(
    "particles/predicted-rise",
    measures="distance of the rise from its prediction",
    at_most=1e-12,
    source=OWN,
    assumptions=("softmax attention on uniform tokens",),
    control=but("V = -I", sign=-1.0),
)
def predicted_rise(generator: Generator, *, sign: float = 1.0) -> Measured:
    """If $V = cI$ with $c > 0$, the rise of the mean cosine is the one predicted from the lengths of the
    displacements alone.
    """
    row = _displaced(generator, sign * torch.eye(DIM, dtype=torch.float64))[RISE]
    rise, predicted = float(row.value or 0.0), float(row.predicted or 0.0)
    return Measured(abs(rise - predicted), {"rise": rise, "predicted": predicted})


CLAIMS = (
    positions_are_no_clusters,
    other_positions,
    missing_tokens,
    share_of_contents,
    size_of_positions,
    mixing,
    value_alignment,
    predicted_rise,
)
