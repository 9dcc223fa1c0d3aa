"""Five quantities of a real network by a second route: plain torch and ``transformers``, no measuring code.

Each sequence runs by itself and without padding, with eager attention. Hooks take the residual stream after
attention, the output of each block and the values of each head; sums are in float64. Copies shuffle the
entries of each parameter with two axes or more, in all of the network or, as the library does, in its blocks
alone. One line per quantity: the network on all sequences; on the inputs of the copies (evenly spaced), the
network, and range and side for both kinds of copies; and what the library stored. Written from the
definitions before the code of the library was read, except the rows "by position" and "entropy", which follow
its form of two of them.

    python -m benchmarks.second_route minilm --text wikitext-2/test.txt
    python -m benchmarks.second_route vit --images cifar10/test --sequences 64 --copied 6 --result runs/vit
"""

import argparse
import copy
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from transformer_theory.comparison.user_images import with_images
from transformer_theory.core.result import Result
from transformer_theory.models.text_windows import read_sequences
from transformer_theory.models.transformers_folder import language_model
from transformer_theory.models.user_model import read_user_model

COPIES, STORED, PLACES, SIZE = 9, 2048, 64, 224
# By the model_type of the configuration: the blocks, and the modules of a block whose input is the stream
# after attention, before any norm, and whose output are the values.
MODULES = {
    "bert": ("encoder.layer", "attention.output.LayerNorm", "attention.self.value"),
    "llama": ("model.layers", "post_attention_layernorm", "self_attn.v_proj"),
    "dinov2": ("encoder.layer", "norm2", "attention.v_proj"),
}
LIBRARY = {  # name here: name in the library
    "contextual share": "contextual share of the embeddings",
    "within less between, pooled": "within-less-between cosine",
    "within less between, by position": "within-less-between cosine",
    "the same over its largest value": "within-less-between cosine, share of its largest value",
    "mass on the sink's place": "mass on the sink's place",
    "norm of the value at it": "norm of the value at the sink's place",
    "sharpness, largest weight": "sharpness",
    "sharpness, entropy": "sharpness",
}


def passes(network: nn.Module, inputs: list[dict[str, Tensor]]) -> list[list[list[Tensor]]]:
    """Runs the sequences; returns outputs, streams, values and weights, each by layer and sequence."""
    blocks_at, stream_at, value_at = MODULES[network.config.model_type]
    blocks = network.get_submodule(blocks_at)
    out, streams, values, weights = ([[] for _ in blocks] for _ in range(4))

    def keep(store: list[Tensor], entering: bool = False):
        def hook(_: nn.Module, x: tuple, y: Tensor | tuple) -> None:
            taken = x if entering else y
            store.append((taken[0] if isinstance(taken, tuple) else taken)[0])

        return hook

    hooks = []
    for layer, block in enumerate(blocks):
        hooks.append(block.register_forward_hook(keep(out[layer])))
        hooks.append(block.get_submodule(stream_at).register_forward_hook(keep(streams[layer], True)))
        hooks.append(block.get_submodule(value_at).register_forward_hook(keep(values[layer])))
    with torch.no_grad():
        for one in inputs:
            for layer, maps in enumerate(network(**one, output_attentions=True).attentions):
                weights[layer].append(maps[0])
    for hook in hooks:
        hook.remove()
    return [out, streams, values, weights]


def contextual_share(outputs: list[Tensor], same: list[int]) -> float:
    """Variance of tokens within the groups of the same input over their variance."""
    x, groups = torch.cat(outputs)[:STORED].double(), torch.tensor(same)[:STORED]
    numbers, group, sizes = groups.unique(return_inverse=True, return_counts=True)
    repeated = sizes[group] > 1
    members = [x[group == number] for number in range(len(numbers)) if sizes[number] > 1]
    within = sum(len(m) / (len(m) - 1) * (m - m.mean(0)).square().sum() for m in members)
    over = x[repeated] if len(members) > 1 else x
    return float(within / repeated.sum() / ((over - over.mean(0)).square().sum() / len(over)))


def cosines(streams: list[Tensor], content: list[Tensor]) -> tuple[float, float, float]:
    """Mean cosine of pairs of a sequence less that of pairs of other sequences and positions: of all pairs;
    as covariance of each pair of positions; and the second over the variance at a position.
    """
    longest = max(map(len, streams))
    u, here = (
        torch.zeros(len(streams), longest, streams[0].shape[1]).double(),
        torch.zeros(len(streams), longest),
    )
    for row, (x, kept) in enumerate(zip(streams, content)):
        u[row, : len(x)], here[row, : len(x)] = normalize(x.double(), dim=-1) * kept[:, None], kept.float()
    here = here.double()
    own = float(u.sum(1).square().sum() - here.sum())
    pairs = float((here.sum(1) ** 2 - here.sum(1)).sum())
    # all ordered pairs, less those of one position, less those of one sequence
    others = float(u.sum((0, 1)).square().sum() - u.sum(0).square().sum()) - own
    pooled = own / pairs - others / (float(here.sum() ** 2 - here.sum(0).square().sum()) - pairs)

    used = here.any(0).nonzero().flatten()
    used = used[torch.linspace(0, len(used) - 1, min(PLACES, len(used))).round().long()]
    used = used[here[:, used].sum(0) > 1]
    u, here = u[:, used], here[:, used]
    counts, both = here.sum(0), here.T @ here
    away = (u - u.sum(0) / counts[:, None]) * here[..., None]
    products = sum(one @ one.T for one in away)
    expected = both * (1 - 1 / counts - 1 / counts[:, None] + both / counts / counts[:, None])
    off = ~torch.eye(len(used), dtype=torch.bool)
    covariance = float(products[off].sum() / expected[off].sum())
    return pooled, covariance, covariance / float(products.diagonal().sum() / (counts - 1).sum())


def sink(weights: list[Tensor], values: list[Tensor]) -> Iterator[tuple[float, float]]:
    """Yields, per head, the mean weight of the place with the largest one, and the relative norm of the value
    there. The last token of each sequence has a place of its own, the last column.
    """
    heads, queries = len(weights[0]), sum(w.shape[-1] for w in weights)
    mass = torch.zeros(heads, max(w.shape[-1] for w in weights) + 1).double()
    for w in weights:
        mass[:, : w.shape[-1] - 1] += w[..., :-1].double().sum(1)
        mass[:, -1] += w[..., -1].double().sum(1)
    for head, place in enumerate(mass.argmax(1).tolist()):
        norms = [v.view(len(v), heads, -1)[:, head].norm(dim=-1) for v in values]
        at = -1 if place == mass.shape[1] - 1 else place
        ratios = [float(n[at] / n.mean()) for n in norms if at == -1 or place < len(n) - 1]
        yield float(mass[head, place]) / queries, sum(ratios) / len(ratios)


def sharpness(weights: list[Tensor], causal: bool) -> tuple[float, float]:
    """Mean of the largest weights, and of one less the entropy over its largest value."""
    largest = torch.cat([w.double().amax(-1).flatten() for w in weights])
    lengths = [w.shape[-1] for w in weights]
    keys = [torch.arange(1, n + 1) if causal else torch.full((n,), n) for n in lengths]
    entropy = [
        torch.special.entr(w.double()).sum(-1) / k.double().clamp(min=2).log() for w, k in zip(weights, keys)
    ]
    sharp = torch.cat([torch.where(k > 1, 1 - h, 0.0).flatten() for h, k in zip(entropy, keys)])
    return float(largest.mean()), float(sharp.mean())


def quantities(network: nn.Module, inputs: list[dict[str, Tensor]], special: set[int]) -> dict[str, float]:
    """Computes the quantities: means over layers and heads."""
    kind = network.config.model_type
    out, streams, values, weights = passes(network, inputs)
    if kind == "dinov2":
        lengths = list(map(len, out[0]))
        same = [place and n * 10**4 + place for n, length in enumerate(lengths) for place in range(length)]
        content = [torch.arange(length) > 0 for length in lengths]
    else:  # positions enter a BERT with the ids, and a Llama in its attention alone
        ids = [one["input_ids"][0] for one in inputs]
        same = [int(i) * 10**4 + place * (kind == "bert") for row in ids for place, i in enumerate(row)]
        content = [~torch.isin(row, torch.tensor(sorted(special))) for row in ids]
    rows = []
    for layer in range(len(out)):
        heads = torch.tensor(list(sink(weights[layer], values[layer]))).mean(0).tolist()
        rows.append([contextual_share(out[layer], same), *cosines(streams[layer], content), *heads])
        rows[-1] += sharpness(weights[layer], kind == "llama")
    return dict(zip(LIBRARY, torch.tensor(rows).mean(0).tolist()))


def shuffled(network: nn.Module, seed: int, within: str) -> nn.Module:
    """Returns a copy with the entries of each matrix in random order, if its name begins with ``within``."""
    made, generator = copy.deepcopy(network), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if parameter.ndim > 1 and name.startswith(within):
                order = torch.randperm(parameter.numel(), generator=generator)
                parameter.copy_(parameter.flatten()[order].view_as(parameter))
    return made


def beside(value: float, draws: list[float]) -> str:
    """Returns the range of draws, and the side of a value."""
    side = "above" if value > max(draws) else "below" if value < min(draws) else "among"
    return f"{min(draws):.4f} to {max(draws):.4f} {side}"


def stored(result: Result, quantity: str) -> str:
    """Returns means over layers and heads in the library: the value; on the inputs of the copies, the network
    and its copies.
    """
    rows = [row for row in result.table if row.quantity == quantity and row.layer is not None and not row.at]
    nulls = [null for row in rows for null in row.nulls if null.kind == "equal scale"]
    draws = torch.tensor([null.draws for null in nulls]).mean(0).tolist()
    value, here = (sum(x) / len(x) for x in ([r.value for r in rows], [n.value for n in nulls]))
    return f"{value:.4f}; {here:.4f}, {beside(here, draws)}"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", help="folder of a BERT, a Llama or a DINOv2 of transformers")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--text", type=Path, help="text file, for a network of ids")
    source.add_argument("--images", type=Path, help="folder of images")
    parser.add_argument("--sequences", type=int, default=32, help="number of sequences or images")
    parser.add_argument("--copied", type=int, help="number of them for the copies; all unless given")
    parser.add_argument("--result", type=Path, help="stored result of the library")
    options = parser.parse_args()
    torch.set_num_threads(1)
    user, special = read_user_model(options.folder), set()
    if options.text:
        model = language_model(user.network, name=user.name, folder=user.folder)
        found = read_sequences(options.text, model, sequences=options.sequences)
        special, masks = set(found.special_ids or ()), found.inputs["attention_mask"].bool()
        inputs = [{"input_ids": row[mask][None]} for row, mask in zip(found.inputs["input_ids"], masks)]
    else:
        user, _, _ = with_images(user, options.images, size=SIZE, max_samples=options.sequences)
        inputs = [{"pixel_values": one[None]} for one in user.inputs]
    network = user.network.eval()
    network.set_attn_implementation("eager")
    count = min(options.copied or len(inputs), len(inputs))
    few = [inputs[place] for place in torch.linspace(0, len(inputs) - 1, count).round().int().tolist()]
    own, here = quantities(network, inputs, special), quantities(network, few, special)
    kinds = ["", MODULES[network.config.model_type][0]]
    copies = [
        [quantities(shuffled(network, seed, within), few, special) for seed in range(COPIES)]
        for within in kinds
    ]
    result = Result.load(options.result) if options.result else None
    print(f"{len(inputs)} sequences; {count} for copies: all matrices; matrices of the blocks; library")
    for name, library in LIBRARY.items():
        ranges = [beside(here[name], [each[name] for each in drawn]) for drawn in copies]
        line = [f"{name:33} {own[name]:.4f}; {here[name]:.4f}", *ranges]
        print(" | ".join(line + ([stored(result, library)] if result else [])))


if __name__ == "__main__":
    main()
