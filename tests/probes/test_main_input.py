"""Tests on synthetic inputs in networks that take several tensors: one is changed, without its padding; the
others are made anew.
"""

import pytest
import torch
from torch import nn

import transformer_theory as tt
from transformer_theory.core.theory import Response
from transformer_theory.metrics.responses import CHANGE, OutputChange
from transformer_theory.probes.main_input import MainInput, main_input
from transformer_theory.probes.measure import NEEDS_CAUSAL, run_synthetic_tests

CLS, SEP, PAD, VOCABULARY, WIDTH = 1, 2, 0, 30, 12
LENGTHS = (9, 7, 12, 7, 4)
L = 7  # 4 · 7 = 28 tokens; 5 · 4, 2 · 9 and 12 are fewer
RUN = {"name": "net"}


class Bert(nn.Module):
    """Ids with [CLS] and [SEP], a mask, segments and positions, as in BERT; returns the classes."""

    def __init__(self):
        super().__init__()
        self.words, self.places, self.segments = (
            nn.Embedding(size, 8) for size in (VOCABULARY, 2 * WIDTH, 2)
        )
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, input_ids, attention_mask=None, token_type_ids=None, position_ids=None):
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1]).expand(input_ids.shape)
        x = self.words(input_ids) + self.places(position_ids)
        if token_type_ids is not None:
            x = x + self.segments(token_type_ids)
        padding = None if attention_mask is None else attention_mask == 0
        return self.head(self.encoder(x, src_key_padding_mask=padding)[:, 0])


@pytest.fixture(scope="module")
def model() -> Bert:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Bert().eval()


def sentences() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    words = [torch.randint(3, VOCABULARY, (length - 2,), generator=generator) for length in LENGTHS]
    return [torch.cat([torch.tensor([CLS]), each, torch.tensor([SEP])]) for each in words]


def padded(*, left: bool = False, holds: int = PAD) -> dict[str, torch.Tensor]:
    """The sentences with padding."""
    ids, mask = torch.full((5, WIDTH), holds), torch.zeros(5, WIDTH, dtype=torch.long)
    for row, each in enumerate(sentences()):
        where = slice(WIDTH - len(each), None) if left else slice(len(each))
        ids[row, where], mask[row, where] = each, 1
    return {"input_ids": ids, "attention_mask": mask}


def by_hand() -> torch.Tensor:
    """The sentences of at least L ids, cut to L, with [SEP] at their end."""
    return torch.stack([torch.cat([x[: L - 1], x[-1:]]) for x in sentences() if len(x) >= L])


def rows_of(model, inputs, theory, **options):
    tests = getattr(tt, theory).THEORY.in_networks.responses
    run = {"generator": torch.Generator().manual_seed(1), "limits": {"sequences": 8}, **RUN, **options}
    return [*run_synthetic_tests(model, theory, tests, inputs, **run)]


def values(rows):
    return [
        (row.quantity, row.at, row.layer, row.value, row.null.draws if row.null else (), row.reason)
        for row in rows
    ]


@pytest.mark.parametrize("theory", ["particles", "turing", "length"])
@pytest.mark.parametrize("left", [False, True])
def test_tests_run_on_padded_sequences_as_on_the_same_without_padding(model, theory, left):
    whole = {"special_ids": [CLS, SEP, PAD]}
    found = values(rows_of(model, padded(left=left), theory, **whole))
    expected = values(rows_of(model, by_hand(), theory, **whole))
    assert any(value is not None and draws for _, _, _, value, draws, _ in found)
    assert [row[:3] for row in found] == [row[:3] for row in expected]
    for one, other in zip(found, expected):
        assert one[5] == other[5]
        numbers = [() if row[3] is None else (row[3], *row[4]) for row in (one, other)]
        assert numbers[0] == pytest.approx(numbers[1], rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("theory", ["particles", "turing"])
def test_what_padding_holds_changes_nothing(model, theory):
    special = {"special_ids": [CLS, SEP, PAD]}
    one = values(rows_of(model, padded(), theory, **special))
    assert one == values(rows_of(model, padded(holds=17), theory, **special))
    assert one == values(rows_of(model, padded(left=True, holds=17), theory, **special))


def test_the_change_of_the_output_is_that_of_plain_torch(model):
    def turned(data, limits, generator):
        return {"value": data.flip(1), "null": data.roll(1, 0), "reference": data}

    test = Response("turned", turned, lambda: (OutputChange(),))
    inputs = padded() | {"token_type_ids": torch.ones(5, WIDTH, dtype=torch.long)}
    run = {"generator": torch.Generator(), "limits": {}, "special_ids": [SEP], **RUN}
    (row,) = run_synthetic_tests(model, "turing", [test], inputs, **run)
    ids = by_hand()
    with torch.no_grad():
        segments = torch.ones_like(ids)
        y, t = model(ids.flip(1), None, segments), model(ids, None, segments)
        other = model(ids.roll(1, 0), None, segments)

    def change(outputs):
        return float((outputs - t).norm() / t.norm())

    assert row.quantity == CHANGE
    assert row.value == pytest.approx(change(y), rel=1e-5)
    assert row.null.draws[0] == pytest.approx(change(other), rel=1e-5)


def test_other_tensors_have_the_length_of_the_new_sequences(model):
    count = torch.arange(WIDTH).expand(5, -1)
    main = main_input(
        model, padded() | {"position_ids": count + 3, "token_type_ids": torch.zeros_like(count)}
    )
    assert isinstance(main, MainInput)
    made = main.inputs(torch.full((2, 9), 4))
    assert torch.equal(made["input_ids"], torch.full((2, 9), 4))
    assert torch.equal(made["attention_mask"], torch.ones(2, 9, dtype=torch.long))
    assert torch.equal(made["token_type_ids"], torch.zeros(2, 9, dtype=torch.long))
    assert torch.equal(made["position_ids"], torch.arange(3, 12).expand(2, -1))
    # positions that begin behind the padding, whose own numbers are arbitrary
    inputs = padded(left=True)
    places = (inputs["attention_mask"].cumsum(1) - 1).clamp(min=0)
    main = main_input(model, inputs | {"position_ids": places})
    assert isinstance(main, MainInput)
    assert torch.equal(main.inputs(main.data)["position_ids"], torch.arange(L).expand(4, -1))


@pytest.mark.parametrize(
    ("name", "mask", "real"),
    [
        ("key_padding_mask", lambda keep: ~keep, False),
        ("padding_mask", lambda keep: torch.zeros(keep.shape).masked_fill(~keep, -torch.inf), 0.0),
        ("token_mask", lambda keep: keep, True),
        ("valid_mask", lambda keep: keep.float(), 1.0),
    ],
)
def test_masks_of_tokens_that_are_vectors(model, name, mask, real):
    keep = padded()["attention_mask"].bool()
    tokens = torch.randn(5, WIDTH, 4)
    main = main_input(model, {"x": tokens, name: mask(keep)})
    assert isinstance(main, MainInput)
    assert torch.equal(main.data, tokens[[0, 1, 2, 3], :L])
    made = main.inputs(tokens[:1, :3])[name]
    assert made.shape == (1, 3)
    assert bool((made == real).all())
    assert made.dtype == mask(keep).dtype


def test_the_length_keeps_the_most_tokens_of_at_least_two_sequences(model):
    def lengths(*sizes):
        mask = (torch.arange(20) < torch.tensor(sizes)[:, None]).long()
        main = main_input(model, {"input_ids": torch.full(mask.shape, 5), "attention_mask": mask})
        return main if isinstance(main, str) else main.data.shape

    assert lengths(20, 3, 2) == (2, 3)  # one sequence of 20 would have the most tokens
    assert lengths(9, 8, 8, 3) == (3, 8)
    assert lengths(10, 5, 0) == (2, 5)
    assert lengths(20, 20) == (2, 20)
    assert lengths(12, 0) == (1, 12)
    assert lengths(0, 0) == "no sequence has a real token; the masks are attention_mask"


def test_only_an_end_that_all_sequences_have_is_kept(model):
    inputs = padded()
    kept = main_input(model, inputs, special_ids=[SEP])
    assert isinstance(kept, MainInput)
    assert kept.data[:, -1].tolist() == [SEP] * 4
    inputs["input_ids"][0, LENGTHS[0] - 1] = 9
    cut = main_input(model, inputs, special_ids=[SEP])
    assert isinstance(cut, MainInput)
    assert cut.data[2].tolist() == sentences()[2][:L].tolist()


def test_what_belongs_to_a_sequence_in_an_unknown_way_is_named(model):
    inputs = padded()
    segments = torch.arange(WIDTH).expand(5, -1) // 4
    (row,) = rows_of(model, inputs | {"token_type_ids": segments}, "particles")
    assert row.value is None
    assert (
        row.reason
        == "the tests make other input_ids, and it is not known which token_type_ids belong to them"
    )
    packed = inputs | {"attention_mask": segments}
    assert "which attention_mask belong" in str(main_input(model, packed))
    two = {"first": torch.randn(5, 4, 3), "second": torch.randn(5, 4, 3)}
    assert str(main_input(model, two)).endswith("and the network takes several: first, second")


def test_a_padded_causal_model_has_the_tests_on_ids():
    """Its logits for padding are no output of real ids, so they do not decide whether it is causal."""

    class Causal(nn.Module):
        def __init__(self, hides: bool):
            super().__init__()
            self.hides = hides
            self.words, self.places = nn.Embedding(VOCABULARY, 8), nn.Embedding(WIDTH, 8)
            layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
            self.head = nn.Linear(8, VOCABULARY)

        def forward(self, input_ids, attention_mask):
            T = input_ids.shape[1]
            x = self.words(input_ids) + self.places.weight[:T]
            future = torch.ones(T, T, dtype=torch.bool).triu(1) if self.hides else None
            return self.head(self.encoder(x, future, attention_mask == 0))

    def measured(hides):
        torch.manual_seed(0)
        return tt.measure(Causal(hides), padded(holds=29), theories=["induction"], networks=1)

    rows = measured(True).select(theory="induction", at={"test": "repeated blocks"})
    assert rows
    assert all(row.value is not None and row.null.draws for row in rows)
    reasons = [row.reason for row in measured(False).select(theory="induction") if row.value is None]
    assert NEEDS_CAUSAL in reasons


def test_a_network_responds_to_arguments_by_name(model):
    inputs, targets = padded(), torch.zeros(5, 3)
    row = tt.respond(model, inputs, [OutputChange()], targets=targets + 1, batch_size=2).table[0]
    with torch.no_grad():
        expected = float((model(**inputs) - 1).norm() / 15**0.5)
    assert row.value == pytest.approx(expected, rel=1e-5)
    other = {name: x.roll(1, 0) for name, x in inputs.items()}
    both = {"value": inputs, "null": [other, inputs]}
    with_null = tt.respond(model, both, [OutputChange()], targets=targets + 1).table[0]
    assert with_null.null.draws == pytest.approx((expected, expected), rel=1e-5)
    with pytest.raises(ValueError, match=r"the arguments of Bert by name.*got the keys input_ids, mask"):
        tt.respond(model, {"input_ids": inputs["input_ids"], "mask": targets}, [OutputChange()])
    with pytest.raises(ValueError, match="input_ids 5, attention_mask 4"):
        tt.respond(model, inputs | {"attention_mask": inputs["attention_mask"][:4]}, [OutputChange()])
