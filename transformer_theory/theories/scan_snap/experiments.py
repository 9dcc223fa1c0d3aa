"""Runs of scan-and-snap: the three dynamics of one instance side by side, and the paper's small synthetic training."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from ...citations import Source
from ...claims import Evidence
from ...experiment import Experiment, RandomExperiment, Result, parameter
from ...rows import Arrays, Row, finding
from .closed_form import B, scanning_time
from .dynamics import Weights, gradient_descent, sampled
from .figures import draw_fates, draw_syn_small
from .flow import exact_flow, lemma4_flow, relative_gains
from .problem import single_common, synthetic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, PAPER = "scan_snap", "tian2023scan"


@dataclass(frozen=True)
class Fates(Experiment):
    """One common token against the distinct tokens, over decades of time: exact population flow, Lemma 4's flow, closed form -B(t)."""

    classes: int = parameter(2, at_least=2, says="number K of classes")
    vocab_size: int = parameter(1000, at_least=2, says="number M of next tokens, at least K")
    distinct: int = parameter(10, at_least=2, says="tokens of each class that no other has, of weights 0.1 to 1")
    common_share: float = parameter(0.2, at_least=1e-6, at_most=0.999, says="probability of the common token in each class")
    eta_y: float = parameter(1.0, at_least=1e-2, at_most=1e3, says="learning rate of the decoder")
    eta_z: float = parameter(0.01, at_least=1e-6, at_most=1, says="learning rate of attention")
    decades: float = parameter(4.0, above=0, at_most=12, says="the flows end at 10 to this power times t0', when scanning ends")

    name: ClassVar[str] = "scan_snap.fates"
    sources: ClassVar[tuple[Source, ...]] = (Source(PAPER),)

    @classmethod
    def quick(cls) -> "Fates":
        return cls(distinct=4, decades=2.0)

    def measure(self) -> Iterator[Row | Arrays]:
        weights = torch.linspace(0.1, 1, self.distinct, dtype=torch.float64).expand(self.classes, -1)
        classes = single_common(weights, self.common_share, vocab_size=self.vocab_size)
        t0 = scanning_time(classes=self.classes, vocab_size=self.vocab_size, eta_y=self.eta_y)
        times = t0 * torch.logspace(-1, self.decades, 60, dtype=torch.float64)
        overlap = classes.weak_overlap()
        rates = {"eta_y": self.eta_y, "eta_z": self.eta_z}
        exact, lemma4 = (flow(classes, times, **rates) for flow in (exact_flow, lemma4_flow))
        closed = -B(times, classes=self.classes, vocab_size=self.vocab_size, overlap=float(classes.overlap()[0, 1]), **rates)
        gains = {"exact": relative_gains(classes, exact.logits), "lemma4": relative_gains(classes, lemma4.logits)}
        errors = {key: ((g.measured - g.predicted).abs() / g.measured.abs()).max(1).values for key, g in gains.items()}
        end = float(times[-1])
        for flow, key in ((exact, "exact"), (lemma4, "lemma4")):
            note = f"{flow.dynamics} flow after {end:.3g} steps; the line is its sign, the value predicted the closed form -B(t) (Thm. 4)"
            yield finding(
                NAME,
                f"logit of the common token, {flow.dynamics} flow",
                Evidence(float(flow.logits[-1, 0, 0]), 0.0, "<=", in_assumptions=overlap.holds and key == "lemma4"),
                source=Source(PAPER, "Thm. 2"),
                predicted=float(closed[-1]),
                note=note,
            )
            yield finding(
                NAME,
                f"largest relative error of r(0) chi(t), {flow.dynamics} flow",
                Evidence(float(errors[key].max()), 1e-9, "<=", in_assumptions=key == "lemma4"),
                source=Source(PAPER, "Thm. 3"),
                predicted=0.0,
            )
        yield Arrays(
            {
                f"{NAME}/times": times.numpy(),
                f"{NAME}/scanning_time": torch.tensor(t0).numpy(),
                f"{NAME}/common_exact": exact.logits[:, 0, 0].numpy(),
                f"{NAME}/common_lemma4": lemma4.logits[:, 0, 0].numpy(),
                f"{NAME}/common_closed": closed.numpy(),
                f"{NAME}/logits_exact": exact.logits[:, 0].numpy(),
                f"{NAME}/logits_lemma4": lemma4.logits[:, 0].numpy(),
                f"{NAME}/gain_error_exact": errors["exact"].numpy(),
                f"{NAME}/gain_error_lemma4": errors["lemma4"].numpy(),
            }
        )

    def draw(self, result: Result) -> "Figure":
        return draw_fates(result)


@dataclass(frozen=True)
class SynSmall(RandomExperiment):
    """The paper's Syn-Small: two classes with a query each, ten common and ten distinct tokens, gradient descent with momentum."""

    batch: int = parameter(128, at_least=1, says="sequences a step")
    length: int = parameter(128, at_least=2, says="tokens of a sequence, with the query")
    steps: int = parameter(100, at_least=1, says="steps of training")
    eta_y: float = parameter(1.0, at_least=1e-6, at_most=1e6, says="learning rate of the decoder")
    eta_z: float = parameter(1.0, at_least=1e-6, at_most=1e6, says="learning rate of attention")
    momentum: float = parameter(0.9, at_least=0, below=1, says="of gradient descent")
    seeds: int = parameter(3, at_least=1, says="independent runs")

    name: ClassVar[str] = "scan_snap.syn_small"
    sources: ClassVar[tuple[Source, ...]] = (Source(PAPER, "Fig. 4"),)

    @classmethod
    def quick(cls) -> "SynSmall":
        return cls(steps=20, seeds=2)

    def measure(self) -> Iterator[Row | Arrays]:
        # 10 common and 2 x 10 distinct tokens, 2 queries and 2 next tokens: M = 34
        classes, generator = synthetic(2), self.generator()
        common = classes.common()
        keep = [step for step in (0, 2, 4, 6, 8, 10, 20, 50) if step <= self.steps]
        attended, losses = [], []
        for run in range(self.seeds):
            start = Weights.zeros(classes.tokens, classes.queries, classes.classes, classes.vocab_size)
            batches = sampled(classes, self.batch, context=self.length - 1, generator=generator)
            rates = {"eta_y": self.eta_y, "eta_z": self.eta_z, "momentum": self.momentum}
            path = gradient_descent(start, batches, steps=self.steps, keep=keep, **rates)
            c = classes.attended(path.attention)
            attended.append(c)
            losses.append(path.loss)
            for step in (0, self.steps - 1):
                yield Row(theory=NAME, quantity="loss", value=float(path.loss[step]), step=step, seed=run)
            before, after = (float(c[i, :, common].sum(-1).mean()) for i in (0, -1))
            yield finding(
                NAME,
                "attention to common tokens after training",
                Evidence(after, before, "<=", in_assumptions=False),
                source=Source(PAPER, "Fig. 4"),
                seed=run,
                note="exact gradient descent with momentum, which the theory does not have; the line is attention before training",
            )
            own = torch.where(classes.distinct(), c[-1], torch.zeros_like(c[-1]))
            top = float(own.max(1).values.mean())
            yield Row(theory=NAME, quantity="attention to the likeliest distinct token", value=top, seed=run)
        shown = torch.tensor(sorted({0, self.steps} | set(keep)))
        yield Arrays(
            {
                f"{NAME}/loss": torch.stack(losses, dim=1).numpy(),
                f"{NAME}/steps": shown.numpy(),
                f"{NAME}/attended": attended[0].numpy(),
            }
        )

    def draw(self, result: Result) -> "Figure":
        return draw_syn_small(result)
