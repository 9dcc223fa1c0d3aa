"""Places of tokens on the grid of patches. The expected places follow from how each network cuts its image;
distances and masses are computed from them in plain torch.
"""

import einops
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from tests.cases import each_case
from tests.problems.networks import Block, Keep, built, seen_in, tokens
from transformer_theory.core.metric import NO_IMAGES, NOT_READ, WORDS, Grid
from transformer_theory.metrics.token_layout import TokenLayout
from transformer_theory.probes import probe
from transformer_theory.probes.token_masks import REPEATED, UNPLACED, _isolated, _starts
from transformer_theory.theories.vision.in_networks import DISTANCE, NEIGHBOURS, PatchAttention

DIM, BATCH = 8, 3


class Network(nn.Module):
    """Blocks on the tokens that a function makes of the inputs."""

    def __init__(self, embedding, depth: int = 2):
        super().__init__()
        self.embedding = embedding
        self.blocks = nn.ModuleList(Block(DIM) for _ in range(depth))
        self.head = nn.Linear(DIM, 3)

    def forward(self, x):
        x = self.embedding(x).clone()
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])


def expected_of(weights, places, columns) -> tuple[float, float]:
    """Mean mass on the four neighbours and mean distance of one head's weights ``[batch, T, T]``, for tokens
    at ``places`` [batch, T], -1 for those without one.
    """
    masses, distances = [], []
    for A, place in zip(weights.double(), places):
        on = place >= 0
        row, column = place[on] // columns, place[on] % columns
        far = ((row[:, None] - row) ** 2 + (column[:, None] - column) ** 2).double().sqrt()
        others = A[on][:, on].fill_diagonal_(0.0)
        others = others / others.sum(1, keepdim=True)
        masses.append((others * (far == 1)).sum(1))
        distances.append((others * far).sum(1))
    return float(torch.cat(masses).mean()), float(torch.cat(distances).mean())


def check(model, x, places, size, **options) -> None:
    """Compares grids, masses and distances of all layers with those of the expected places ``[T]`` or
    ``[batch, T]``.
    """
    keep, metric = Keep(), PatchAttention()
    with probe(model, [keep, metric], draws=0, **options) as p, torch.no_grad():
        model(x)
    places = torch.as_tensor(places).expand(len(keep.of("attention")[0].weights), -1)
    for seen in keep.seen:
        assert isinstance(seen.grid, Grid), seen.grid
        assert (seen.grid.rows, seen.grid.columns) == size
        assert torch.equal(seen.grid.places, places)
        if seen.content is not None:
            assert torch.equal(seen.content | seen.read, (places >= 0) | seen.read)
    for seen in keep.of("attention"):
        rows = [row for row in p.rows if row.layer == seen.layer]
        for head in range(seen.weights.shape[1]):
            expected = expected_of(seen.weights[:, head], places, size[1])
            found = [
                next(row.value for row in rows if row.head == head and row.quantity == quantity)
                for quantity in (NEIGHBOURS, DISTANCE)
            ]
            assert_close(found, list(expected), rtol=1e-7, atol=1e-7)  # sums in single precision


def raster(rows, columns):
    return torch.arange(rows * columns)


class Conv(nn.Module):
    def __init__(self, *args, channels=3, **options):
        super().__init__()
        self.conv = nn.Conv2d(channels, DIM, *args, **options)

    def forward(self, x):
        return self.conv(x).flatten(2).mT


class Lin(nn.Module):
    """A function, and a linear map of its last axis."""

    def __init__(self, function, width: int, norm: bool = False):
        super().__init__()
        self.function = function
        self.map = nn.Sequential(*[nn.LayerNorm(width)] * norm, nn.Linear(width, DIM))

    def forward(self, x):
        return self.map(self.function(x))


class Merged(Lin):
    """As :class:`Lin`, by ``torch.addmm`` of all tokens at once, as in the GPT-2 of transformers."""

    def forward(self, x):
        x, last = self.function(x), self.map[-1]
        return torch.addmm(last.bias, x.flatten(0, -2), last.weight.T).view(*x.shape[:-1], -1)


class Then(nn.Module):
    """A network's part, and a function of its output with extra tokens ``[3, dim]``."""

    def __init__(self, first, function):
        super().__init__()
        self.first, self.function = first, function
        self.extra = nn.Parameter(tokens(3, DIM))

    def forward(self, x):
        x = self.first(x)
        return self.function(x, self.extra.expand(len(x), -1, -1))


def by_hand(x, p=4, order="rows"):
    """Patches of p x p pixels by reshape and permute."""
    b, c, h, w = x.shape
    x = x.reshape(b, c, h // p, p, w // p, p)
    x = x.permute(0, 2, 4, 3, 5, 1) if order == "rows" else x.permute(0, 4, 2, 1, 3, 5)
    return x.reshape(b, h * w // p**2, p * p * c)


def by_unfold(x, p=4):
    x = x.unfold(2, p, p).unfold(3, p, p)  # [b, c, rows, columns, p, p]
    return x.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


COLUMN_MAJOR = torch.arange(12).view(3, 4).T.flatten()
WHOLE = {  # embeddings of images of 12 x 16 pixels with three channels: 3 x 4 patches in order
    "convolution": lambda: Conv(4, 4),
    "smaller kernel": lambda: Conv(2, 4),
    "overlapping kernel": lambda: Conv(7, 4, padding=2),
    "not square": lambda: nn.Sequential(Conv((4, 2), (4, 4))),
    "stem": lambda: nn.Sequential(
        nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), Conv(1, channels=4)
    ),
    "stem with a skip": lambda: nn.Sequential(
        nn.Conv2d(3, 4, 4, 4), Skip(nn.Conv2d(4, 4, 3, padding=1)), Conv(1, channels=4)
    ),
    "average pooling": lambda: nn.Sequential(nn.AvgPool2d(4), Lin(lambda x: x.flatten(2).mT, 3)),
    "channels last in memory": lambda: nn.Sequential(ToChannelsLast(), Conv(4, 4)),
    "einops": lambda: Lin(
        lambda x: einops.rearrange(x, "b c (h p) (w q) -> b (h w) (p q c)", p=4, q=4), 48, norm=True
    ),
    "einops, channels first": lambda: Lin(
        lambda x: einops.rearrange(x, "b c (h p) (w q) -> b (h w) (c p q)", p=4, q=4), 48
    ),
    "by hand": lambda: Lin(by_hand, 48, norm=True),
    "all tokens at once": lambda: nn.Sequential(Lin(by_hand, 48), Merged(nn.Identity(), DIM)),
    "tensor unfold": lambda: Lin(by_unfold, 48),
    "unfold": lambda: Lin(lambda x: functional.unfold(x, 4, stride=4).mT, 48),
    "overlapping unfold": lambda: Lin(lambda x: functional.unfold(x, 7, stride=4, padding=2).mT, 147),
    "one after the other": lambda: Lin(
        lambda x: torch.cat(
            [x[:, :, i : i + 4, j : j + 4].flatten(1)[:, None] for i in (0, 4, 8) for j in (0, 4, 8, 12)], 1
        ),
        48,
    ),
    "chunks": lambda: Lin(
        lambda x: torch.stack([y for row in x.chunk(3, 2) for y in row.chunk(4, 3)], 1).flatten(2), 48
    ),
    "pixel unshuffle": lambda: Lin(lambda x: functional.pixel_unshuffle(x, 4).flatten(2).mT, 48),
    "as a map": lambda: nn.Sequential(
        Lin(lambda x: einops.rearrange(x, "b c (h p) (w q) -> b h w (p q c)", p=4, q=4), 48), nn.Flatten(1, 2)
    ),
    "shifted images": lambda: Lin(
        lambda x: by_hand(
            torch.cat([x, *(functional.pad(x, s) for s in ((1, -1, 0, 0), (-1, 1, 0, 0), (0, 0, 1, -1)))], 1)
        ),
        192,
        norm=True,
    ),
    "coloured, then cut": lambda: nn.Sequential(nn.Conv2d(3, 3, 1), Lin(by_hand, 48)),
    "two steps": lambda: nn.Sequential(
        Conv(2, 2), nn.Unflatten(1, (6, 8)), Lin(merged, 4 * DIM), nn.Flatten(1, 2)
    ),
    "unfolded twice": lambda: nn.Sequential(
        Lin(lambda x: functional.unfold(x, 3, stride=2, padding=1).mT, 27),
        Lin(
            lambda x: functional.unfold(x.mT.reshape(-1, DIM, 6, 8), 3, stride=2, padding=1).mT,
            9 * DIM,
        ),
    ),
    "normalised": lambda: nn.Sequential(Scale(), Conv(4, 4)),
    "positions": lambda: Then(
        Conv(4, 4), lambda x, extra: x + functional.interpolate(extra[:1].mT, 12).mT.expand_as(x)
    ),
    "features beside positions": lambda: nn.Sequential(
        Then(Conv(4, 4), lambda x, extra: torch.cat([x, extra[:, :1].expand_as(x)], -1)),
        nn.Linear(2 * DIM, DIM),
    ),
    "written": lambda: Then(Conv(4, 4), lambda x, extra: write(x, extra)[:, 1:]),
    "masked patches": lambda: Then(Conv(4, 4), lambda x, extra: mask_some(x, extra)),
    "addmm": lambda: Flat(),
}


class Skip(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x):
        return x + self.part(x)


class Scale(nn.Module):
    def forward(self, x):
        return (x - x.mean((2, 3), keepdim=True)) / torch.tensor([0.2, 0.3, 0.4]).view(1, 3, 1, 1)


class ToChannelsLast(nn.Module):
    def forward(self, x):
        return x.contiguous(memory_format=torch.channels_last)


class Flat(nn.Module):
    """The embedding as a product of all patches of the batch at once."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(tokens(48, DIM)), nn.Parameter(tokens(DIM))

    def forward(self, x):
        return torch.einsum("btd,de->bte", by_hand(x), self.weight) + self.bias


def merged(x):
    """Joins the four neighbours of a map ``[batch, rows, columns, dim]``."""
    return torch.cat([x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)], -1)


def write(x, extra):
    out = x.new_zeros(len(x), x.shape[1] + 1, DIM)
    out[:, 0] = extra[:, 0]
    out[:, 1:] = x
    return out


def mask_some(x, extra):
    x = x.clone()
    x[:, 3:5] = extra[:, :1]
    hidden = (torch.arange(x.shape[1]) % 5 == 0).to(x)[:, None]
    return x * (1 - hidden) + extra[:, 1:2] * hidden


@each_case("name", WHOLE)
def test_patches_in_order(name):
    check(built(lambda: Network(WHOLE[name]())).eval(), tokens(BATCH, 3, 12, 16), raster(3, 4), (3, 4))


def test_patches_by_columns():
    model = built(lambda: Network(Lin(lambda x: by_hand(x, order="columns"), 48)))
    check(model, tokens(BATCH, 3, 12, 16), COLUMN_MAJOR, (3, 4))
    model = built(
        lambda: Network(
            Lin(lambda x: einops.rearrange(x, "b c (h p) (w q) -> b (w h) (p q c)", p=4, q=4), 48)
        )
    )
    check(model, tokens(BATCH, 3, 12, 16), COLUMN_MAJOR, (3, 4))
    model = built(lambda: Network(Then(nn.Conv2d(3, DIM, 4, 4), lambda x, extra: x.mT.flatten(2).mT)))
    check(model, tokens(BATCH, 3, 12, 16), COLUMN_MAJOR, (3, 4))


@each_case(
    ("shape", "size"),
    [((1, 8, 8), (2, 2)), ((3, 4, 64), (1, 16)), ((3, 16, 64), (4, 16)), ((2, 72, 8), (18, 2))],
)
@each_case("how", ["convolution", "by hand", "unfold"])
def test_sizes(shape, size, how):
    channels = shape[0]
    make = {
        "convolution": lambda: Conv(4, 4, channels=channels),
        "by hand": lambda: Lin(by_hand, 16 * channels),
        "unfold": lambda: Lin(lambda x: functional.unfold(x, 4, stride=4).mT, 16 * channels),
    }[how]
    check(built(lambda: Network(make())), tokens(BATCH, *shape), raster(*size), size)


def test_images_of_bytes():
    x = torch.arange(BATCH * 3 * 12 * 16).view(BATCH, 3, 12, 16).to(torch.uint8)
    check(built(lambda: Network(nn.Sequential(Call(lambda x: x / 255), Conv(4, 4)))), x, raster(3, 4), (3, 4))
    check(built(lambda: Network(Lin(lambda x: by_hand(x / 255), 48))), x, raster(3, 4), (3, 4))


def test_pixels_as_tokens():
    """Tokens that are not projected, with a class token of zeros."""
    plain = built(lambda: Network(Call(lambda x: x.flatten(2).mT)))
    check(plain, tokens(BATCH, DIM, 3, 4), raster(3, 4), (3, 4))
    token = built(
        lambda: Network(Call(lambda x: torch.cat([x.new_zeros(len(x), 1, DIM), x.flatten(2).mT], 1)))
    )
    check(token, tokens(BATCH, DIM, 3, 4), [-1, *range(12)], (3, 4))


def test_channels_in_the_last_axis():
    cut = lambda x: einops.rearrange(x, "b (h p) (w q) c -> b (h w) (p q c)", p=4, q=4)  # noqa: E731
    x = tokens(BATCH, 12, 16, 3)
    check(built(lambda: Network(Lin(cut, 48))), x, raster(3, 4), (3, 4))
    check(built(lambda: Network(Then(Permute(0, 3, 1, 2), lambda x, _: x))), x, raster(3, 4), (3, 4))


class Permute(nn.Module):
    def __init__(self, *axes):
        super().__init__()
        self.axes, self.conv = axes, Conv(4, 4)

    def forward(self, x):
        return self.conv(x.permute(*self.axes))


@pytest.mark.parametrize("size", [(8, 8), (20, 12)])
def test_resized_padded_and_cropped_inside(size):
    x = tokens(BATCH, 3, *size)
    conv = lambda: Conv(4, 4)  # noqa: E731
    make = {
        "resized": lambda x: functional.interpolate(x, (12, 16)),
        "padded": lambda x: functional.pad(x, (0, 16 - size[1] % 16, 0, 0))[..., :12, :16].repeat(1, 1, 1, 1),
    }
    model = built(lambda: Network(nn.Sequential(Call(make["resized"]), conv())))
    check(model, x, raster(3, 4), (3, 4))
    model = built(lambda: Network(nn.Sequential(Call(make["resized"]), Lin(by_hand, 48))))
    check(model, x, raster(3, 4), (3, 4))
    model = built(lambda: Network(Lin(lambda x: by_hand(functional.pad(x, (0, 4, 2, 2))), 48)))
    rows, columns = size[0] // 4 + 1, size[1] // 4 + 1
    check(model, x, raster(rows, columns), (rows, columns))
    model = built(lambda: Network(Lin(lambda x: by_hand(x[..., :8, :8]), 48)))
    check(model, x, raster(2, 2), (2, 2))


class Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


EXTRA = {
    "in front": (lambda x, e: torch.cat([e[:, :1], x], 1), lambda p: [-1, *p]),
    "behind": (lambda x, e: torch.cat([x, e[:, :1]], 1), lambda p: [*p, -1]),
    "registers": (lambda x, e: torch.cat([e, x], 1), lambda p: [-1, -1, -1, *p]),
    "around": (lambda x, e: torch.cat([e[:, :1], x, e[:, 1:]], 1), lambda p: [-1, *p, -1, -1]),
    "between": (
        lambda x, e: torch.cat([e[:, :1], x[:, :4], e[:, 1:], x[:, 4:]], 1),
        lambda p: [-1, *p[:4], -1, -1, *p[4:]],
    ),
    "later": (
        lambda x, e: torch.cat([(y := torch.cat([e[:, :1], x], 1))[:, :1], e[:, 1:], y[:, 1:]], 1),
        lambda p: [-1, -1, -1, *p],
    ),
    "written": (lambda x, e: write(x, e), lambda p: [-1, *p]),
    "padded": (lambda x, e: functional.pad(x, (0, 0, 1, 0)) + e[:, :1], lambda p: [-1, *p]),
    "stacked": (
        lambda x, e: torch.stack([e[:, 0], *x.unbind(1)], 1),
        lambda p: [-1, *p],
    ),
    "reversed": (lambda x, e: torch.cat([x, e], 1).flip(1), lambda p: [-1, -1, -1, *p[::-1]]),
    "rolled": (lambda x, e: torch.cat([e[:, :1], x.roll(5, 1)], 1), lambda p: [-1, *p[-5:], *p[:-5]]),
}


@each_case("how", ["convolution", "by hand"])
@each_case("name", EXTRA)
def test_tokens_that_are_no_patches(name, how):
    function, places = EXTRA[name]
    make = {"convolution": lambda: Conv(4, 4), "by hand": lambda: Lin(by_hand, 48)}[how]
    model = built(lambda: Network(Then(make(), function)))
    check(model, tokens(BATCH, 3, 12, 16), torch.tensor(places(list(range(12)))), (3, 4))


KEPT = torch.tensor([[7, 2, 11, 0, 5], [3, 4, 1, 9, 8], [10, 0, 6, 2, 1]])
DROPS = {
    "gather": lambda x: x.gather(1, KEPT[..., None].expand(-1, -1, DIM)),
    "by index": lambda x: x[torch.arange(BATCH)[:, None], KEPT],
    "take_along_dim": lambda x: x.take_along_dim(KEPT[..., None], 1),
    "one by one": lambda x: torch.stack([each[keep] for each, keep in zip(x, KEPT)]),
    "index_select": lambda x: torch.cat(
        [each.index_select(1, keep) for each, keep in zip(x.split(1), KEPT)], 0
    ),
}


@each_case("name", DROPS)
@each_case("token", [False, True])
def test_dropped_patches_keep_their_places(name, token):
    def function(x, extra):
        x = DROPS[name](x)
        return torch.cat([extra[:, :1], x], 1) if token else x

    places = functional.pad(KEPT, (1, 0), value=-1) if token else KEPT
    model = built(lambda: Network(Then(Conv(4, 4), function)))
    check(model, tokens(BATCH, 3, 12, 16), places, (3, 4))


def test_patches_of_a_boolean_mask():
    mask = torch.zeros(BATCH, 12, dtype=torch.bool).scatter(1, KEPT, True)
    places = torch.stack([keep.sort().values for keep in KEPT])
    for pick in (
        lambda x, _: x[mask].reshape(BATCH, 5, DIM),
        lambda x, _: x.masked_select(mask[..., None]).view(BATCH, 5, DIM),
    ):
        check(
            built(lambda pick=pick: Network(Then(Conv(4, 4), pick))), tokens(BATCH, 3, 12, 16), places, (3, 4)
        )


class Stages(nn.Module):
    """Two stages, between which four neighbours are merged."""

    def __init__(self, how: str):
        super().__init__()
        self.embedding, self.how = Conv(2, 2), how
        self.first, self.second = (nn.ModuleList(Block(DIM) for _ in range(2)) for _ in range(2))
        self.norm, self.reduction = nn.LayerNorm(4 * DIM), nn.Linear(4 * DIM, DIM)
        self.conv = nn.Conv2d(DIM, DIM, 2, 2)

    def forward(self, x):
        x = self.embedding(x)
        for block in self.first:
            x = block(x.clone())
        if self.how == "strided":
            x = self.conv(x.mT.unflatten(2, (6, 8))).flatten(2).mT
        elif self.how == "merged":
            x = self.reduction(self.norm(merged(x.unflatten(1, (6, 8))).flatten(1, 2)))
        else:
            x = einops.rearrange(x, "b (h p w q) d -> b (h w) (p q d)", p=2, q=2, h=3)
            x = self.reduction(self.norm(x))
        for block in self.second:
            x = block(x.clone())
        return x.mean(1)


@pytest.mark.parametrize("how", ["strided", "merged", "rearranged"])
def test_hierarchies(how):
    keep = seen_in(built(lambda: Stages(how)), tokens(BATCH, 3, 12, 16))
    for seen in keep.seen:
        size = (6, 8) if seen.layer < 2 else (3, 4)
        # of the tokens of the first stage none stands for those that the head reads
        assert seen.reading == (NOT_READ if seen.layer < 2 else "the tokens")
        assert isinstance(seen.grid, Grid), (seen.grid, seen.layer)
        assert (seen.grid.rows, seen.grid.columns) == size
        assert torch.equal(seen.grid.places, raster(*size).expand(BATCH, -1))


class Words(nn.Module):
    def __init__(self, function=None):
        super().__init__()
        self.embedding, self.function = nn.Embedding(20, DIM), function or nn.Identity()
        self.conv = nn.Conv2d(1, DIM, (3, DIM), padding=(1, 0))

    def forward(self, ids):
        return self.function(self.embedding(ids))


def test_words_have_no_grid():
    ids = torch.arange(BATCH * 16).view(BATCH, 16) % 20
    models = [Network(Words())]
    conv = Words()
    conv.function = Call(lambda x: conv.conv(x[:, None]).flatten(2).mT)
    models += [Network(conv), Network(Then(Words(), lambda x, extra: torch.cat([extra[:, :1], x], 1)))]
    for model in models:
        for seen in seen_in(model.eval(), ids).seen:
            assert seen.grid == WORDS


def test_other_inputs_have_no_grid():
    plain = {
        "tokens": (lambda: nn.Linear(5, DIM), tokens(BATCH, 16, 5), NO_IMAGES),
        "signal": (
            lambda: Then(nn.Conv1d(2, DIM, 4, 4), lambda x, _: x.mT),
            tokens(BATCH, 2, 64),
            NO_IMAGES,
        ),
        "video": (
            lambda: Then(nn.Conv3d(3, DIM, (2, 4, 4), (2, 4, 4)), lambda x, _: x.flatten(2).mT),
            tokens(BATCH, 3, 4, 8, 8),
            NO_IMAGES,
        ),
        "mixed": (lambda: Then(Conv(4, 4), mixed), tokens(BATCH, 3, 12, 16), UNPLACED),
        "mixed along the tokens": (
            lambda: nn.Sequential(Conv(4, 4), Then(Call(lambda x: x), lambda x, e: tokens(12, 12) @ x)),
            tokens(BATCH, 3, 12, 16),
            UNPLACED,
        ),
        "a token per channel": (lambda: Lin(lambda x: x.flatten(2), 192), tokens(BATCH, 3, 12, 16), UNPLACED),
        "patches of each channel": (
            lambda: Lin(lambda x: einops.rearrange(x, "b c (h p) (w q) -> b (c h w) (p q)", p=4, q=4), 16),
            tokens(BATCH, 3, 12, 16),
            UNPLACED,
        ),
        "dropped before the embedding": (
            lambda: Lin(lambda x: by_hand(x)[:, [0, 3, 8]], 48),
            tokens(BATCH, 3, 12, 16),
            UNPLACED,
        ),
    }
    for name, (make, x, reason) in plain.items():
        for seen in seen_in(built(lambda make=make: Network(make())).eval(), x).seen:
            assert seen.grid == reason, name


def mixed(x, extra):
    """Each token becomes a mean of all tokens, by a map of the axis of the tokens."""
    return functional.linear(x.mT, torch.ones(x.shape[1], x.shape[1])).mT


def test_spectrograms():
    """Patches of time x frequency, of inputs without an axis of channels."""
    model = built(lambda: Network(nn.Sequential(Call(lambda x: x[:, None].mT), Conv(4, 3, channels=1))))
    check(model, tokens(BATCH, 16, 10), raster(3, 5), (3, 5))


def test_a_declared_grid():
    x = tokens(BATCH, 12, DIM)
    plain = built(lambda: Network(nn.Linear(DIM, DIM)))
    check(plain, x, raster(3, 4), (3, 4), grid=(3, 4))
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    permuted = built(lambda: Network(Then(nn.Linear(DIM, DIM), lambda x, _: x[:, order])))
    check(permuted, x, order, (3, 4), grid=(3, 4))
    token = built(lambda: Network(Then(nn.Linear(DIM, DIM), lambda x, e: torch.cat([x, e[:, :1]], 1)[:, 3:])))
    check(token, x, [*range(3, 12), -1], (3, 4), grid=(3, 4))
    whole = built(lambda: Network(Then(nn.Linear(DIM, DIM), lambda x, e: torch.cat([e[:, :1], x], 1))))
    for seen in seen_in(whole, x, grid=(2, 4)).seen:
        assert seen.grid == "grid is 2 x 4, and sequences have 12 tokens"


class Talking(nn.Module):
    """Attention of one head whose scores are convolved, before the blocks."""

    def __init__(self, first):
        super().__init__()
        self.first, self.qkv, self.mix = first, nn.Linear(DIM, 3 * DIM), nn.Conv2d(1, 1, 1)

    def forward(self, x):
        x = self.first(x)
        q, k, v = self.qkv(x)[:, None].chunk(3, -1)
        return (self.mix(q @ k.mT).softmax(-1) @ v)[:, 0] + x


def test_scores_that_are_convolved_are_no_image():
    for seen in seen_in(built(lambda: Network(Talking(nn.Linear(5, DIM)))), tokens(BATCH, 6, 5)).seen:
        assert seen.grid == NO_IMAGES
    check(built(lambda: Network(Talking(Conv(4, 4)))), tokens(BATCH, 3, 12, 16), raster(3, 4), (3, 4))


def test_windows_have_the_places_of_their_patches():
    """Windows of 2 x 2 patches, cut by views."""

    class Windows(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.blocks = Conv(4, 4), nn.ModuleList(Block(DIM) for _ in range(2))

        def forward(self, x):
            x = self.embedding(x)
            for block in self.blocks:
                windows = einops.rearrange(x, "b (r i c j) d -> (b r c) (i j) d", i=2, r=2, j=2, c=2)
                windows = block.attention(block.norm(windows))
                x = x + einops.rearrange(windows, "(b r c) (i j) d -> b (r i c j) d", i=2, r=2, c=2, j=2)
                x = x + block.mlp(block.second(x))
            return x.mean(1)

    expected = torch.tensor([[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]])
    for seen in seen_in(built(Windows), tokens(BATCH, 3, 16, 16)).of("attention"):
        assert isinstance(seen.grid, Grid)
        assert torch.equal(seen.grid.places, expected.repeat(BATCH, 1))


class Frames(nn.Module):
    """A video, whose frames are cut like images; the tokens of all frames form one sequence."""

    def __init__(self):
        super().__init__()
        self.network = Network(Conv(4, 4))

    def forward(self, video):
        x = self.network.embedding(video.flatten(0, 1)).unflatten(0, video.shape[:2]).flatten(1, 2)
        for block in self.network.blocks:
            x = block(x.clone())
        return self.network.head(x.mean(1))


def test_the_frames_of_a_video_are_no_grid():
    for seen in seen_in(built(Frames), tokens(BATCH, 2, 3, 12, 16)).seen:
        assert seen.grid == REPEATED


def test_an_error_of_the_places_does_not_end_the_pass(monkeypatch):
    from transformer_theory.probes.places import Places

    def fail(*arguments):
        raise RuntimeError("shapes")

    monkeypatch.setattr(Places, "record", fail)
    for seen in seen_in(built(lambda: Network(Conv(4, 4))), tokens(BATCH, 3, 12, 16)).seen:
        assert seen.grid == UNPLACED


def test_the_layout_of_tokens():
    """What figures and tables say about the tokens."""
    layout = TokenLayout()
    model = built(lambda: Network(Then(Conv(4, 4), EXTRA["registers"][0])))
    with probe(model, [layout], draws=0), torch.no_grad():
        model(tokens(BATCH, 3, 12, 16))
    assert (layout.tokens, layout.leading, layout.grid) == (15, 3, (3, 4))
    assert layout.where == "the class token"
    model = built(lambda: Network(Then(Conv(4, 4), lambda x, _: DROPS["gather"](x))))
    with probe(model, [layout], draws=0), torch.no_grad():
        model(tokens(BATCH, 3, 12, 16))
    assert (layout.tokens, layout.leading, layout.grid) == (5, 1, None)


def test_rows_of_one_sequence_are_not_packed():
    """Neither under masks of all tokens nor of neighbours, and tokens that see only themselves are none."""
    real = torch.ones(2, 6, dtype=torch.bool)
    band = (torch.arange(6)[:, None] - torch.arange(6)).abs() <= 1
    block = torch.block_diag(torch.ones(2, 2), torch.ones(4, 4)).bool()
    for mask in (torch.ones(6, 6).bool(), band, band.tril(), torch.eye(6).bool()):
        assert _starts([mask[None]], real) is None
    for mask in (block, block & band, block.tril()):
        assert _starts([mask[None]], real)[1].nonzero().flatten().tolist() == [0, 2]
    assert _starts([block[None], band[None]], real) is None  # a layer crosses the boundary


def test_isolated_ends_are_padding():
    """From either end, up to the first token that sees another; not in a row of such tokens alone."""
    mask = torch.eye(6).bool().repeat(3, 1, 1)
    mask[0, 2:5, 2:5] = True
    mask[1, 0:2, 0:2] = mask[1, 4, 5] = True
    isolated = _isolated([mask], torch.ones(3, 6, dtype=torch.bool))
    assert isolated.int().tolist() == [[1, 1, 0, 0, 0, 1], [0] * 6, [0] * 6]
    crossed = mask.clone()
    crossed[0, 0, 5] = True
    assert _isolated([mask, crossed], torch.ones(3, 6, dtype=torch.bool))[0].int().tolist() == [0] * 6
