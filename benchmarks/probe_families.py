"""Which model families a probe measures: tiny models of ``transformers``, each against its own hidden states.

The table has one row per family and implementation of attention, with these columns: the number of layers
whose stream is exact before the attention, after it and at the end of the layer; the number of attentions
that were measured, and of those with a bilinear form; whether outputs and gradients are bit-identical;
whether bfloat16 and a compiled host work; the time of a training step with all metrics relative to a step
without a probe. The models are so small that this ratio shows the fixed costs of the metrics: it compares
families, and does not predict the cost in real training. Families whose package is missing are left out.
"""

import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks._families import DEPTH, FAMILIES, Family, N, inputs_of, model_of
from transformer_theory.core.metric import Activations, Metric
from transformer_theory.metrics import AttentionStatistics, Geometry
from transformer_theory.probes import probe
from transformer_theory.theories import list_theories
from transformer_theory.training.faults import tensors_in


class Keep(Metric):
    """A metric that stores all activations."""

    takes_padding = True

    def __init__(self, *kinds: str):
        self.kinds = kinds  # type: ignore[misc]
        super().__init__()

    def update(self, activations: Activations) -> None:
        """Stores one record of activations."""
        self.seen.append(activations)

    def compute(self, *, draws: int = 0, generator: torch.Generator | None = None) -> list:
        """Returns no rows."""
        return []

    def reset(self) -> None:
        """Discards the stored activations."""
        super().reset()
        self.seen: list[Activations] = []

    def of(self, kind: str) -> list[Activations]:
        """Returns the stored activations of one kind, in order."""
        return [activations for activations in self.seen if activations.kind == kind]


def metrics_for(family: Family) -> list[Metric]:
    """Returns the metrics of all theories and the general ones; without attention, only metrics
    of features.
    """
    everything = [
        metric for theory in list_theories() if theory.in_networks for metric in theory.in_networks.metrics()
    ]
    everything += [AttentionStatistics(), Geometry()]
    return [metric for metric in everything if family.attentions or "attention" not in metric.kinds]


def streams_of(family: Family, model: nn.Module) -> list[tuple[Tensor, Tensor | None, Tensor]]:
    """Returns the stream before each layer, after its first attention and after the layer, taken by hooks on
    the modules.

    Each stream has the shape [n, seq, d], or [seq, n, d] if the model puts time first.
    """
    seen: dict[str, list[tuple[Tensor, Tensor]]] = {}
    modules = dict(model.named_modules())
    places = _places(family)
    handles = []

    def watch(name: str) -> None:
        def hook(module, args, kwargs, output):
            entry = next(tensors_in([args, kwargs])).detach().clone()
            seen.setdefault(name, []).append((entry, next(tensors_in(output)).detach().clone()))

        handles.append(modules[name].register_forward_hook(hook, with_kwargs=True))

    for name in dict.fromkeys(
        name for layer, inside, _ in places for name in (layer, inside, family.following) if name
    ):
        watch(name)
    fused = torch.backends.mha.get_fastpath_enabled()
    # torch's fused encoder differs by rounding, and a probe switches it off
    torch.backends.mha.set_fastpath_enabled(False)
    with torch.no_grad():
        model(**inputs_of(family))
    torch.backends.mha.set_fastpath_enabled(fused)
    for handle in handles:
        handle.remove()
    streams = []
    for number, (layer, inside, part) in enumerate(places):
        if family.following:  # each layer runs once
            follower = places[number + 1][0] if number + 1 < len(places) else family.following
            before, after = seen[layer][0][0], seen[follower][0][0]
        else:
            before, after = seen[layer].pop(0)
        middle = None
        if inside:
            entry, output = seen[inside].pop(0)
            middle = before + output if part == "sum" else entry if part == "in" else output
            middle = middle.reshape_as(before)  # OPT flattens sequences inside its layers
        streams.append((before, middle, after))
    return streams


def _places(family: Family) -> list[tuple[str, str, str]]:
    """The names of each layer and of the module at its stream after attention, and which end of that module
    holds it.
    """
    places = []
    for stack, layer in enumerate(family.layer):
        name, part = family.inside[stack] if family.inside else ("", "")
        name = name if not name or "{}" in name else f"{layer}.{name}"
        places += [(layer.format(i), name.format(i), part) for i in range(DEPTH)]
    return places


def observed(family: Family, model: nn.Module, **options: Any) -> Keep:
    """Returns a metric that has stored all activations of one pass."""
    keep = Keep("attention", "features") if family.attentions else Keep("features")
    with torch.no_grad(), probe(model, [keep], **options):
        model(**inputs_of(family))
    return keep


def exact_layers(
    family: Family, streams: list[tuple[Tensor, Tensor | None, Tensor]], features: list[Activations]
) -> int:
    """Returns the number of layers whose stream is exact at all real tokens, [n, seq, d]; the model's stream
    may be [seq, n, d].
    """

    def same(seen: Tensor | None, true: Tensor | None, real: Tensor | None) -> bool:
        if seen is None or true is None:
            return seen is true or true is None
        for stream in (true, true.transpose(0, 1)) if true.ndim == 3 else (true,):
            if real is not None and stream.shape[:1] == real.shape[:1]:
                stream = stream[:, : real.shape[1]].masked_fill(~real[..., None], 0.0)
            if torch.equal(seen, stream):
                return True
        return False

    pairs = zip(streams, features) if len(streams) == len(features) else ()
    return sum(
        same(x.tokens, z, x.real) and same(x.after_attention, middle, x.real) and same(x.output, out, x.real)
        for (z, middle, out), x in pairs
    )


def trained(family: Family, model: nn.Module, metrics: list[Metric]) -> tuple[list[Tensor], list[str], float]:
    """Makes one training step, with a probe if there are metrics.

    Returns:
        Outputs, gradients and random state in one list of tensors [...]; errors of the metrics; processor
        time in seconds.
    """
    model.train().zero_grad()
    with torch.random.fork_rng():
        torch.manual_seed(3)
        started = time.process_time()
        errors = []
        if metrics:
            with probe(model, metrics) as p:
                p.labels = torch.arange(N) % 2
                outputs = list(tensors_in(model(**inputs_of(family))))
            errors = [row.reason for row in p.rows if "Error" in row.reason]
        else:
            outputs = list(tensors_in(model(**inputs_of(family))))
        sum((x.float().square().mean() for x in outputs if x.requires_grad), torch.zeros(())).backward()
        seconds = time.process_time() - started
        return (
            [*outputs, *(x.grad for x in model.parameters() if x.grad is not None), torch.get_rng_state()],
            errors,
            seconds,
        )


def _works(action: Callable[[], list[str]]) -> str:
    try:
        return "yes" if not action() else "no"
    except Exception as error:
        return type(error).__name__


def row(family: Family, implementation: str) -> list[str]:
    """Returns the cells of a family's row, without its name."""
    model = model_of(family, implementation)
    keep = observed(family, model)
    streams = streams_of(family, model)
    attentions = keep.of("attention")
    plain, probed = trained(family, model, []), trained(family, model, metrics_for(family))
    identical = len(plain[0]) == len(probed[0]) and all(
        torch.equal(x, y) for x, y in zip(plain[0], probed[0])
    )

    def half() -> list[str]:
        short = {name: x.bfloat16() if x.is_floating_point() else x for name, x in inputs_of(family).items()}
        with torch.no_grad(), probe(model_of(family, implementation).bfloat16(), metrics_for(family)) as p:
            p.labels = torch.arange(N) % 2
            p.model(**short)
        return [row.reason for row in p.rows if "Error" in row.reason]

    def compiled() -> list[str]:
        torch._dynamo.reset()
        host = torch.compile(lambda **inputs: model(**inputs), backend="eager")
        with torch.no_grad(), probe(model.eval(), metrics_for(family)) as p:
            host(**inputs_of(family))
        return [row.reason for row in p.rows if "Error" in row.reason]

    times = [
        (trained(family, model, [])[2], trained(family, model, metrics_for(family))[2]) for _ in range(3)
    ]
    ratio = min(b for _, b in times) / min(a for a, _ in times)
    bilinear = sum(x.bilinear is not None for x in attentions)
    return [
        f"{exact_layers(family, streams, keep.of('features'))} of {len(streams)}",
        f"{len(attentions)} of {family.attentions}",
        f"{bilinear} of {family.bilinear}",
        "yes" if identical and not probed[1] else "no",
        _works(half),
        _works(compiled),
        f"{ratio:.1f}",
    ]


def main() -> None:
    """Prints the table in Markdown."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)  # idle threads wait actively, which processor time would count
    print(
        "| family | layers exact | attentions | with W | bit-identical | bfloat16 | compiled host | "
        "observed step / step |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, family in FAMILIES.items():
        for implementation in family.implementations:
            label = f"{name} ({implementation})" if implementation else name
            try:
                cells = row(family, implementation)
            except (ImportError, AttributeError) as error:
                print(f"| {label} | left out: {error} |", flush=True)
                continue
            print(f"| {label} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
