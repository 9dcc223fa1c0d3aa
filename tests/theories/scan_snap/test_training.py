"""Training in count form against autograd and torch's optimisers, its sampled sequences, and the paper's
experiments.
"""

import numpy as np
import pytest
import torch
from scipy.stats import binom, chi2, multinomial
from torch.testing import assert_close

from tests.cases import each_case
from tests.problems.scan_snap import explicit_loss
from transformer_theory.core import figure
from transformer_theory.core.errors import NotConverged
from transformer_theory.theories.scan_snap import (
    Adam,
    HeavyBall,
    SequenceClasses,
    Weights,
    forward,
    gradient_descent,
    sampled,
    synthetic,
)
from transformer_theory.theories.scan_snap.dynamics import Batch, Layout, State, load, save
from transformer_theory.theories.scan_snap.figures.long_sequences import long_sequences
from transformer_theory.theories.scan_snap.figures.recall import share_above
from transformer_theory.theories.scan_snap.figures.syn_medium import (
    DISTINCT_ENTROPY,
    distinct_entropy,
    entropies,
    syn_medium,
)
from transformer_theory.theories.scan_snap.multinomial import BITS, UNDECIDED, Multinomial
from transformer_theory.theories.scan_snap.published import ENTROPY, ENTROPY_SD, ETA_Z, LOSS, RATIOS


def uneven() -> SequenceClasses:
    """Five classes of two queries whose tokens stand in no order: two shared by some, none to three
    own ones.
    """
    weights = torch.zeros(5, 9, dtype=torch.float64)
    for n, tokens in enumerate(([4, 0, 8], [4, 2, 6, 7], [1, 4], [1, 4, 3], [1, 5])):
        weights[n, tokens] = torch.arange(1.0, 1 + len(tokens), dtype=torch.float64)
    share = torch.tensor([0.1, 0.3, 0.2, 0.25, 0.15], dtype=torch.float64)
    return SequenceClasses(weights / weights.sum(1, keepdim=True), torch.tensor([0, 1, 1, 0, 1]), 20, share)


def start_of(classes: SequenceClasses, kind: str, seeds: list[int]) -> Weights:
    if kind == "random":
        return Weights.random(classes, seeds=seeds)
    return Weights.zeros(
        classes.tokens, classes.queries, classes.classes, classes.vocab_size, runs=(len(seeds),)
    )


def syn_small(**setting):
    classes = synthetic(2)
    length, seeds = setting.pop("length", 128), setting.pop("seeds", [0])
    batches = sampled(classes, 128, context=length - 1, seeds=seeds)
    return gradient_descent(start_of(classes, "zero", seeds), batches, eta_y=1.0, eta_z=1.0, **setting)


@pytest.mark.parametrize("optimiser", [HeavyBall(), HeavyBall(0.9), Adam()])
def test_results_of_training_can_be_differentiated(optimiser):
    """Tensors made in torch's inference mode, in which the steps are taken, could not be differentiated."""
    path = syn_small(steps=3, keep=[1], optimiser=optimiser)
    end = path.end
    for part in (
        path.attention,
        path.loss,
        end.weights.decoder,
        end.weights.attention,
        *end.decoder,
        *end.attention,
    ):
        (part * torch.ones((), requires_grad=True)).sum().backward()


@each_case("kind", ["zero", "random"])
@each_case(
    "classes",
    [synthetic(2), synthetic(6, per_query=2, common=2, distinct=3), uneven()],
    ids=["few", "many", "uneven"],
)
def test_grouped_directions_agree_with_autograd(classes: SequenceClasses, kind: str):
    seeds, K, M = [3, 4], classes.classes, classes.vocab_size
    batches = sampled(classes, 24, context=15, seeds=seeds)
    # away from the start
    weights = gradient_descent(start_of(classes, kind, seeds), batches, steps=5, eta_y=1.0, eta_z=2.0).final
    batch = batches(5)
    found, counts = batch.descent(weights), batch.dense()
    same = forward(weights, Batch(counts, classes.query[batch.target], batch.target))
    for name in ("loss", "decoder", "attention"):
        assert_close(getattr(found, name), getattr(same, name), rtol=1e-11, atol=1e-15)
    for run in range(2):
        ids = (
            torch.arange(classes.tokens)
            .expand(24, -1)
            .flatten()
            .repeat_interleave(counts[run].long().flatten())
            .view(24, 15)
        )
        Y = weights.decoder[run]
        Y = torch.cat([Y, Y[:, -1:].expand(-1, M - Y.shape[1])], 1)
        leaves = Y.clone().requires_grad_(), weights.attention[run].clone().requires_grad_()
        n = batch.target[run]
        dY, dZ = torch.autograd.grad(explicit_loss(*leaves, ids, classes.query[n], n), leaves)
        assert_close(found.decoder[run], -dY[:, : found.decoder.shape[-1]], rtol=1e-10, atol=1e-14)
        assert_close(found.attention[run], -dZ, rtol=1e-10, atol=1e-14)
    assert found.decoder.shape[-1] == (M if kind == "random" else K + 1)


@each_case("dtype", [torch.float32, torch.float64])
@each_case("spread", [80.0, 370.0, 2000.0])
@each_case("classes", [synthetic(2, common=4, distinct=6), synthetic(6, per_query=2, common=2, distinct=3)])
def test_sequences_without_the_token_that_has_all_attention(
    classes: SequenceClasses, spread: float, dtype: torch.dtype
):
    batch = sampled(classes, 24, context=10, seeds=[3])(0)
    weights = Weights.random(classes, seeds=[5], dtype=dtype)
    scale = spread / float(weights.attention.amax() - weights.attention.amin())
    weights = Weights(weights.decoder, scale * weights.attention, 0)
    found, counts = batch.descent(weights), batch.dense().to(dtype)
    same = forward(weights, Batch(counts, classes.query[batch.target], batch.target))
    for name in ("loss", "decoder", "attention"):
        assert bool(getattr(found, name).isfinite().all())
        assert_close(getattr(found, name), getattr(same, name), rtol=1e-3, atol=1e-5)


def test_training_continues_where_the_exponential_underflows():
    classes = synthetic(2, common=4, distinct=6)
    batches = sampled(classes, 128, context=10, seeds=[0])
    path = gradient_descent(start_of(classes, "zero", [0]), batches, steps=60, eta_y=10.0, eta_z=1e4)
    assert float(path.attention[-1].amax() - path.attention[-1].amin()) > 745


def test_the_layout_keeps_every_token():
    layout, classes = Layout.of(uneven()), uneven()
    assert (layout.shared, layout.width) == (2, 3)
    assert not layout.natural
    assert layout.order[layout.place].tolist() == list(range(9))
    assert_close(layout.conditional.sum(1), torch.ones(5, dtype=torch.float64))
    assert torch.equal(layout.conditional[:, :2], classes.conditional[:, [1, 4]])
    assert Layout.of(synthetic(6, per_query=2)).natural


def test_sampled_counts_are_multinomial():
    classes = uneven()
    batches = sampled(classes, 4000, context=4, seeds=[11])
    drawn = [batches(step) for step in range(6)]
    n = torch.cat([batch.target[0] for batch in drawn])
    x = torch.cat([batch.dense()[0] for batch in drawn])
    assert bool((x.sum(1) == 4).all())
    assert_close(torch.bincount(n) / len(n), classes.weights, rtol=0, atol=0.01, check_dtype=False)
    assert bool((x[classes.conditional[n] == 0] == 0).all())
    own = x[n == 1].numpy()
    for counts in ([4, 0, 0, 0], [1, 1, 1, 1], [0, 1, 1, 2], [0, 0, 2, 2]):  # of tokens 4, 2, 6, 7
        chance = float(multinomial.pmf(counts, 4, [0.1, 0.2, 0.3, 0.4]))
        seen = float((own[:, [4, 2, 6, 7]] == counts).all(1).mean())
        assert seen == pytest.approx(chance, abs=4 * (chance / len(own)) ** 0.5)


@each_case("context", [1, 7, 127, 1000])
def test_counts_by_halving_have_the_multinomial_law(context: int):
    P = np.array([[0.1, 0.2, 0.05, 0.25, 0.4, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.3, 0.0, 0.7]])
    drawn = Multinomial(P, context).draw(np.repeat([0, 1], 40_000), np.random.default_rng(0))
    assert (drawn.sum(1) == context).all()
    assert (drawn[np.repeat(P == 0, 40_000, axis=0)] == 0).all()
    for own, p in zip(np.split(drawn, 2), P):
        for kind in np.nonzero(p)[0]:  # each count is binomial
            k = np.arange(context + 1)
            pmf = binom.pmf(k, context, p[kind])
            seen, likely = np.bincount(own[:, kind], minlength=context + 1), pmf * len(own) >= 10
            rest = max(1 - pmf[likely].sum(), 0) * len(own)
            statistic = ((seen[likely] - pmf[likely] * len(own)) ** 2 / (pmf[likely] * len(own))).sum()
            assert seen[~likely].sum() <= rest + 6 * rest**0.5 + 6
            assert chi2.sf(statistic, max(1, likely.sum() - 1)) > 1e-4
        expected = context * (np.diag(p) - np.outer(p, p))
        assert np.abs(np.cov(own.T) - expected).max() < 0.035 * context + 1e-9


def test_the_guide_table_agrees_with_the_distribution_function():
    source = Multinomial(np.array([[0.3, 0.7]]), 20)
    source.draw(np.zeros(1, dtype=int), np.random.default_rng(0))
    cells = 2**BITS
    named = source.guide.reshape(len(source.p), 21, cells)[int(np.searchsorted(source.p, 0.3)), 20]
    exact = binom.ppf(np.array([np.arange(cells) + 1e-9, np.arange(1, cells + 1) - 1e-9]) / cells, 20, 0.3)
    decided = named != UNDECIDED
    assert (exact[:, decided] == named[decided]).all()
    assert (exact[0] != exact[1])[~decided].all()


def test_tables_are_computed_when_needed():
    few = sampled(synthetic(2), 8, context=10**6, seeds=[0])
    assert few(0).counts.sum() == 8 * 10**6
    P = synthetic(2).conditional.numpy()
    long, short = Multinomial(P, 10**6), Multinomial(P, 127)
    for source in (long, short):
        assert not source.tabled.any()
        assert not len(source.cdf)
        source.draw(np.zeros(4, dtype=int), np.random.default_rng(0))
    assert not long.tabled.any()
    assert not len(long.cdf)
    assert 0 < short.tabled.mean() < 0.7


def test_draws_do_not_depend_on_the_tables_that_exist():
    """Tables are extended as larger and smaller numbers occur; the same generator gives the same counts
    before and after.
    """
    P = np.array([[0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1]])
    warm = Multinomial(P, 60)
    for seed in range(5):
        warm.draw(np.repeat([0, 1], 200), np.random.default_rng(100 + seed))
    for seed in range(3):
        rows = np.repeat([0, 1], 50)
        expected = warm.draw(rows, np.random.default_rng(seed))
        assert (Multinomial(P, 60).draw(rows, np.random.default_rng(seed)) == expected).all()


@pytest.mark.parametrize("context", [1, 60, 254])
def test_distribution_functions_are_binomial(context: int):
    source = Multinomial(np.array([[0.3, 0.7], [1e-9, 1 - 1e-9], [1.0, 0.0], [0.0, 1.0]]), context)
    source.draw(np.arange(4), np.random.default_rng(0))
    n, k = np.arange(context + 1)[:, None], np.arange(context + 1)
    for p, F in zip(source.p, source.cdf):
        assert np.abs(F - np.where(k >= n, 1.0, binom.cdf(k, n, p))).max() < 1e-12


def test_a_run_does_not_depend_on_the_other_runs():
    classes = synthetic(6, per_query=2, common=3, distinct=4)
    rates = torch.tensor([0.5, 1.0, 2.0, 1.0], dtype=torch.float64)
    seeds = [7, 8, 7, 9]

    def train(chosen: list[int]):
        few = [seeds[i] for i in chosen]
        setting = {
            "steps": 40,
            "eta_y": 2 * rates[chosen],
            "eta_z": rates[chosen],
            "optimiser": HeavyBall(0.9),
        }
        return gradient_descent(
            Weights.random(classes, seeds=few), sampled(classes, 20, context=50, seeds=few), **setting
        )

    together = train([0, 1, 2, 3])
    for i in range(4):
        alone = train([i])
        assert_close(together.loss[:, i], alone.loss[:, 0], rtol=1e-9, atol=0)
        assert_close(together.attention[:, i], alone.attention[:, 0], rtol=1e-9, atol=1e-12)
    # one seed, two rates
    assert float((together.attention[-1, 0] - together.attention[-1, 2]).abs().max()) > 0.1


@pytest.mark.parametrize("seeds", [[7, 3], [7, 3, 9], [3, 7, 3]])
def test_every_run_gets_the_sequences_of_its_own_seed(seeds: list[int]):
    together = sampled(synthetic(2), 8, context=20, seeds=seeds)(1)
    for run, seed in enumerate(seeds):
        alone = sampled(synthetic(2), 8, context=20, seeds=[seed])(1)
        assert torch.equal(together.counts[run], alone.counts[0])
        assert torch.equal(together.target[run], alone.target[0])


@pytest.mark.parametrize("optimiser", [HeavyBall(), HeavyBall(0.9), Adam()])
def test_a_run_resumes_bit_for_bit(optimiser, tmp_path):
    classes = synthetic(2, common=2, distinct=3)
    batches = sampled(classes, 9, context=12, seeds=[1, 2])
    setting = {"eta_y": 0.5, "eta_z": 0.5, "optimiser": optimiser}
    whole = gradient_descent(
        Weights.random(classes, seeds=[1, 2]), batches, steps=50, keep=(25, 40), **setting
    )
    half = gradient_descent(Weights.random(classes, seeds=[1, 2]), batches, steps=23, **setting)
    save(half.end, tmp_path / "state.npz")
    fresh = sampled(classes, 9, context=12, seeds=[1, 2])
    rest = gradient_descent(load(tmp_path / "state.npz"), fresh, steps=27, keep=(25, 40), **setting)
    assert rest.steps.tolist() == [23, 25, 40, 50]
    assert torch.equal(torch.cat([half.loss, rest.loss]), whole.loss)
    assert torch.equal(rest.attention[1:], whole.attention[1:])
    assert torch.equal(rest.final.decoder, whole.final.decoder)
    # the state was not changed by going on from it
    again = gradient_descent(half.end, fresh, steps=27, **setting)
    assert torch.equal(again.final.decoder, whole.final.decoder)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (HeavyBall(0.9), lambda groups: torch.optim.SGD(groups, lr=1.0, momentum=0.9)),
        (Adam(), lambda groups: torch.optim.Adam(groups, lr=1.0)),
    ],
)
def test_optimisers_agree_with_torch(ours, theirs):
    classes = synthetic(2, common=2, distinct=3)
    batches = sampled(classes, 9, context=12, seeds=[5])
    path = gradient_descent(
        start_of(classes, "zero", [5]), batches, steps=30, eta_y=0.3, eta_z=0.2, optimiser=ours
    )
    Y = torch.zeros(classes.tokens, classes.vocab_size, dtype=torch.float64, requires_grad=True)
    Z = torch.zeros(2, classes.tokens, dtype=torch.float64, requires_grad=True)
    descent = theirs([{"params": [Y], "lr": 0.3}, {"params": [Z], "lr": 0.2}])
    for step in range(30):
        n, counts = batches(step).target[0], batches(step).dense()[0]
        ids = (
            torch.arange(classes.tokens)
            .expand(9, -1)
            .flatten()
            .repeat_interleave(counts.long().flatten())
            .view(9, 12)
        )
        descent.zero_grad()
        explicit_loss(Y, Z, ids, classes.query[n], n).backward()
        descent.step()
    assert float(path.final.attention.abs().max()) > 0.1
    assert_close(path.final.attention[0], Z.detach(), rtol=1e-6, atol=1e-8)
    assert_close(path.final.decoder[0], Y.detach()[:, :3], rtol=1e-6, atol=1e-8)


def test_single_precision_follows_double_precision():
    classes = synthetic(6, per_query=2)
    found = {}
    for dtype in (torch.float32, torch.float64):
        batches = sampled(classes, 64, context=127, seeds=[0])
        start = Weights.random(classes, seeds=[0], dtype=dtype)
        found[dtype] = gradient_descent(
            start, batches, steps=40, eta_y=1.0, eta_z=1.0, optimiser=HeavyBall(0.9)
        ).final.attention
        assert found[dtype].dtype == dtype
    assert_close(found[torch.float32].double(), found[torch.float64], rtol=0, atol=1e-3)


def test_random_weights_are_those_of_a_linear_layer():
    classes = synthetic(20, per_query=2)
    weights = Weights.random(classes, seeds=[0, 1])
    assert weights.decoder.shape == (2, 210, 240)
    bound = 240**-0.5
    assert 0.99 * bound < float(weights.decoder.abs().max()) <= bound
    assert float(weights.decoder.var()) == pytest.approx(bound**2 / 3, rel=0.02)
    assert torch.equal(weights.attention[1], Weights.random(classes, seeds=[1]).attention[0])


# ---- the paper's experiments


def test_syn_small_follows_the_released_log():
    loss = syn_small(steps=100, seeds=list(range(10)), optimiser=HeavyBall(0.9)).loss
    for step, printed in LOSS.items():
        low, high = float(loss[step].min()), float(loss[step].max())
        slack = 0.25 * (high - low) + 1e-4 * printed
        assert low - slack <= printed <= high + slack, step


@pytest.mark.parametrize(("length", "top", "common"), [(128, 0.710, -0.313), (16384, 0.599, -0.319)])
def test_plain_descent_by_length(length: int, top: float, common: float, unchecked):
    z = syn_small(steps=1000, length=length, seeds=[0, 1, 2]).attention[-1].mean(0)
    assert float((z[0, 19] + z[1, 29]) / 2) == pytest.approx(top, abs=0.008)
    assert float(z[:, :10].mean()) == pytest.approx(common, abs=0.002)


def test_momentum_is_not_ten_times_as_many_steps(unchecked):
    z = syn_small(steps=100, seeds=list(range(10)), optimiser=HeavyBall(0.9)).attention[-1].mean(0)
    assert 1.03 < float((z[0, 19] + z[1, 29]) / 2) < 1.2


def test_cells_of_syn_medium(unchecked):
    setting = {
        "eta_z": (0.5, 2.0),
        "ratios": RATIOS,
        "steps": 100,
        "batch": 128,
        "length": 128,
        "momentum": 0.9,
    }
    cells = np.array([entropies(last=3, seed=seed, **setting) for seed in range(2)])
    wanted, spread = (table[1][[ETA_Z.index(0.5), ETA_Z.index(2.0)]] for table in (ENTROPY, ENTROPY_SD))
    assert np.abs(cells.mean(0) - wanted).max() < 0.06
    assert (np.abs(cells.mean(0) - wanted) < 4 * spread).all()


def test_entropy_of_uniform_attention():
    assert float(distinct_entropy(synthetic(6, per_query=2))) == pytest.approx(2.1513, abs=5e-5)
    even = SequenceClasses(
        torch.block_diag(*[torch.full((1, 4), 0.25, dtype=torch.float64)] * 2),
        torch.zeros(2, dtype=torch.long),
        12,
    )
    assert float(distinct_entropy(even)) == pytest.approx(np.log(4), rel=1e-12)
    assert share_above(even, even.conditional, [0.2, 0.3]).tolist() == [1.0, 0.0]


def test_published_cells_are_used_at_their_own_settings_only():
    small = {"last": (1, 2), "eta_z": (0.7, 2.0), "ratios": (5.0,), "seeds": 1}

    def known(**settings) -> list[float | None]:
        rows = syn_medium(**small, **settings).run().select(quantity=DISTINCT_ENTROPY)
        return [row.predicted for row in rows]

    assert known() == [None, 1.934, None, None]
    assert known(steps=10) == [None] * 4


def test_the_experiments_do_not_depend_on_the_workers(monkeypatch):
    """Results depend neither on the order of the settings nor on the global generator of the worker."""

    def elsewhere(job, settings):
        torch.manual_seed(7)
        return [job(**setting) for setting in reversed(settings)][::-1]

    usual = long_sequences.quick().run().table
    monkeypatch.setattr(figure, "sweep", elsewhere)
    assert long_sequences.quick().run().table == usual


# ---- bad input


def descent(**changed):
    classes = synthetic(2, common=1, distinct=2)
    setting = {"steps": 3, "eta_y": 1.0, "eta_z": 0.1} | changed
    return gradient_descent(
        start_of(classes, "zero", [0, 1]), sampled(classes, 8, context=9, seeds=[0, 1]), **setting
    )


@each_case(
    ("make", "message"),
    [
        (lambda: descent(eta_y=torch.ones(3)), r"eta_y .*\[2\], got shape \[3\]"),
        (lambda: descent(eta_z=torch.tensor([1.0, -1.0])), "eta_z must be a positive learning rate"),
        (lambda: Adam(second=1.0), "factors must lie in"),
        (lambda: sampled(synthetic(2), 0, context=3, seeds=[0]), "batch must be at least 1"),
        (
            lambda: sampled(synthetic(2), 3, context=2**63, seeds=[0]),
            "context must be at most .*9223372036854775808",
        ),
        (lambda: sampled(synthetic(2), 3, context=3, seeds=[]), "seeds must hold at least one"),
        (lambda: sampled(synthetic(2), 3, context=3, seeds=[-1]), "each at least 0"),
        (lambda: Weights.random(synthetic(2), seeds=[]), "seeds must hold at least one"),
    ],
)
def test_bad_input(make, message: str, unchecked):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_file_of_another_kind_is_refused(tmp_path):
    for name, value in (("array.npy", np.zeros(3)), ("other.npz", None)):
        np.save(tmp_path / name, value) if value is not None else np.savez(tmp_path / name, W=np.zeros(2))
        with pytest.raises(ValueError, match="must be an npz file of a saved State"):
            load(tmp_path / name)


def test_training_that_diverges_carries_its_last_state():
    with pytest.raises(NotConverged, match="not finite at step") as caught:
        descent(steps=50, eta_y=1e308, eta_z=1e308)
    assert isinstance(caught.value.state, State)
    assert caught.value.residuals == caught.value.state.step + 1
