"""The common timeline: every theory's headline over the same training steps, and when each leaves the band of
its null.

The curves are in :mod:`.curves`, their rank correlations in :mod:`.correlations`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..core.theory import Theory
from .aggregate import NETWORK
from .curves import Series

# quantities of networks that the timeline compares with theories
GEOMETRY = ("rank-collapse residual", "stable rank of the features")


def on_timeline(available: Sequence[Series], theories: Iterable[Theory]) -> list[Series]:
    """Selects for each network the theories' headlines, the network's quantities on validation data, and
    :data:`GEOMETRY`.

    The headlines get the side that their theory predicts, and its title.
    """
    selection = [
        replace(s, side=theory.in_networks.side, title=theory.title)
        for theory in theories
        if theory.in_networks is not None
        for s in available
        if (s.theory, s.quantity) == (theory.name, theory.in_networks.headline)
    ]
    selection += [s for s in available if s.theory == NETWORK and s.split == "validation"]
    selection += [s for name in GEOMETRY for s in available if (s.theory, s.quantity) == (NETWORK, name)]
    return sorted(
        selection, key=lambda s: list(dict.fromkeys(other.model for other in available)).index(s.model)
    )


def sentences(group: Iterable[Series]) -> list[str]:
    """Returns one sentence per network: which quantities leave the band of their null, in the order in which
    they do, and which do not.

    For those that leave it, the sentence also names the step at which they have made half of their change.
    With several seeds, a last sentence says what the means are taken over.
    """
    group, texts = list(group), []
    for model in dict.fromkeys(s.model for s in group):
        of_model = [s for s in group if s.model == model]
        left = sorted(
            (s for s in of_model if s.judged and s.departure is not None), key=lambda s: s.departure or 0
        )
        rest = [s for s in of_model if s not in left]
        judged, unknown = [s for s in rest if s.judged], [s for s in rest if not s.judged]
        with_side = [s for s in left if s.side is not None]
        parts = [_departures([s for s in with_side if s.as_predicted], " as predicted")]
        parts.append(
            _departures(
                [s for s in with_side if not s.as_predicted], " on the side opposite to the prediction"
            )
        )
        parts.append(_departures([s for s in left if s.side is None], ""))
        groups = (
            (
                [s for s in judged if not s.outside.any()],
                "stays within its null band",
                "stay within their null bands",
            ),
            (
                [s for s in judged if s.within and s.outside.any()],
                "is outside its null band only briefly",
                "are outside only briefly",
            ),
            (
                [s for s in judged if not s.within],
                "leaves its null band and returns",
                "leave their null bands and return",
            ),
            ([s for s in unknown if s.still], "does not move", "do not move"),
            (
                [s for s in unknown if s.draws and not s.still],
                "has too few null draws",
                "have too few null draws",
            ),
            ([s for s in unknown if not s.draws and not s.still], "has no null", "have no null"),
        )
        parts += [_listed([s.label for s in members], one, several) for members, one, several in groups]
        if parts := list(filter(None, parts)):
            texts.append(f"In {model}, {'; '.join(parts)}.")
    seeds = max((s.seeds for s in group), default=1)
    if texts and seeds > 1:
        texts.append(f"All curves, and the correlations below, are those of means over {seeds} seeds.")
    return texts


def _departures(left: Sequence[Series], way: str) -> str:
    """Describes when quantities leave their null bands: ``"a leaves its null band as predicted at step 10
    (half of its change: 20)"``.
    """
    if not left:
        return ""
    first, *later = left
    return ", ".join(
        [f"{first.label} leaves its null band{way} {_when(first)}", *(f"{s.label} {_when(s)}" for s in later)]
    )


def _when(s: Series) -> str:
    """Says when a curve leaves its band, and when it has made half of its change."""
    start = "from the start" if s.departure == s.steps[0] else f"at step {s.departure:,}"
    return start + ("" if s.crossing is None else f" (half of its change: step {s.crossing:,})")


def _listed(names: Sequence[str], one: str, several: str) -> str:
    """Joins names with the verb for one or for several of them; empty without names."""
    if len(names) < 2:
        return "".join(f"{name} {one}" for name in names)
    return f"{', '.join(names[:-1])} and {names[-1]} {several}"
