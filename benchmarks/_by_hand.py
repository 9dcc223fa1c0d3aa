"""Quantities of a network in plain torch, for :mod:`benchmarks.real_network`; nothing of the package is used.

Each sequence runs through the network by itself and without padding, with eager attention that returns its
weights; hooks take queries, keys, values and the residual stream. :data:`QUANTITIES` computes the quantities
from these :class:`Passes` as their definitions read, in float64.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, pad

# By the model_type of the configuration: the modules of a block whose inputs are the tokens that queries and
# keys are computed from (the query itself) and the stream after attention, and the first layer of the MLP.
BLOCKS = {
    "bert": {
        "query": "attention.self.query",
        "key": "attention.self.key",
        "value": "attention.self.value",
        "after": "attention.output.LayerNorm",
        "lower": "intermediate.dense",
    },
    "dinov2": {
        "query": "attention.q_proj",
        "key": "attention.k_proj",
        "value": "attention.v_proj",
        "after": "norm2",
        "lower": "mlp.fc1",
    },
}
POSITIONS, CONTRACTED, NUMBERS, STORED = 64, 32, 2**21, 2048  # limits of the definitions


@dataclass
class Passes:
    """The forward passes of n sequences, and what is known about them.

    Attributes:
        ids: identity of the input of each token, such as its id and position, ``[T]`` each; equal numbers are
            equal inputs.
        hidden: input of block 0 and output of each block, ``[layers + 1][n]`` of ``[T, d]``.
        entered: input of the projections, ``[layers][n]`` of ``[T, d]``.
        after: residual stream after attention, before any norm, ``[layers][n]`` of ``[T, d]``.
        query, key, value: ``[layers][n]`` of ``[heads, T, p]``.
        weights: ``[layers][n]`` of ``[heads, T, T]``.
        key_maps: weight of the key projection, ``[layers]`` of ``[heads, p, d]``.
        lower: weight of the first layer of the MLP, ``[layers]``.
        content: True for tokens with contents, ``[n]`` of ``[T]``.
        labels: class of each sequence, ``[n]``.
        grid: rows and columns of the patches, which follow the tokens without contents; None for texts.
    """

    ids: list[Tensor]
    hidden: list[list[Tensor]]
    entered: list[list[Tensor]]
    after: list[list[Tensor]]
    query: list[list[Tensor]]
    key: list[list[Tensor]]
    value: list[list[Tensor]]
    weights: list[list[Tensor]]
    key_maps: list[Tensor]
    lower: list[Tensor]
    content: list[Tensor]
    labels: Tensor
    grid: tuple[int, int] | None

    @property
    def layers(self) -> int:
        """Number of blocks."""
        return len(self.weights)

    def groups(self, limit: int) -> Iterable[Tensor]:
        """Yields the numbers of the sequences of each length, at most ``limit`` of them, evenly spaced."""
        lengths = torch.tensor([len(x) for x in self.hidden[0]])
        for length in lengths.unique():
            yield (numbers := (lengths == length).nonzero()[:, 0])[spaced(len(numbers), limit)]


def drawn(rows: int, size: int) -> Tensor:
    """Returns 16 random query positions below ``size`` for each of the rows, in order, as the library draws
    them: by the seed 4,019,217,653 + size.
    """
    numbers = torch.rand(rows, size, generator=torch.Generator().manual_seed(4_019_217_653 + size))
    return numbers.argsort(1)[:, :16].sort(1).values


def spaced(size: int, count: int) -> Tensor:
    """Returns up to ``count`` evenly spaced numbers below ``size``, with both ends."""
    return torch.linspace(0, size - 1, min(size, count)).round().long()


def run_alone(
    model: nn.Module,
    sequences: Sequence[Mapping[str, Tensor]],
    labels: Tensor,
    *,
    ids: list[Tensor],
    content: list[Tensor],
    grid: tuple[int, int] | None,
) -> Passes:
    """Runs a network on each sequence by itself.

    Args:
        model: network of ``transformers`` with eager attention, in evaluation mode.
        sequences: arguments of the network for each sequence, ``[1, ...]``.
        labels, ids, content, grid: see :class:`Passes`.
    Raises:
        ValueError: the blocks of this kind of network are not known.
    """
    config, heads = model.config, model.config.num_attention_heads
    if config.model_type not in BLOCKS:
        known = ", ".join(BLOCKS)
        raise ValueError(f"the network must be one of {known}, got {config.model_type}; add its modules")
    blocks, modules = model.encoder.layer, BLOCKS[config.model_type]
    seen: dict[str, list[Tensor]] = {}

    def watch(module: nn.Module, entering: str, leaving: str = "") -> None:
        def hook(_: nn.Module, inputs: tuple, output: Tensor) -> None:
            seen.setdefault(entering, []).append(inputs[0][0].double())
            if leaving:
                parts = output[0].double().unflatten(-1, (heads, -1)).transpose(0, 1)
                seen.setdefault(leaving, []).append(parts)

        handles.append(module.register_forward_hook(hook))

    handles: list = []
    for block in blocks:
        for name in ("query", "key", "value"):
            watch(block.get_submodule(modules[name]), f"into {name}", name)
        watch(block.get_submodule(modules["after"]), "after")
    hidden: list[list[Tensor]] = [[] for _ in range(len(blocks) + 1)]
    weights: list[list[Tensor]] = [[] for _ in blocks]
    with torch.no_grad():
        for arguments in sequences:
            output = model(**arguments, output_attentions=True, output_hidden_states=True)
            for stored, states in ((hidden, output.hidden_states), (weights, output.attentions)):
                for layer, x in enumerate(states):
                    stored[layer].append(x[0].double())
    for handle in handles:
        handle.remove()

    def of_layers(name: str) -> list[list[Tensor]]:
        return [seen[name][layer :: len(blocks)] for layer in range(len(blocks))]

    def maps(name: str) -> list[Tensor]:
        return [block.get_submodule(modules[name]).weight.detach().double() for block in blocks]

    return Passes(
        ids,
        hidden,
        of_layers("into query"),
        of_layers("after"),
        of_layers("query"),
        of_layers("key"),
        of_layers("value"),
        weights,
        [each.unflatten(0, (heads, -1)) for each in maps("key")],
        maps("lower"),
        content,
        labels,
        grid,
    )


# attention weights: one number per layer and head, from a number of each row


def mean_of_rows(of_map: Callable[[Tensor], Tensor]) -> Callable[[Passes], Tensor]:
    """Returns the mean over all queries of all sequences of a function of the maps, ``[layers, heads]``."""

    def mean(passes: Passes) -> Tensor:
        rows = [[of_map(A) for A in layer] for layer in passes.weights]
        return torch.stack([torch.cat(layer, 1).mean(1) for layer in rows])

    return mean


def entropy(A: Tensor) -> Tensor:
    """Entropy of each row, nats."""
    return -(A * A.clamp(min=1e-300).log()).sum(-1)


def largest_lead(A: Tensor) -> Tensor:
    """Difference of the two largest scores of each row."""
    first, second = A.topk(2).values.unbind(-1)
    return (first / second.clamp(min=torch.finfo(torch.float32).tiny)).log()


def mass_of_keys(passes: Passes) -> Tensor:
    """Mean weight on each key position, ``[layers, heads, longest]``."""
    longest = max(len(x) for x in passes.hidden[0])
    rows = [torch.cat([pad(A, (0, longest - A.shape[-1])) for A in each], 1) for each in passes.weights]
    return torch.stack([each.mean(1) for each in rows])


def sink_value(passes: Passes) -> Tensor:
    """Norm of the value at the key with the largest mass over the mean norm; norms are means over the
    sequences that have the position.
    """
    found, longest = [], max(len(x) for x in passes.hidden[0])
    for mass, values in zip(mass_of_keys(passes), passes.value):
        norms = [pad(v.norm(dim=-1), (0, longest - v.shape[1]), value=math.nan) for v in values]
        mean = torch.stack(norms).nanmean(0)
        found.append(mean.gather(1, mass.argmax(1)[:, None])[:, 0] / mean.mean(1))
    return torch.stack(found)


def positional_share(passes: Passes) -> Tensor:
    """Share of the variance of the scores, centred over the keys, that different sequences have in common."""
    found, longest = [], max(len(x) for x in passes.hidden[0])
    lengths = torch.tensor([len(x) for x in passes.hidden[0]])
    there = (torch.arange(longest) < lengths[:, None]).double()
    number = torch.einsum("aq,ak->qk", there, there)
    for layer in passes.weights:
        logs = [A.log() for A in layer]
        S = [x - x.mean(-1, keepdim=True) for x in logs]
        S = torch.stack([pad(x, (0, longest - x.shape[-1], 0, longest - x.shape[-1])) for x in S])
        S = torch.where(number > 1, S, 0.0)
        products = S.sum(0).square() - S.square().sum(0)  # sum over pairs of different sequences
        found.append((products / (number - 1).clamp(min=1)).sum((1, 2)) / S.square().sum((0, 2, 3)))
    return torch.stack(found)


def dual_share(passes: Passes) -> Tensor:
    """Squared cosine of A V less the mean value, and the first order in the scores, over all queries."""
    found = []
    for layer in range(passes.layers):
        sums = torch.zeros(3, passes.weights[layer][0].shape[0], dtype=torch.float64)
        parts = (passes.query, passes.key, passes.value, passes.weights)
        for q, k, v, A in zip(*(part[layer] for part in parts)):
            output, scores = A @ v - v.mean(1, keepdim=True), q @ k.mT
            linear = (scores - scores.mean(-1, keepdim=True)) @ v / k.shape[1]
            pairs = ((output, linear), (output, output), (linear, linear))
            sums += torch.stack([(x * y).sum((1, 2)) for x, y in pairs])
        found.append(sums[0].square() / (sums[1] * sums[2]))
    return torch.stack(found)


def over_queries(of: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Passes], Tensor]:
    """Mean over the queries of a function of the gap between their two largest products of query and key, and
    of the distance of neighbouring bfloat16 numbers at the larger in size.
    """

    def mean(passes: Passes) -> Tensor:
        found = []
        for queries, keys in zip(passes.query, passes.key):
            numbers = []
            for q, k in zip(queries, keys):
                top = (q @ k.mT).topk(2).values
                step = 2.0 ** (top.abs().amax(-1).log2().floor() - 7)
                numbers.append(of(top[..., 0] - top[..., 1], step).double())
            found.append(torch.cat(numbers, 1).mean(1))
        return torch.stack(found)

    return mean


def contracted(passes: Passes) -> list[int]:
    """Numbers of the first sequences of each length that fit into the limits of the contraction."""
    heads, chosen = passes.weights[0][0].shape[0], []
    for numbers in passes.groups(len(passes.labels)):
        T = len(passes.hidden[0][int(numbers[0])])
        chosen += numbers[: max(1, min(CONTRACTED, NUMBERS // (heads * T * T)))].tolist()
    return chosen


def contraction(passes: Passes) -> Tensor:
    """Differences between the tokens after A X over those before, as root mean square over sequences."""
    found = []
    for weights, entered in zip(passes.weights, passes.entered):
        squares = []
        for number in contracted(passes):
            A, X = weights[number], entered[number]
            mixed = A @ X
            before, after = X - X.mean(0), mixed - mixed.mean(1, keepdim=True)
            squares.append(after.square().sum((1, 2)) / before.square().sum())
        found.append(torch.stack(squares).mean(0).sqrt())
    return torch.stack(found)


def phase(passes: Passes) -> Tensor:
    """Root mean square of the standard deviation of the scores of 16 queries over root log keys."""
    found = []
    for weights in passes.weights:
        parts = []
        for number in contracted(passes):
            A = weights[number]
            T = A.shape[-1]
            scores = A[:, torch.linspace(0, T - 1, min(T, 16)).long()].log()
            parts.append(scores.var(-1, correction=0) / math.log(T))
        found.append(torch.cat(parts, 1).mean(1).sqrt())
    return torch.stack(found)


def score_gaps(passes: Passes) -> list[tuple[Tensor, Tensor]]:
    """By layer: numbers of keys ``[rows]``, and gaps ``[heads, rows]``, of 16 queries of each sequence."""
    found = []
    for weights in passes.weights:
        keys, gaps = [], []
        for numbers in passes.groups(32):
            for place, A in enumerate(weights[number] for number in numbers.tolist()):
                n = A.shape[-1]
                ordered = A[:, drawn(len(numbers), n)[place]].sort(-1, descending=True).values
                keys.append(torch.full(ordered.shape[1:2], float(n), dtype=torch.float64))
                gaps.append((ordered[..., 0] * (n - 1) / ordered[..., 1:].sum(-1)).log())
        found.append((torch.cat(keys), torch.cat(gaps, 1)))
    return found


def gap_over_log(passes: Passes) -> Tensor:
    """Mean of g / log(n - 1)."""
    return torch.stack([(gap / (n - 1).log()).mean(1) for n, gap in score_gaps(passes)])


def weight_of_one_winner(passes: Passes) -> Tensor:
    """Mean predicted weight of the chosen key at 2n keys if no other key is as good."""
    return torch.stack([(1 / (1 + (2 * n - 1) * (-g).exp())).mean(1) for n, g in score_gaps(passes)])


def weight_of_same_source(passes: Passes) -> Tensor:
    """Mean predicted weight of the chosen key at 2n keys if further keys are as good as the first n."""
    return torch.stack([(0.5 / (1 + (n - 1) * (-g).exp())).mean(1) for n, g in score_gaps(passes)])


def doubled_keys(passes: Passes) -> tuple[Tensor, Tensor]:
    """Share of the weights that stays on the own keys if a query also sees those of another sequence of the
    same length, and twice the largest of these weights over that with the own keys alone.
    """
    shares, ratios = [], []
    for layer in range(passes.layers):
        kept, largest, alone = [], [], []
        for numbers in passes.groups(16):
            half = len(numbers) // 2
            for place in range(2 * half):
                own, other = int(numbers[place]), int(numbers[(place + half) % (2 * half)])
                q = passes.query[layer][own]
                q = q[:, drawn(2 * half, q.shape[1])[place]] / q.shape[-1] ** 0.5
                scores = torch.cat([q @ passes.key[layer][each].mT for each in (own, other)], -1)
                A = scores.softmax(-1)[..., : scores.shape[-1] // 2]
                kept.append(A.sum(-1))
                largest.append(A.amax(-1))
                alone.append(scores[..., : scores.shape[-1] // 2].softmax(-1).amax(-1))
        shares.append(torch.cat(kept, 1).mean(1))
        ratios.append(2 * torch.cat(largest, 1).sum(1) / torch.cat(alone, 1).sum(1))
    return torch.stack(shares), torch.stack(ratios)


def grid_means(passes: Passes) -> tuple[Tensor, Tensor]:
    """Of the weight of a patch on other patches, the share on its 4 neighbours, and the mean distance."""
    assert passes.grid is not None
    rows, columns = passes.grid
    at = torch.tensor([(row, column) for row in range(rows) for column in range(columns)]).double()
    distance = (at[:, None] - at).norm(dim=-1)
    near, far = [], []
    for layer in passes.weights:
        shares = []
        for A, content in zip(layer, passes.content):
            A = A[:, content][:, :, content].clone()
            A.diagonal(dim1=1, dim2=2).zero_()
            shares.append(A / A.sum(-1, keepdim=True))
        shares = torch.cat(shares, 1).unflatten(1, (-1, rows * columns))
        near.append((shares * (distance == 1)).sum(-1).mean((1, 2)))
        far.append((shares * distance).sum(-1).mean((1, 2)))
    return torch.stack(near), torch.stack(far)


def choice_information(passes: Passes) -> Tensor:
    """Corrected information of the heaviest key of the class token about the label; NaN with fewer sequences
    than pairs of key and label.
    """
    found, n = [], len(passes.labels)
    for layer in passes.weights:
        values = []
        for choices in torch.stack([A[:, 0].argmax(-1) for A in layer]).T.tolist():
            pairs = list(zip(choices, passes.labels.tolist()))
            parts = (choices, passes.labels.tolist(), pairs)
            H = [-sum(x.count(y) / n * math.log(x.count(y) / n) for y in set(x)) for x in parts]
            keys, classes = len(set(choices)), len(set(passes.labels.tolist()))
            bias = (keys - 1) * (classes - 1) / (2 * n)
            values.append(H[0] + H[1] - H[2] - bias if n >= keys * classes else math.nan)
        found.append(values)
    return torch.tensor(found, dtype=torch.float64)


# features: one number per layer


def residual(passes: Passes) -> Tensor:
    """Mean over sequences of |X - mean token| / |X| after each block."""
    parts = [[(X - X.mean(0)).norm() / X.norm() for X in layer] for layer in passes.hidden[1:]]
    return torch.tensor([[float(x) for x in layer] for layer in parts], dtype=torch.float64).mean(1)


def ranks(passes: Passes) -> tuple[Tensor, Tensor]:
    """Stable and effective rank of all tokens after each block."""
    found = []
    for layer in passes.hidden[1:]:
        sizes = torch.linalg.svdvals(torch.cat(layer))
        p = sizes / sizes.sum()
        effective = math.exp(float(-(p * p.clamp(min=1e-300).log()).sum()))
        found.append((float(sizes.square().sum() / sizes[0] ** 2), effective))
    stable, effective = torch.tensor(found, dtype=torch.float64).T
    return stable, effective


def lower_rank(passes: Passes) -> Tensor:
    """Stable rank of the first matrix of the MLP."""
    sizes = [torch.linalg.svdvals(W).square() for W in passes.lower]
    return torch.stack([each.sum() / each[0] for each in sizes])


def nonzeros(passes: Passes) -> Tensor:
    """Share of entries that are not zero after each block, mean over sequences."""
    return torch.stack(
        [torch.stack([(X != 0).double().mean() for X in layer]).mean() for layer in passes.hidden[1:]]
    )


def class_tokens(passes: Passes) -> list[Tensor]:
    """The first token of each sequence after each block, which the network reads, ``[n, d]``."""
    return [torch.stack([X[0] for X in layer]) for layer in passes.hidden[1:]]


def rate(F: Tensor, d: int) -> float:
    """Coding rate of n features of norm 1, nats, for eps^2 = 1/2."""
    gram = torch.eye(d, dtype=F.dtype) + d / (len(F) * 0.5) * F.mT @ F
    return 0.5 * float(torch.linalg.slogdet(gram)[1])


def rates(passes: Passes) -> tuple[Tensor, Tensor, Tensor]:
    """R, R^c and their difference."""
    found = []
    for F in map(normalize, class_tokens(passes)):
        n, d = F.shape
        parts = [F[passes.labels == label] for label in passes.labels.unique()]
        found.append((rate(F, d), sum(len(part) / n * rate(part, d) for part in parts)))
    R, within = torch.tensor(found, dtype=torch.float64).T
    return R, within, R - within


def neural_collapse(passes: Passes) -> tuple[Tensor, Tensor, Tensor]:
    """NC1 with the pseudo-inverse, and both parts of NC2."""
    found = []
    for F in class_tokens(passes):
        classes = [F[passes.labels == label] for label in passes.labels.unique()]
        C, means = len(classes), torch.stack([part.mean(0) for part in classes])
        m = means - means.mean(0)
        within = sum((part - part.mean(0)).mT @ (part - part.mean(0)) / len(part) for part in classes) / C
        between = m.mT @ m / C
        nc1 = torch.trace(within @ torch.linalg.pinv(between, rtol=1e-10, hermitian=True)) / C
        norms, cosines = m.norm(dim=1), normalize(m) @ normalize(m).mT
        pairs = ~torch.eye(C, dtype=torch.bool)
        angles = (cosines[pairs] + 1 / (C - 1)).abs().mean()
        found.append((float(nc1), float(norms.std(correction=0) / norms.mean()), float(angles)))
    first, second, third = torch.tensor(found, dtype=torch.float64).T
    return first, second, third


def contexts(passes: Passes) -> tuple[Tensor, Tensor]:
    """Contextual share, and the smallest distance of two contexts of one input, after each block."""
    ids = torch.cat(passes.ids)[:STORED]
    sequence = torch.cat([torch.full((len(x),), i) for i, x in enumerate(passes.ids)])[:STORED]
    repeated = [(ids == each).nonzero()[:, 0] for each in ids.unique()]
    repeated = [group for group in repeated if len(group) > 1]
    shares, distances = [], []
    for layer in passes.hidden[1:]:
        X = torch.cat(layer)[:STORED]
        # the variance within a group of m tokens is that of the sample, with m - 1
        within = sum(len(group) * X[group].var(0).sum() for group in repeated)
        within = within / sum(len(group) for group in repeated)
        reference = X[torch.cat(repeated)] if len(repeated) > 1 else X
        shares.append(within / reference.var(0, correction=0).sum())
        least = math.inf
        for group in repeated:
            between = (X[group][:, None] - X[group]).norm(dim=-1)
            least = min(least, float(between[sequence[group][:, None] != sequence[group]].min()))
        distances.append(least / X.var(0, correction=0).sum().sqrt())
    return torch.stack(shares), torch.stack(distances)


def clusters(passes: Passes) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Within-less-between cosine as a share of its largest value and itself, and its two terms, of the tokens
    with contents after attention.
    """
    longest = max(len(x) for x in passes.content)
    there = torch.stack([pad(x, (0, longest - len(x))) for x in passes.content])
    columns = there.any(0).nonzero()[:, 0]
    columns = columns[spaced(len(columns), POSITIONS)]
    there = there[:, columns] & (there[:, columns].sum(0) > 1)
    v, found = there.double(), []
    c, C = v.sum(0), v.mT @ v
    expected = C * (1 - 1 / c - 1 / c[:, None] + C / (c * c[:, None]))
    expected = torch.where(C > 0, expected, 0.0)
    pairs = expected.sum() - expected.diagonal().sum()
    for layer in passes.after:
        u = torch.stack([pad(normalize(X), (0, 0, 0, longest - len(X))) for X in layer])[:, columns]
        u = u * v[..., None]
        deviation = (u - u.sum(0) / c.clamp(min=1)[:, None]) * v[..., None]
        squares = deviation.square().sum()
        D = (deviation.sum(1).square().sum() - squares) / pairs
        variance = squares / (c - 1).clamp(min=0).sum()
        number = (v.sum(1) * (v.sum(1) - 1)).sum()
        within = (u.sum(1).square().sum() - v.sum()) / number
        found.append(torch.stack([D / variance, D, within, within - D]))
    share, difference, within, between = torch.stack(found, 1)
    return share, difference, within, between


def alignment(passes: Passes) -> tuple[Tensor, Tensor]:
    """Mean cosine of a token's displacement by attention and the mean attended token, both across the token;
    rise of the mean cosine within a sequence, of up to 16 sequences.
    """
    n = len(passes.labels)
    chosen = torch.linspace(0, n - 1, min(n, 16)).long().tolist()
    cosines, rises = [], []
    for layer in range(passes.layers):
        of_tokens, rise, tokens = [], 0.0, 0
        for number in chosen:
            x, y = passes.hidden[layer][number], passes.after[layer][number]
            field = passes.weights[layer][number].mean(0) @ passes.entered[layer][number]
            across = [
                z - (z * x).sum(1, keepdim=True) / x.square().sum(1, keepdim=True) * x for z in (y - x, field)
            ]
            of_tokens.append(torch.nn.functional.cosine_similarity(*across, dim=1, eps=1e-30))
            T = len(x)
            means = [
                (normalize(z).sum(0).square().sum() - T) / (T * (T - 1)) if T > 1 else z.new_zeros(())
                for z in (x, y)
            ]
            rise, tokens = rise + T * float(means[1] - means[0]), tokens + T
        cosines.append(torch.cat(of_tokens).mean())
        rises.append(rise / tokens)
    return torch.stack(cosines), torch.tensor(rises, dtype=torch.float64)


def compression(passes: Passes) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """R^c before and after attention in the spans of the key projections, its relative fall, and its growth
    without rescaling; means over up to 16 sequences of each length.
    """

    def rate_in_heads(Z: Tensor, U: Tensor) -> float:
        W = Z @ U  # [heads, n, p]
        p = U.shape[-1]
        gram = torch.eye(p, dtype=Z.dtype) + p / (len(Z) * 0.25) * W.mT @ W
        return 0.5 * float(torch.linalg.slogdet(gram)[1].sum())

    def unit(Z: Tensor) -> Tensor:
        return normalize(Z - Z.mean(1, keepdim=True))

    found = []
    for layer in range(passes.layers):
        U = torch.linalg.qr(passes.key_maps[layer].mT)[0]
        numbers = torch.cat(list(passes.groups(16))).tolist()
        streams = [[part[layer][number] for number in numbers] for part in (passes.hidden, passes.after)]
        before, after = ([rate_in_heads(unit(Z), U) for Z in part] for part in streams)
        raw_before, raw_after = ([rate_in_heads(Z, U) for Z in part] for part in streams)
        fall, growth = 1 - sum(after) / sum(before), sum(raw_after) / sum(raw_before) - 1
        found.append((sum(before) / len(before), sum(after) / len(after), fall, growth))
    first, second, third, fourth = torch.tensor(found, dtype=torch.float64).T
    return first, second, third, fourth


def similarity(passes: Passes) -> Tensor:
    """Linear CKA of each later block with the first one, with the unbiased estimator of HSIC; absent tokens
    are zero.
    """
    longest, n = max(len(x) for x in passes.hidden[0]), len(passes.labels)
    chosen, grams = torch.linspace(0, n - 1, min(n, 32)).long().tolist(), []
    for layer in passes.hidden[1:]:
        x = torch.stack([pad(layer[i], (0, 0, 0, longest - len(layer[i]))).flatten() for i in chosen])
        x = x - x.mean(0)
        grams.append((x @ x.mT).fill_diagonal_(0))

    def hsic(K: Tensor, L: Tensor) -> Tensor:
        m, one = len(K), torch.ones(len(K), dtype=K.dtype)
        middle = (one @ K @ one) * (one @ L @ one) / ((m - 1) * (m - 2))
        return torch.trace(K @ L) + middle - 2 / (m - 2) * (one @ K @ L @ one)

    first = grams[0]
    return torch.stack([hsic(first, K) / (hsic(first, first) * hsic(K, K)).sqrt() for K in grams[1:]])


def quantities(passes: Passes) -> dict[str, Tensor]:
    """Returns all quantities by the names of the rows, ``[layers, heads]`` or ``[layers]``; that of a
    similarity begins at the second block.
    """
    named = {name: mean(passes) for name, mean in OF_ROWS.items()}
    named["sink mass"] = mass_of_keys(passes).amax(-1)
    named |= {name: function(passes) for name, function in SINGLE.items()}
    for names, function in SEVERAL.items():
        named |= dict(zip(names, function(passes)))
    if passes.grid is not None:
        names = ("mass on the 4-neighbour patches", "mean attention distance, patches")
        named |= dict(zip(names, grid_means(passes)))
    return named


OF_ROWS = {
    "attention entropy": mean_of_rows(entropy),
    "top-1 mass": mean_of_rows(lambda A: A.amax(-1)),
    "effective support": mean_of_rows(lambda A: entropy(A).exp()),
    "sharpness": mean_of_rows(lambda A: 1 - entropy(A) / math.log(A.shape[-1])),
    "gap of the scores": mean_of_rows(largest_lead),
    "weight on the token itself": mean_of_rows(lambda A: A.diagonal(dim1=1, dim2=2)),
}
SINGLE = {
    "norm of the sink's value": sink_value,
    "positional share of the scores": positional_share,
    "dual share of attention outputs": dual_share,
    "close calls of attention in bfloat16": over_queries(lambda gap, step: gap < step),
    "score margin over bfloat16 rounding": over_queries(lambda gap, step: (gap / step).clamp(min=1).log2()),
    "contraction of differences between tokens": contraction,
    "score deviation over root log n": phase,
    "gap over the log of the keys": gap_over_log,
    "predicted weight of the chosen key, one winner": weight_of_one_winner,
    "predicted weight of the chosen key, same source": weight_of_same_source,
    "information of the heaviest key about the label": choice_information,
    "rank-collapse residual": residual,
    "stable rank of the MLP's lower layer": lower_rank,
    "share of non-zeros": nonzeros,
    "CKA with the first block": similarity,
}
SEVERAL = {
    (
        "share kept with doubled keys",
        "weight of the chosen key with doubled keys over half of it",
    ): doubled_keys,
    ("stable rank of the features", "effective rank of the features"): ranks,
    ("coding rate", "class coding rate", "rate reduction"): rates,
    (
        "variability within classes (NC1)",
        "spread of the class means' norms (NC2)",
        "class means' angles (NC2)",
    ): neural_collapse,
    (
        "contextual share of the embeddings",
        "smallest distance of two contexts of one token",
    ): contexts,
    (
        "within-less-between cosine, share of its largest value",
        "within-less-between cosine",
        "mean cosine within a sequence",
        "mean cosine between sequences at other positions",
    ): clusters,
    (
        "alignment of attention's displacement with V = I",
        "rise of the mean cosine by attention",
    ): alignment,
    (
        "R^c before attention",
        "R^c after attention",
        "compression by attention",
        "growth of R^c in attention",
    ): compression,
}
