"""Rows on data, in networks and on the ladder against numbers from numpy and scikit-learn; selectors are
tables.
"""

import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import mutual_info_score

from tests.cases import each_case
from transformer_theory.core.measurement import Measurement
from transformer_theory.core.metric import Activations
from transformer_theory.core.statistics import permutations
from transformer_theory.core.table import collect
from transformer_theory.data import TokenData
from transformer_theory.theories.router import claims, in_networks, ladder, needle, on_data
from transformer_theory.theories.router.selector import Measured

TOKENS, CLASSES, SEQUENCES = 5, 3, 240


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def corrected(choice: np.ndarray, labels: np.ndarray) -> float:
    """Information in nats less (a - 1)(b - 1) / 2n."""
    a, b = len(set(choice.tolist())), len(set(labels.tolist()))
    return mutual_info_score(choice, labels) - (a - 1) * (b - 1) / (2 * len(choice))


# ---- on data


class Tables:
    """Six selectors with known logits and scores: the last coordinate of a token is the number of its
    sequence. Selector 1 is best on the training part, selector 2 on the test part; of the label-blind ones 5
    and 3.
    """

    def __init__(self):
        rng = np.random.default_rng(0)
        self.labels = rng.choice(CLASSES, SEQUENCES, p=[0.5, 0.3, 0.2])
        order = rng.permutation(SEQUENCES)
        self.train, self.test = order[:150], order[150:]
        self.guesses = rng.integers(CLASSES, size=(6, SEQUENCES))
        for number, rate, part in (
            (1, 0.9, self.train), (1, 0.6, self.test), (2, 0.7, self.train), (2, 0.95, self.test),
            (5, 0.8, self.train), (5, 0.5, self.test), (3, 0.6, self.train), (3, 0.9, self.test),
        ):  # fmt: skip
            right = rng.random(len(part)) < rate
            self.guesses[number, part] = np.where(right, self.labels[part], (self.labels[part] + 1) % CLASSES)
        told = rng.random((6, SEQUENCES)) < np.array([0.2, 0.5, 0.9, 0.1, 0.1, 0.1])[:, None]
        self.choices = np.where(told, self.labels + 1, rng.integers(4, size=(6, SEQUENCES)))
        self.choices[3:] = np.array([4, 0, 2])[:, None]

    def problem(self) -> on_data.LabelledTokens:
        number = torch.arange(SEQUENCES)[:, None, None].expand(-1, TOKENS, 1)
        tokens = torch.cat([torch.eye(TOKENS).expand(SEQUENCES, -1, -1), number], -1).float()
        labels, train, test = (torch.from_numpy(each) for each in (self.labels, self.train, self.test))
        return on_data.LabelledTokens(tokens, labels, train, test)

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        which = x[0, :, 0, -1].long()
        one_hot = torch.nn.functional.one_hot
        guesses, choices = (torch.from_numpy(each)[:, which] for each in (self.guesses, self.choices))
        return one_hot(guesses, CLASSES).float(), one_hot(choices, TOKENS).float()


def rows_of(tables: Tables, monkeypatch, draws: int = 39) -> tuple[dict[str, Measurement], dict]:
    monkeypatch.setattr(on_data, "train_selectors", lambda *_, **__: tables)
    monkeypatch.setattr(on_data, "CHUNK", 100)
    table, arrays = collect(on_data.measure(tables.problem(), generator(), draws=draws))
    return {row.quantity: row for row in table}, arrays


def test_the_information_is_that_of_the_selector_which_is_best_in_training(monkeypatch):
    tables = Tables()
    rows, _ = rows_of(tables, monkeypatch)
    row, choice, labels = (
        rows[on_data.INFORMATION],
        tables.choices[1, tables.test],
        tables.labels[tables.test],
    )
    assert row.value == pytest.approx(corrected(choice, labels))
    null = [corrected(choice, labels[order]) for order in permutations(90, 39).numpy()]
    assert row.null.draws == pytest.approx(null)
    assert abs(np.mean(null)) < 0.01 < row.value
    assert (row.side, row.n, row.split) == (">=", 90, "test")
    a = len(set(choice.tolist()))
    assert rows[on_data.BIAS].value == pytest.approx((a - 1) * 2 / 180)


@pytest.mark.parametrize(("quantity", "best"), [(on_data.ACCURACY, 1), (on_data.BLIND, 5)])
def test_accuracies_are_those_of_the_selectors_which_are_best_in_training(monkeypatch, quantity, best):
    tables = Tables()
    rows, _ = rows_of(tables, monkeypatch)
    row, guesses, labels = rows[quantity], tables.guesses[best, tables.test], tables.labels[tables.test]
    assert row.value == pytest.approx(np.mean(guesses == labels))
    assert row.null.draws == pytest.approx(
        [np.mean(guesses == labels[order]) for order in permutations(90, 19).numpy()]
    )
    assert (row.side, row.n, row.split, row.unit) == (">=", 90, "test", "share")


def test_labels_of_the_test_part_do_not_change_which_selector_is_measured(monkeypatch):
    tables = Tables()
    tables.labels[tables.test] = tables.guesses[0, tables.test]  # selector 0 is perfect there
    rows, arrays = rows_of(tables, monkeypatch)
    labels = tables.labels[tables.test]
    assert rows[on_data.ACCURACY].value == pytest.approx(np.mean(tables.guesses[1, tables.test] == labels))
    assert rows[on_data.BLIND].value == pytest.approx(np.mean(tables.guesses[5, tables.test] == labels))
    assert arrays["router/blind"].tolist() == [2]


def test_choices_are_counted_within_each_class(monkeypatch):
    tables = Tables()
    _, arrays = rows_of(tables, monkeypatch)
    choice, labels = tables.choices[1, tables.test], tables.labels[tables.test]
    expected = [[np.mean(choice[labels == k] == t) for t in range(TOKENS)] for k in range(CLASSES)]
    assert arrays["router/choices"] == pytest.approx(np.array(expected))


def test_selectors_train_on_the_training_part_and_half_of_them_see_positions_only(monkeypatch):
    tables, seen = Tables(), {}

    def trained(draw, dim, **options):
        batches = [draw(generator(seed)) for seed in range(40)]
        seen.update(tokens=torch.cat([each[0] for each in batches], 1), dim=dim, **options)
        seen["labels"] = torch.cat([each[1] for each in batches], 1)
        return tables

    monkeypatch.setattr(on_data, "train_selectors", trained)
    collect(on_data.measure(tables.problem(), generator(), draws=0))
    width = TOKENS + 1
    assert (seen["dim"], seen["sees"], seen["networks"], seen["classes"]) == (2 * width, width, 6, CLASSES)
    tokens, which = seen["tokens"], seen["tokens"][..., 0, -1].long()
    for number in range(6):
        assert {int(each) for each in which[number].unique()} == set(tables.train.tolist())
        assert seen["labels"][number].tolist() == tables.labels[which[number].numpy()].tolist()
    assert torch.equal(tokens[..., :TOKENS], torch.eye(TOKENS).expand(6, tokens.shape[1], -1, -1))
    assert torch.equal(tokens[:3, ..., TOKENS], tokens[:3, ..., -1])  # the router sees the contents
    assert not tokens[3:, ..., TOKENS].any()
    assert tokens[3:, ..., -1].all(-1).float().mean() > 0.9  # the head sees them in all six


def test_tokens_are_read_as_their_leading_components_behind_their_positions():
    rng = np.random.default_rng(1)
    labels = np.repeat([7, 2, 5], [60, 24, 36])
    tokens = rng.standard_t(4, size=(120, 3, 20)) * np.linspace(3, 0.2, 20) @ rng.normal(size=(20, 20)) + 4
    data = TokenData(tokens=torch.from_numpy(tokens), labels=torch.from_numpy(labels))
    found = on_data.read(data)
    assert isinstance(found, on_data.LabelledTokens)
    chosen = permutations(120, 1)[0].numpy()
    assert found.labels.tolist() == [{2: 0, 5: 1, 7: 2}[each] for each in labels[chosen]]
    assert torch.equal(found.tokens[..., :3], torch.eye(3).expand(120, 3, 3))
    flat = tokens[chosen].reshape(-1, 20)
    flat = flat - flat.mean(0)
    u = np.linalg.svd(flat, full_matrices=False)[0][:, :16] * math.sqrt(360)  # variance 1 with 1/n
    components = found.tokens[..., 3:].reshape(-1, 16).double().numpy()
    assert np.abs(np.sum(components * u, 0)) / 360 == pytest.approx(np.ones(16), abs=1e-4)
    # two thirds of each class
    parts = [np.bincount(found.labels[part].numpy()).tolist() for part in (found.train, found.test)]
    assert parts == [[16, 24, 40], [8, 12, 20]]
    assert not set(found.train.tolist()) & set(found.test.tolist())


# ---- in networks


def test_the_heaviest_key_of_the_mean_over_the_queries_that_are_read():
    """Two heads; queries 1 and 3 of 4 are read; unequal classes and one sequence without a label."""
    rng = np.random.default_rng(2)
    labels = np.concatenate([rng.choice(3, 199, p=[0.6, 0.3, 0.1]), [-1]])
    weights = rng.dirichlet(np.ones(4), size=(200, 2, 4))
    weights[np.arange(200), 1, 1, labels] += np.where(rng.random(200) < 0.6, 2.0, 0.0)
    weights /= weights.sum(-1, keepdims=True)
    x, read = torch.zeros(200, 4, 2), torch.tensor([False, True, False, True]).expand(200, 4)
    metric = in_networks.HeaviestKey()
    parts = {"weights": torch.from_numpy(weights).float(), "labels": torch.from_numpy(labels), "read": read}
    metric.update(Activations("", 0, "attention", x, x, **parts))
    choice = weights[:199, :, [1, 3]].mean(2).argmax(-1)
    for head, row in enumerate(metric.compute(draws=99, generator=generator(5))):
        assert row.value == pytest.approx(corrected(choice[:, head], labels[:199]))
        orders = permutations(199, 19).numpy()
        assert row.null.draws == pytest.approx(
            [corrected(choice[:, head], labels[:199][order]) for order in orders]
        )
        assert (row.n, row.head, row.side, row.unit) == (199, head, ">=", "nats")
    assert metric.compute()[1].value > 0.1 > metric.compute()[0].value
    assert in_networks.IN_NETWORKS.side == ">="


@pytest.mark.parametrize(("n", "measured"), [(5, False), (6, True)])
def test_a_head_needs_a_sample_for_each_pair_of_key_and_label(n: int, measured: bool):
    weights = torch.eye(3)[torch.arange(n) % 3][:, None, None].expand(-1, 1, 3, 3)
    x = torch.zeros(n, 3, 2)
    metric = in_networks.HeaviestKey()
    metric.update(Activations("", 0, "attention", x, x, weights=weights, labels=torch.arange(n) // 3))
    (row,) = metric.compute()
    assert (row.value is not None) == measured
    if not measured:
        assert f"{2 / 10:.2f} nats" in row.reason


# ---- the ladder


def measured_with(found: Measured, monkeypatch, *, counts: list[int], **settings):
    """Rows of a rung with known choices; returns them, what is drawn for the training, and the needles."""
    seen = {}

    def sampler(*shape: int, generator: torch.Generator) -> needle.Needles:
        number = torch.arange(math.prod(shape)).reshape(shape)
        places = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
        needles = places.expand(*shape) if shape[-1] == len(places) else number * 0
        tokens = number[..., None, None].expand(*shape, 1, 1).float() + 1e6 * len(seen)
        seen[shape] = needle.Needles(tokens, number % 7, needles)
        return seen[shape]

    def trained(draw, dim, **options):
        seen["batches"] = [draw(generator(seed)) for seed in range(3)]
        seen["options"] = {"dim": dim, **options}
        return "model"

    def measure(model, data):
        seen["measured"] = data
        return found

    monkeypatch.setattr(ladder, "train_selectors", trained)
    monkeypatch.setattr(ladder, "measure_selectors", measure)
    return list(ladder.measured(generator(3), sampler=sampler, **settings)), seen


def perfect(places: np.ndarray, networks: int) -> Measured:
    hit = torch.linspace(0.85, 1, networks).double()
    return Measured(
        torch.from_numpy(places).expand(networks, -1),
        torch.linspace(0.5, 0.8, networks).double(),
        hit,
        torch.linspace(0.1, 0.3, networks).double(),
    )


def test_rows_of_a_rung_and_the_null_of_perfect_selectors(monkeypatch):
    """The null of a perfect choice is about sum p^2, of needles with probabilities p."""
    counts = [500, 300, 150, 50]
    places = np.repeat(np.arange(4), counts)
    rows, seen = measured_with(perfect(places, 6), monkeypatch, counts=counts)
    hits, success, accuracy, information = rows
    assert hits.value == pytest.approx(np.linspace(0.85, 1, 6).mean())
    g = generator(3)
    orders = [torch.randperm(1000, generator=g).numpy() for _ in range(199)]
    assert hits.null.draws == pytest.approx([np.mean(places[order] == places) for order in orders])
    assert np.mean(hits.null.draws) == pytest.approx(0.25 + 0.09 + 0.0225 + 0.0025, abs=0.005)
    assert (hits.side, hits.predicted, hits.n, hits.unit) == (">=", 1.0, 6000, "share")
    assert success.value == pytest.approx(4 / 6)  # .85, .88, .91, ...
    assert accuracy.value == pytest.approx(0.65)
    assert information.value == pytest.approx(0.2)
    assert (success.n, success.predicted, accuracy.predicted, information.predicted) == (6, 1.0, 1.0, None)
    assert seen["options"]["networks"] == 6
    assert seen["options"]["sees"] == needle.KEY_DIM


def test_the_null_pairs_choices_with_needles_of_other_sequences(monkeypatch):
    counts, rng = [400, 300, 200, 100], np.random.default_rng(4)
    places = np.repeat(np.arange(4), counts)
    choices = np.where(rng.random((2, 1000)) < [[0.9], [0.2]], places, 3)
    found = Measured(torch.from_numpy(choices), *torch.rand(3, 2, generator=generator()).double())
    (hits, *_), _ = measured_with(found, monkeypatch, counts=counts, blocks=1)
    g = generator(3)
    orders = [torch.randperm(1000, generator=g).numpy() for _ in range(199)]
    assert hits.null.draws == pytest.approx([np.mean(choices[:, order] == places) for order in orders])


@pytest.mark.parametrize("stored", [0, 50])
def test_selectors_are_measured_on_other_sequences_than_they_train_on(monkeypatch, stored: int):
    counts = [1000]
    found = perfect(np.zeros(1000, int), 2)
    _, seen = measured_with(found, monkeypatch, counts=counts, stored=stored, blocks=2, decay=0.01, sees=None)
    assert seen["options"]["networks"] == 2
    assert (seen["options"]["blocks"], seen["options"]["decay"], seen["options"]["sees"]) == (2, 0.01, None)
    shape = (2, stored or 32)
    source = seen[shape]
    assert seen["measured"] is seen[2, 1000]
    for tokens, labels in seen["batches"]:
        assert tokens.shape == (2, 32, 1, 1)
        if stored:
            number = (tokens[..., 0, 0] - source.tokens[0, 0, 0, 0]).long()
            assert torch.equal(number[1], number[0] + 50)
            assert torch.equal(labels, number % 7)
    if stored:
        assert not torch.equal(*(each[0] for each in seen["batches"][:2]))


def test_the_label_of_digits_is_whether_the_needle_holds_more_ink_than_the_median():
    data = ladder.draw_digits(3, 200, generator=generator(6))
    images = load_digits().images.reshape(-1, 4, 2, 4, 2).mean((2, 4)).reshape(-1, 16)
    scale = load_digits().images
    ink = data.tokens[..., 8:].mean(-1).double().numpy() * scale.std() + scale.mean()
    known = {tuple(row) for row in np.round(images, 2).tolist()}
    assert all(tuple(row) in known for row in np.round(ink.reshape(-1, 16), 2).tolist())
    marked = np.take_along_axis(ink, data.needle[..., None].numpy(), -1)[..., 0]
    median = np.median(images)
    clear = np.abs(marked - median) > 1e-2
    assert data.labels.numpy()[clear].tolist() == (marked > median)[clear].tolist()
    first = data.tokens[..., 0]
    raised = first.gather(-1, data.needle[..., None])
    assert float(raised.mean()) == pytest.approx(6, abs=0.2)
    assert float(first.mean()) == pytest.approx(6 / 16, abs=0.05)


def test_the_label_is_the_content_of_the_marked_token():
    data = needle.draw_needles(4, 300, tokens=5, generator=generator(7))
    x, marked = data.tokens.numpy(), data.needle.numpy()[..., None]
    content = np.take_along_axis(x[..., -1], marked, -1)[..., 0]
    assert data.labels.tolist() == (content > 0).astype(int).tolist()
    raised = np.take_along_axis(x[..., 0], marked, -1)
    assert raised.mean() == pytest.approx(6, abs=0.15)
    assert x[..., 0].mean() == pytest.approx(6 / 5, abs=0.1)


# ---- claims


def test_gradients_of_twice_the_mean_have_the_relative_bias_one(monkeypatch):
    """The second moment is compared with sigma'(delta) / (6 tau)."""

    def doubled(delta, *, temperature, draws, generator):
        return torch.full((draws,), 2 / (2 + math.exp(delta) + math.exp(-delta)), dtype=torch.float64)

    monkeypatch.setattr(claims, "sampled_gradients", doubled)
    found = claims.second_moment.function(generator(1))
    delta = found.detail["delta"]
    slope = 1 / (2 + math.exp(delta) + math.exp(-delta))
    assert found.detail["relative bias of the mean"] == pytest.approx(1)
    assert found.value == pytest.approx(abs(4 * slope**2 / (slope / (6 * 0.1)) - 1))


def test_trained_selectors_are_judged_by_the_share_that_hits_and_by_the_best_excess(monkeypatch):
    """A label-blind selector that hits with probability h is right with (1 + h) / 2 at most."""
    hit, accuracy = np.array([0.95, 0.5, 0.2, 0.91]), np.array([0.96, 0.8, 0.61, 0.9])
    found = Measured(torch.zeros(4, 1).long(), *(torch.from_numpy(each) for each in (accuracy, hit, hit / 2)))
    monkeypatch.setattr(claims, "train_on_needles", lambda *_, **__: (found, None))
    numbers = claims._trained.__wrapped__("schedule", False, 0)
    excess = accuracy - (1 + hit) / 2
    assert numbers == pytest.approx(
        {
            "success": 0.5,
            "excess": excess.max(),
            "its accuracy": accuracy[excess.argmax()],
            "its hit": hit[excess.argmax()],
            "its information given the needle, nats": hit[excess.argmax()] / 2,
            "mean accuracy": accuracy.mean(),
        }
    )


def test_information_about_labels_counts_as_a_row_of_labels():
    """So it is compared with permuted labels, and permits a sentence about the task."""
    settings = in_networks.IN_NETWORKS
    assert (settings.of_labels, settings.side) == (True, ">=")


@each_case(
    ("name", "dim", "sees", "decay", "blocks", "networks"),
    [
        ("router sees keys only", 9, 8, 0.0, 0, 6),
        ("digits as contents", 12, 8, 0.0, 0, 6),
        ("router sees contents", 12, None, 0.0, 0, 6),
        ("AdamW, 1,024 sequences", 12, None, 0.01, 0, 6),
        ("one transformer block", 12, None, 0.01, 1, 2),
        ("two transformer blocks", 12, None, 0.01, 2, 2),
    ],
)
def test_rungs_train_selectors_as_their_names_say(monkeypatch, name, dim, sees, decay, blocks, networks):
    """Three hundred steps on batches of 32; new or stored sequences of the width of the rung."""
    (rung,) = (rung for rung in ladder.LADDER.rungs if rung.name == name)
    seen = {}

    class Stopped(Exception):
        pass

    def trained(draw, width, *, generator, **options):
        batches = [draw(torch.Generator().manual_seed(seed))[0] for seed in range(40)]
        seen.update(options, dim=width, shape=tuple(batches[0].shape))
        sequences = torch.cat([batch[0] for batch in batches])
        seen["different"] = len(sequences.flatten(1).unique(dim=0))
        raise Stopped

    monkeypatch.setattr(ladder, "train_selectors", trained)
    with pytest.raises(Stopped):
        list(rung.measure(generator(5)))
    different = seen.pop("different")
    batch = seen["shape"][1]
    assert seen.pop("shape")[::3] == (networks, dim)
    expected = {
        "dim": dim,
        "networks": networks,
        "steps": 300,
        "decay": decay,
        "sees": sees,
        "blocks": blocks,
    }
    assert seen == expected
    assert batch == 32
    stored = rung.measure.keywords.get("stored", 0)
    assert stored == (1024 if decay else 0)
    assert different <= 1024 if stored else different == 40 * 32


@pytest.mark.parametrize("far", ["straight-through", "REINFORCE"])
def test_the_gradients_of_a_choice_are_judged_by_the_mean_that_is_farther_from_its_formula(monkeypatch, far):
    """Gradients of a known mean and of deviation 1 or 2, in units of the standard error of 40,000 draws."""
    signs = np.where(np.arange(40_000) % 2, 1.0, -1.0)
    shifts = {"straight-through": (0.03, 1.0), "REINFORCE": (0.012, 2.0)}
    if far == "REINFORCE":
        shifts = {"straight-through": (-0.01, 2.0), "REINFORCE": (-0.04, 1.0)}

    def known(name: str):
        def gradients(delta: float, *, draws: int, temperature: float = 1.0, generator):
            assert (draws, temperature) == (40_000, 1.0)
            shift, size = shifts[name]
            return torch.from_numpy(formulas(delta)[name] + shift + size * signs)

        return gradients

    def formulas(delta: float) -> dict[str, float]:
        e = math.exp(delta)
        return {
            "straight-through": e * ((delta - 2) * e + delta + 2) / (e - 1) ** 3,
            "REINFORCE": 1 / (2 + e + 1 / e),
        }

    monkeypatch.setattr(claims, "sampled_gradients", known("straight-through"))
    monkeypatch.setattr(claims, "score_function_gradients", known("REINFORCE"))
    found = claims.straight_through_bias.function(generator(2))
    right = formulas(found.detail["delta"])
    errors = {name: abs(shift) * 200 / size for name, (shift, size) in shifts.items()}
    assert found.value == pytest.approx(max(errors.values()), rel=1e-4)
    assert max(errors, key=errors.get) == far
    for name, (shift, _) in shifts.items():
        assert found.detail[name] == pytest.approx(right[name] + shift, rel=1e-6)
    assert found.detail["exact"] == pytest.approx(right["REINFORCE"])
    control = claims.straight_through_bias.function(generator(2), relaxed=False)
    shift, size = shifts["straight-through"]
    biased = abs(right["straight-through"] + shift - right["REINFORCE"]) * 200 / size
    assert control.value == pytest.approx(max(biased, errors["REINFORCE"]), rel=1e-4)


@each_case(
    ("claim", "changes", "contents", "number"),
    [
        (claims.early_penalty, {}, False, "success"),
        (claims.annealed, {}, False, "success"),
        (claims.learnt_shortcut, {}, True, "excess"),
        (claims.learnt_shortcut, {"contents": False}, False, "excess"),
    ],
)
def test_claims_train_24_selectors_that_see_what_the_claim_says(
    monkeypatch, claim, changes, contents, number
):
    """Penalties from the first step need keys alone; the shortcut needs contents."""
    hit, accuracy = torch.tensor([0.95, 0.5, 0.2]).double(), torch.tensor([0.96, 0.9, 0.8]).double()
    found, seen = Measured(torch.zeros(3, 1).long(), accuracy, hit, hit / 2), []

    def trained(schedule, *, sees_contents: bool, networks: int, generator: torch.Generator):
        seen.append((schedule, sees_contents, networks, generator.initial_seed()))
        return found, None

    monkeypatch.setattr(claims, "train_on_needles", trained)
    monkeypatch.setattr(claims, "_trained", claims._trained.__wrapped__)
    value = claim.function(generator(7), **changes).value
    assert value == pytest.approx(1 / 3 if number == "success" else 0.8 - 1.2 / 2)
    ((_, *rest),) = seen
    assert rest == [contents, 24, 7]
