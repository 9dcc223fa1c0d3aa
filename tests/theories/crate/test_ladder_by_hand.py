"""The ladder and the unrolled steps on data against numpy: subspaces that share directions, heavy tails."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from transformer_theory.core.statistics import fixed_generator
from transformer_theory.data import TokenData
from transformer_theory.models import CRATE, build
from transformer_theory.models.copies import Copies
from transformer_theory.models.crate import PaperAttention, ReleasedAttention
from transformer_theory.models.image_networks import Mlp
from transformer_theory.theories import crate
from transformer_theory.theories.crate import on_data
from transformer_theory.theories.crate.in_networks import (
    AFTER,
    BEFORE,
    COMPRESSION,
    NONZEROS,
    null_subspaces,
    random_rotations,
)
from transformer_theory.theories.crate.ladder import LADDER, given_tokens, networks, small_vit
from transformer_theory.theories.crate.ladder.quantities import INCOHERENCE, compression_rows
from transformer_theory.theories.crate.ladder.updates import update_rotations
from transformer_theory.theories.crate.problem import fit_subspaces
from transformer_theory.training.objectives.protocol import ACCURACY

RUNGS = {rung.name: rung for rung in LADDER.rungs}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rate(Z: np.ndarray, U: np.ndarray, eps: float = 0.5) -> float:
    """R^c of one sequence: half the sum over heads of log det(I + p/(n eps^2) W^T W)."""
    n, p = len(Z), U.shape[-1]
    parts = [np.linalg.slogdet(np.eye(p) + p / (n * eps**2) * (Z @ u).T @ (Z @ u))[1] for u in U]
    return 0.5 * sum(parts)


def mean_rate(Z: np.ndarray, U: np.ndarray) -> float:
    return float(np.mean([rate(each, U) for each in Z]))


def units(Z: np.ndarray) -> np.ndarray:
    return Z / np.linalg.norm(Z, axis=-1, keepdims=True)


def centred_units(Z: np.ndarray) -> np.ndarray:
    return units(Z - Z.mean(-1, keepdims=True))


def fall(before: np.ndarray, after: np.ndarray, U: np.ndarray) -> float:
    """Of centred tokens of norm one."""
    return 1 - mean_rate(centred_units(after), U) / mean_rate(centred_units(before), U)


def turned(before: np.ndarray, after: np.ndarray, rotation: np.ndarray) -> np.ndarray:
    """Each token turned by its own angle towards the rotated direction of its turn."""
    result = np.zeros_like(before)
    for index in np.ndindex(before.shape[:2]):
        z, target = centred_units(before)[index], centred_units(after)[index]
        angle = math.acos(z @ target)
        t = (target - math.cos(angle) * z) / math.sin(angle)
        t = rotation.T @ t
        t = t - (t @ z) * z
        result[index] = math.cos(angle) * z + math.sin(angle) * t / np.linalg.norm(t)
    return result


def bases(K: int, d: int, p: int, seed: int) -> np.ndarray:
    """Subspaces with orthonormal columns that share directions."""
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(K, d, p)))[0]


def gradient(Z: np.ndarray, U: np.ndarray, eps: float = 0.5) -> np.ndarray:
    n, p = len(Z), U.shape[-1]
    beta = p / (n * eps**2)
    return sum(beta * (Z @ u) @ np.linalg.inv(np.eye(p) + beta * (Z @ u).T @ (Z @ u)) @ u.T for u in U)


def largest_slope(U: np.ndarray, n: int, eps: float = 0.5) -> float:
    return U.shape[-1] / (n * eps**2) * np.linalg.norm(sum(u @ u.T for u in U), 2)


def test_the_headline_and_both_nulls():
    """T = fall in U less the median fall in rotated U; a rotated update has the median of rotated updates."""
    rng, U, draws = np.random.default_rng(0), bases(3, 8, 3, 1), 12
    before = rng.standard_t(4, size=(4, 5, 8)) * np.linspace(2, 0.3, 8) + 0.3
    after = before - 0.7 * before @ (U[0] @ U[0].T) + 0.2 * rng.normal(size=before.shape)
    found = given_tokens.compression(*(torch.from_numpy(x) for x in (before, after, U)), draws=draws)
    head, raw, angle = compression_rows(found, data="d")
    frames = [Q @ U for Q in random_rotations(8, draws).numpy()]
    updates = [turned(before, after, rotation) for rotation in update_rotations(8, draws).numpy()]
    own = [fall(before, after, frame) for frame in frames]
    rotated = [fall(before, update, U) for update in updates]
    both = [fall(before, update, frame) for update, frame in zip(updates, frames)]
    value = fall(before, after, U)
    assert raw.value == pytest.approx(value)
    assert raw.nulls[0].draws == pytest.approx(own)
    assert raw.nulls[1].draws == pytest.approx(rotated)
    assert head.value == pytest.approx(value - np.median(own))
    assert head.nulls[0].draws == pytest.approx([each - np.median(own) for each in own])
    assert head.nulls[1].draws == pytest.approx([each - np.median(both) for each in rotated])
    cosines = [np.linalg.norm(U[i].T @ U[j], 2) for i in range(3) for j in range(i)]
    assert angle.value == pytest.approx(max(cosines))
    assert (head.side, raw.side, head.n, head.data) == (">=", ">=", 4, "d")
    assert abs(np.median(own) - np.median(both)) > 1e-3
    # the rates themselves have rotated subspaces alone
    for quantity, part in ((BEFORE, before), (AFTER, after)):
        row = found.select(quantity=quantity).one()
        assert row.value == pytest.approx(mean_rate(centred_units(part), U))
        (null,) = row.nulls
        assert null.draws == pytest.approx([mean_rate(centred_units(part), frame) for frame in frames])


def test_rotations_of_updates_are_uniform_among_those_that_fix_the_mean():
    drawn = update_rotations(5, 400).numpy()
    ones = np.ones(5) / math.sqrt(5)
    assert drawn @ ones == pytest.approx(np.broadcast_to(ones, (400, 5)), abs=1e-9)
    # in the four dimensions orthogonal to the ones: mean 0, and entries of variance 1/4
    basis = np.linalg.svd(ones[None])[2][1:]
    rest = basis @ drawn @ basis.T
    assert rest.mean(0) == pytest.approx(np.zeros((4, 4)), abs=5 / math.sqrt(4 * 400))
    assert (rest**2).mean(0) == pytest.approx(np.full((4, 4), 0.25), abs=0.08)


def test_an_exact_step_its_guarantee_and_its_code():
    """The gradient in closed form; 40 steps of ISTA, and a closed form for random dictionaries."""
    rng, U = np.random.default_rng(2), bases(3, 8, 2, 3)
    Z = rng.standard_t(4, size=(6, 5, 8)) * np.linspace(1, 0.2, 8)
    L = largest_slope(U, 5)
    after = np.stack([z - gradient(z, U) / L for z in Z])
    rows = {
        row.quantity: row
        for row in given_tokens.exact_rows(torch.from_numpy(Z), torch.from_numpy(U), data="d")
    }
    assert rows[COMPRESSION].value == pytest.approx(fall(Z, after, U))
    kept = rows[given_tokens.LENGTHS_KEPT]
    first = mean_rate(Z, U)
    assert kept.value == pytest.approx(1 - mean_rate(after, U) / first)
    guaranteed = np.mean([(gradient(z, U) ** 2).sum() for z in Z]) / (2 * L * first)
    assert kept.threshold == pytest.approx(guaranteed)
    assert (kept.op, kept.verdict, kept.n) == (">=", "consistent", 6)
    flat = units(after.reshape(-1, 8))
    code = rows[NONZEROS]
    assert code.value == pytest.approx((ista(flat, U)[-1] != 0).mean())
    frames = [null_subspaces(3, 8, 2, seed=seed).numpy() for seed in range(199)]
    expected = [share_of_orthonormal(flat, frame) for frame in frames]
    assert code.null.draws == pytest.approx(expected)
    assert (code.threshold, code.op, code.side, code.n) == (0.5 / 3, "<=", "<=", 30)
    assert len(rows[COMPRESSION].null.draws) == 399


def test_some_tokens_are_coded_which_are_the_same_in_every_call(monkeypatch):
    monkeypatch.setattr(given_tokens, "CODED", 20)
    monkeypatch.setattr(given_tokens, "HEADLINE_DRAWS", 3)
    rng, U = np.random.default_rng(2), bases(3, 8, 2, 3)
    Z = rng.standard_t(4, size=(6, 5, 8)) * np.linspace(1, 0.2, 8)
    rows = given_tokens.step_rows(
        torch.from_numpy(Z), torch.from_numpy(U), lambda tokens: tokens / 2, data="d"
    )
    (code,) = (row for row in rows if row.quantity == NONZEROS)
    flat = units(Z.reshape(-1, 8))[torch.randperm(30, generator=fixed_generator())[:20].numpy()]
    assert code.n == 20
    assert code.value == pytest.approx((ista(flat, U)[-1] != 0).mean())
    expected = [share_of_orthonormal(flat, null_subspaces(3, 8, 2, seed=seed).numpy()) for seed in range(3)]
    assert code.null.draws == pytest.approx(expected)


def test_whole_digits_are_tokens_without_the_mean_image():
    """The mean of the training images; sequences of seventeen in random order, of mean square norm one."""
    train, validation = (part.images.flatten(1).double().numpy() for part in networks.digit_parts())
    first, second = (each.numpy() for each in given_tokens.whole_digits(generator(3)))
    assert (first.shape, second.shape) == ((73, 17, 64), (31, 17, 64))
    assert (second**2).sum(-1).mean() == pytest.approx(1)
    size = math.sqrt(((validation - train.mean(0)) ** 2).sum(1).mean())
    for tokens, images in ((first, train), (second, validation)):
        centred = images - train.mean(0)
        scale = tokens[0, 0] @ tokens[0, 0]
        nearest = min(abs((each @ each) / scale - size**2) for each in centred)
        assert nearest < 0.02 * size**2
        gram = (tokens.reshape(-1, 64) * size) @ centred.T
        norms = (centred**2).sum(1)
        distance = norms - 2 * gram + ((tokens.reshape(-1, 64) * size) ** 2).sum(1)[:, None]
        assert distance.min(1).max() < 0.02 * norms.mean()
        chosen = distance.argmin(1)
        assert len(set(chosen.tolist())) > 0.99 * len(chosen)
        assert np.abs(np.diff(chosen)).mean() > len(images) / 5, "the order is random"


def ista(z: np.ndarray, U: np.ndarray, steps: int = 40) -> list[np.ndarray]:
    """Codes in [U, -U] from zero, with the step 1/|D|^2 and the price .1."""
    D = np.concatenate([*U, *(-u for u in U)], 1)
    L, a = np.linalg.norm(D, 2) ** 2, np.zeros((len(z), D.shape[1]))
    found = [a]
    for _ in range(steps):
        a = np.maximum(a + (z - a @ D.T) @ D / L - 0.1 / L, 0)
        found.append(a)
    return found


def share_of_orthonormal(z: np.ndarray, frame: np.ndarray) -> float:
    """Of the 2 K p coefficients those with |u^T z| > .1 are not zero, one for each direction."""
    w = z @ np.concatenate(list(frame), 1)
    return float((np.abs(w) > 0.1).mean() / 2)


def test_random_dictionaries_are_orthonormal():
    frames = np.stack(
        [np.concatenate(list(null_subspaces(2, 6, 3, seed=seed).numpy()), 1) for seed in range(300)]
    )
    assert frames.transpose(0, 2, 1) @ frames == pytest.approx(
        np.broadcast_to(np.eye(6), (300, 6, 6)), abs=1e-9
    )
    assert (frames[:, 0] ** 2).mean(0) == pytest.approx(np.full(6, 1 / 6), abs=0.06)


# ---- on data


@pytest.fixture(scope="module")
def measured():
    """Twelve sequences of six tokens in eight dimensions: rows, arrays, tokens, subspaces and gradients."""
    rng = np.random.default_rng(4)
    planes = np.linalg.qr(rng.normal(size=(8, 8)))[0]
    coefficients = rng.standard_t(4, size=(12, 6, 2)) * [1.0, 0.6]
    which = rng.integers(4, size=(12, 6))
    x = np.einsum("ntp,ntpd->ntd", coefficients, planes.reshape(4, 2, 8)[which]) + 0.08 * rng.normal(
        size=(12, 6, 8)
    )
    data = TokenData(tokens=torch.from_numpy(7 * x))
    table, arrays = [], {}
    for each in on_data.measure(on_data.read(data), generator(5), draws=1199):
        if hasattr(each, "quantity"):
            table.append(each)
        else:
            arrays |= each
    Z = x / math.sqrt((x**2).sum(-1).mean())  # mean square of the norms
    tokens = torch.from_numpy(7 * x)
    tokens = tokens / tokens.abs().max()
    tokens = tokens / tokens.square().sum(-1).mean().sqrt()
    U, _ = fit_subspaces(tokens.flatten(0, 1), K=4, p=2, generator=generator(5), rounds=15)
    return {(row.quantity, row.setting): row for row in table}, arrays, Z, U.numpy()


def unrolled(Z: np.ndarray, U: np.ndarray, kappa: float, along: np.ndarray | None = None) -> list[np.ndarray]:
    along = U if along is None else along
    states = [Z]
    for _ in range(6):
        states.append(np.stack([z - kappa * gradient(z, along) for z in states[-1]]))
    return states


def test_what_exact_steps_leave_and_their_guarantee(measured):
    rows, arrays, Z, U = measured
    L = largest_slope(U, 6)
    states = unrolled(Z, U, 1 / L)
    first, last = mean_rate(Z, U), mean_rate(states[-1], U)
    unit = mean_rate(units(states[-1]), U) / mean_rate(units(Z), U)
    assert rows[on_data.LEFT, ""].value == pytest.approx(unit)
    kept = rows[on_data.LEFT_LENGTHS_KEPT, ""]
    assert kept.value == pytest.approx(last / first)
    squares = [np.mean([(gradient(z, U) ** 2).sum() for z in state]) for state in states[:-1]]
    bound = first - np.concatenate([[0], np.cumsum(squares)]) / (2 * L)
    assert kept.threshold == pytest.approx(bound[-1] / first, abs=1e-8)
    assert kept.op == "<="
    assert kept.value < kept.threshold < 1
    assert arrays["crate/rate/guaranteed"] == pytest.approx(bound)
    assert arrays["crate/rate/exact"] == pytest.approx([mean_rate(state, U) for state in states])
    assert arrays["crate/shape/exact"] == pytest.approx([mean_rate(units(state), U) for state in states])
    null = []
    for seed in range(19):
        end = unrolled(Z, U, 1 / L, null_subspaces(4, 8, 2, seed=seed).numpy())[-1]
        null.append((mean_rate(end, U) / first, mean_rate(units(end), U) / mean_rate(units(Z), U)))
    assert kept.null.draws == pytest.approx([a for a, _ in null])
    assert rows[on_data.LEFT, ""].null.draws == pytest.approx([b for _, b in null])
    for row in (kept, rows[on_data.LEFT, ""]):
        assert (row.side, row.n, row.scope) == ("<=", 12, "any data")


def softmax(s: np.ndarray) -> np.ndarray:
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_changes_of_the_rate_in_other_forms_of_the_step(measured):
    """The paper's step with kappa beta = 1/2; the residual form adds what it should subtract."""
    rows, _, Z, U = measured
    beta, first = 2 / (6 * 0.25), mean_rate(Z, U)

    def mssa(z: np.ndarray, scale: float) -> np.ndarray:
        return sum(softmax(scale * (z @ u) @ (z @ u).T) @ (z @ u) @ u.T for u in U)

    for quantity, form, step, extreme in (
        (on_data.LARGEST_CHANGE, "paper", lambda z: 0.5 * z + 0.5 * beta * mssa(z, 1.0), max),
        (on_data.SMALLEST_CHANGE, "tied residual", lambda z: z + 0.5 * mssa(z, 1 / math.sqrt(2)), min),
    ):
        states = [Z]
        for _ in range(6):
            states.append(np.stack([step(z) for z in states[-1]]))
        changes = np.diff([mean_rate(state, U) for state in states]) / first
        row = rows[quantity, form]
        assert row.value == pytest.approx(extreme(changes))
        assert (row.threshold, row.op, row.n) == (0.0, "<=" if extreme is max else ">=", 12)


def test_codes_of_the_tokens_before_and_after(measured):
    rows, arrays, Z, U = measured
    L = largest_slope(U, 6)
    states = [units(state.reshape(-1, 8)) for state in unrolled(Z, U, 1 / L)]
    shares = [(ista(state, U)[-1] != 0).mean() for state in states]
    code, change = rows[on_data.CODE_NONZEROS, ""], rows[on_data.NONZEROS_CHANGE, ""]
    assert code.value == pytest.approx(shares[0])
    assert change.value == pytest.approx(shares[-1] - shares[0])
    frames = [null_subspaces(4, 8, 2, seed=seed).numpy() for seed in range(19)]
    ends = [[share_of_orthonormal(states[end], frame) for frame in frames] for end in (0, -1)]
    assert code.null.draws == pytest.approx(ends[0])
    assert change.null.draws == pytest.approx(np.subtract(ends[1], ends[0]).tolist(), abs=1e-6)
    assert (code.threshold, code.op, code.side, code.n) == (1 / 8, "<=", "<=", 72)
    assert (change.threshold, change.op, change.side) == (0.0, "<=", "<=")
    assert arrays["crate/nonzeros"] == pytest.approx(shares)
    D = np.concatenate([*U, *(-u for u in U)], 1)
    size, ratios = np.linalg.norm(D, 2) ** 2, []
    for state in states:
        codes = ista(state, U)
        objective = [(0.5 * ((state - a @ D.T) ** 2).sum() + 0.1 * a.sum()) / 72 for a in codes]
        for step in range(40):
            guaranteed = 0.5 * size * ((codes[step + 1] - codes[step]) ** 2).sum() / 72
            if guaranteed > 1e-8 * objective[0]:
                ratios.append((objective[step + 1] - objective[step]) / guaranteed)
        if state is states[0]:
            assert arrays["crate/objective"] == pytest.approx(objective)
    lasso = rows[on_data.LASSO_DECREASE, ""]
    assert lasso.value == pytest.approx(max(ratios))
    assert lasso.value <= lasso.threshold == -1 + 1e-4


def test_the_assumptions_of_these_tokens(measured):
    rows, _, Z, U = measured
    energy = np.stack([((Z @ u) ** 2).sum(-1) for u in U]).max(0).sum() / (Z**2).sum()
    cosines = max(np.linalg.norm(U[i].T @ U[j], 2) for i in range(4) for j in range(i))
    incomplete = np.linalg.norm(sum(u @ u.T for u in U) - np.eye(8), 2)
    radius = max(2 / (6 * 0.25) * np.linalg.norm(z @ u, 2) ** 2 for z in Z for u in U)
    for quantity, value, op, threshold in (
        ("tokens lie in one of the subspaces", energy, ">=", 0.95),
        ("subspaces are incoherent", cosines, "<=", 0.1),
        ("projections add up to the identity", incomplete, "<=", 0.1),
        ("the Neumann series behind attention converges", radius, "<=", 1.0),
    ):
        row = rows[quantity, ""]
        assert row.value == pytest.approx(value)
        assert (row.op, row.threshold) == (op, threshold)
        assert row.verdict == (
            "holds" if (value >= threshold if op == ">=" else value <= threshold) else "fails"
        )


# ---- the rungs


def test_steps_of_the_rungs(monkeypatch):
    """kappa and eps: 1/L of the fitted subspaces, or those of a network's block."""
    seen = []
    monkeypatch.setattr(given_tokens, "step_rows", lambda *arguments, **_: seen.append(arguments) or ())
    for name in (
        "exact steps",
        "fitted subspaces",
        "digits",
        "paper's step",
        "embedded patches",
        "network's scale",
    ):
        list(RUNGS[name].measure(generator(6)))
    functions = [step.func for _, _, step in seen]
    assert functions == [crate.exact_step] * 3 + [crate.paper_step] * 3
    for number, (tokens, U, step) in enumerate(seen):
        assert tokens.shape[1:] == (17, 64)
        assert U.shape == (4, 64, 16)
        assert torch.equal(step.keywords["bases"], U)
        if number < 5:
            assert step.keywords["kappa"] == pytest.approx(1 / largest_slope(U.numpy(), 17))
            assert step.keywords["eps"] == 0.5
            assert float(tokens.square().sum(-1).mean()) == pytest.approx(1, rel=0.1)
    block = PaperAttention(64, heads=4, head_dim=16)
    assert (seen[5][2].keywords["kappa"], seen[5][2].keywords["eps"]) == (block.kappa, block.eps)
    assert float(seen[5][0].square().sum(-1).mean()) != pytest.approx(1, rel=0.1)
    # the true subspaces hold all but the noise of the mixture; fitted ones nearly as much of other tokens
    (tokens, true, _), (others, fitted, _) = seen[:2]
    assert torch.equal(tokens, others)
    shares = [
        float(
            np.max([((others.numpy() @ u) ** 2).sum(-1) for u in U.numpy()], 0).sum()
            / (others.numpy() ** 2).sum()
        )
        for U in (true, fitted)
    ]
    assert shares[0] > shares[1] > 0.9
    assert not torch.allclose(true, fitted)


def small_data(n: int = 40, seed: int = 7) -> TokenData:
    rng = np.random.default_rng(seed)
    x, y = rng.standard_t(4, size=(n, 16, 4)), rng.integers(10, size=n)
    return TokenData(tokens=torch.from_numpy(x), labels=torch.from_numpy(y), name="own")


def deep() -> CRATE:
    return CRATE.for_tokens(16, 4, 10, dim=24, depth=2, heads=3)


def nonzero_share(model: torch.nn.Module, data: TokenData) -> float:
    """The mean over layers of the share of entries that are not zero after each layer."""
    found: list[float] = []
    handles = [
        layer.register_forward_hook(lambda m, i, out: found.append(float((out != 0).double().mean())))
        for layer in model.transformer.layers
    ]
    with torch.no_grad():
        model.eval()(data.tokens.float())
    for handle in handles:
        handle.remove()
    return float(np.mean(found))


def test_the_rows_of_a_network(monkeypatch):
    """Two layers; non-zeros beside copies and untrained networks; accuracy on all of the data."""
    monkeypatch.setattr(networks, "SAMPLES", 30)
    data = small_data()
    model = build(deep, generator(8)).eval()
    with torch.no_grad():
        model.transformer.layers[0][1].fn.weight.mul_(1.5)
    rows = {row.quantity: row for row in networks.network_rows(model, deep, data, name="N")}
    code = rows[NONZEROS]
    some = data[:30]
    assert code.value == pytest.approx(nonzero_share(model, some))
    copies, untrained = code.nulls
    drawn = Copies(model)
    expected = [nonzero_share(drawn.draw("equal scale", index), some) for index in range(39)]
    assert copies.draws == pytest.approx(expected)
    g = fixed_generator()
    assert untrained.draws == pytest.approx([nonzero_share(build(deep, g), some) for _ in range(19)])
    assert (copies.kind, untrained.kind, code.side, code.n) == ("equal scale", "untrained networks", "<=", 30)
    with torch.no_grad():
        right = (model(data.tokens.float()).argmax(-1) == data.labels).double().mean()
    assert rows[ACCURACY].value == pytest.approx(float(right))
    assert rows[ACCURACY].n == 40
    assert {row.model for row in rows.values()} == {"N"}
    assert rows[LADDER.quantity].value == pytest.approx(
        rows[COMPRESSION].value - np.median(rows[COMPRESSION].null.draws)
    )
    # both layers have the same weight
    angles = []
    for layer in model.transformer.layers:
        U = np.linalg.qr(layer[0].fn.subspaces().detach().double().numpy())[0]
        angles.append(max(np.linalg.norm(U[i].T @ U[j], 2) for i in range(3) for j in range(i)))
    assert rows[INCOHERENCE].value == pytest.approx(np.mean(angles), rel=1e-4)


@pytest.mark.parametrize("training", [networks.descend, networks.adamw])
def test_held_out_labels_change_no_training(monkeypatch, training):
    monkeypatch.setattr(networks, "DESCENT_STEPS", 2)
    monkeypatch.setattr(networks, "ADAMW_STEPS", 2)
    monkeypatch.setattr(networks, "IMAGES", 30)
    train, validation = small_data(50, 1), small_data(20, 2)
    others = TokenData(tokens=validation.tokens, labels=(validation.labels + 1) % 10)
    changed = train.labels.clone()
    changed[30:] = (changed[30:] + 1) % 10  # not among the images of the descent
    variants = (
        (train, validation),
        (train, others),
        (TokenData(tokens=train.tokens, labels=changed), validation),
    )
    weights = []
    for first, second in variants:
        model = build(partial(networks.small_crate, attention=PaperAttention), generator(9))
        before = [p.detach().clone() for p in model.parameters()]
        training(model, first, second, generator(10))
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
        assert not torch.equal(weights[-1], torch.cat([p.flatten() for p in before]))
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], weights[2]) == (training is networks.descend)


def test_the_rungs_build_what_their_names_say():
    expected = {
        "trained end to end": (CRATE, PaperAttention, False, 1, networks.descend),
        "AdamW": (CRATE, PaperAttention, False, 1, networks.adamw),
        "LayerNorm": (CRATE, PaperAttention, True, 1, networks.adamw),
        "released form": (CRATE, ReleasedAttention, True, 1, networks.adamw),
        "MLP": (CRATE, ReleasedAttention, True, 1, networks.adamw),
    }
    for name, (kind, attention, norms, depth, training) in expected.items():
        columns = RUNGS[name].measure.keywords
        model = build(columns["constructor"], generator())
        layers = model.transformer.layers
        assert (type(model), len(layers)) == (kind, depth)
        assert isinstance(layers[0][0].fn, attention)
        assert isinstance(layers[0][0].norm, torch.nn.LayerNorm) == norms
        assert isinstance(layers[0][1].norm, torch.nn.LayerNorm) == norms
        assert isinstance(layers[0][1].fn, Mlp) == (name == "MLP")
        assert columns.get("training", networks.adamw) is training
    for name, depth in (("ViT block", 1), ("four layers", 4)):
        model = build(RUNGS[name].measure.keywords["constructor"], generator())
        assert (len(model.blocks), model.blocks[0].attention.heads) == (depth, 4)
    assert RUNGS["ViT block"].measure.keywords["constructor"] is small_vit


def test_a_network_of_a_comparison_is_compared_with_untrained_ones_of_its_recipe(monkeypatch):
    data, seen = small_data(), []
    model = build(deep, generator(8))
    monkeypatch.setattr(
        networks,
        "trained_network",
        lambda recipe, seed, images: (seen.append((recipe, seed, images)), (model, data))[1],
    )
    monkeypatch.setattr(
        networks, "network_rows", lambda one, constructor, on, name: iter([(one, constructor, on, name)])
    )
    ((one, constructor, on, name),) = RUNGS["CRATE on digits"].measure(generator(11))
    assert seen == [("CRATE (released form)", 11, None)]
    assert one is model
    assert on is data
    assert name == "CRATE (released form)"
    fresh = build(constructor, generator())
    assert isinstance(fresh, CRATE)
    assert fresh(data.tokens.float()).shape == (40, 10)


def test_derived_layers_are_trained_as_the_recipes_are_or_by_descent(monkeypatch):
    """AdamW: 300 steps at the rate .003; descent: 120 steps with momentum on the first 512 images."""
    asked = []
    monkeypatch.setattr(networks, "train_classifier", lambda *parts, **o: asked.append((parts, o)))
    monkeypatch.setattr(networks, "fit", lambda *parts, **o: asked.append((parts, o)))
    monkeypatch.setattr(networks, "Classification", lambda *parts: parts)
    train, validation, g = small_data(600, 1), small_data(20, 2), generator(10)
    model = torch.nn.Linear(2, 2)
    networks.adamw(model, train, validation, g)
    networks.descend(model, train, validation, g)
    (first, settings), (second, others) = asked
    assert first == (model, train, validation)
    assert settings == {"steps": 300, "learning_rate": 3e-3, "generator": g}
    _, (images, held, batch) = second
    assert torch.equal(images.tokens, train.tokens[:512])
    assert held is validation
    assert batch == 512
    optimiser = others.pop("optimiser")
    assert others == {"steps": 120, "clip": 1.0, "generator": g}
    group = optimiser.param_groups[0]
    assert isinstance(optimiser, torch.optim.SGD)
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.1, 0.9, 0)


def test_sampled_tokens_that_are_all_zero_give_a_row_of_the_same_side(monkeypatch):
    """Only the last of the sequences has a token that is not zero, and it is not drawn."""
    monkeypatch.setattr(on_data, "MAX_SEQUENCES", 3)
    monkeypatch.setattr(on_data, "MIN_SEQUENCES", 3)
    drawn = set(torch.randperm(40, generator=torch.Generator().manual_seed(4_019_217_653))[:3].tolist())
    left = next(i for i in range(40) if i not in drawn)
    tokens = torch.zeros(40, 2, 5, dtype=torch.float64)
    tokens[left, 1] = 1.0
    (row,) = on_data.measure(on_data.read(TokenData(tokens=tokens)), generator(), draws=5)
    assert (row.quantity, row.value, row.side, row.unit) == (on_data.LEFT, None, "<=", "share")
    assert "zero" in row.reason
    tokens[min(drawn), 0, 2] = 1.0
    rows = list(on_data.measure(on_data.read(TokenData(tokens=tokens)), generator(), draws=5))
    (row,) = (each for each in rows if getattr(each, "quantity", "") == on_data.LEFT)
    assert row.value is not None
    assert row.side == "<="


def test_rows_on_data_say_what_would_contradict_and_from_how_many_sequences(measured):
    rows, *_ = measured
    expected = {
        (on_data.LEFT, ""): ("<=", "<=", 12, 1.0, "share"),
        (on_data.LEFT_LENGTHS_KEPT, ""): ("<=", "<=", 12, None, "share"),
        (on_data.LARGEST_CHANGE, "paper"): ("<=", None, 12, 0.0, ""),
        (on_data.SMALLEST_CHANGE, "tied residual"): (">=", None, 12, 0.0, ""),
        (on_data.CODE_NONZEROS, ""): ("<=", "<=", 72, 1 / 8, "share"),
        (on_data.NONZEROS_CHANGE, ""): ("<=", "<=", 72, 0.0, ""),
        (on_data.LASSO_DECREASE, ""): ("<=", None, 72, -1 + 1e-4, ""),
    }
    found = {key: row for key, row in rows.items() if row.kind == "on data"}
    assert found.keys() == expected.keys()
    for key, (op, side, n, threshold, unit) in expected.items():
        row = found[key]
        assert (row.op, row.side, row.n, row.unit, row.scope) == (op, side, n, unit, "any data"), key
        assert threshold is None or row.threshold == pytest.approx(threshold), key
        assert row.predicted is None
    assert rows[on_data.NONZEROS_CHANGE, ""].bounds == (-1.0, 1.0)
