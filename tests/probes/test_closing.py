"""Probes of one model that are closed in any order, copies that are made inside, and threads."""

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests.cases import each_case
from tests.problems.networks import Keep, Net, built, tokens
from transformer_theory import measure
from transformer_theory.metrics import AttentionStatistics
from transformer_theory.probes import probe

ENTROPY = "attention entropy"


def entropy(model: nn.Module, x: torch.Tensor) -> list[float]:
    """The mean entropies of all heads of a :class:`Net`, written out, in float64 and without a probe."""
    means, double = [], copy.deepcopy(model).double()
    stream = x.double()
    for block in double.blocks:
        normed, attention = block.norm(stream), block.attention
        query = attention.q(normed).unflatten(-1, (attention.heads, -1)).transpose(1, 2)
        key = attention.kv(normed).unflatten(-1, (2, attention.groups, -1))[..., 0, :, :].transpose(1, 2)
        weights = (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1)
        means += (-(weights * weights.log()).sum(-1)).mean((0, 2)).tolist()
        stream = stream + attention(normed)
        stream = stream + block.mlp(block.second(stream))
    return means


def entropies(p, step: int = 0) -> list[float]:
    return [row.value for row in p.result().table.select(quantity=ENTROPY, step=step)]


def in_thread(action):
    """What an action returns in another thread, or the error that it raises there."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(action).result()


@each_case("order", [(0, 1, 2), (1, 0, 2), (1, 2, 0), (2, 1, 0), (0, 2, 1), (2, 0, 1)])
def test_probes_close_in_any_order(order):
    """Each probe measures the passes while it is open, neither more nor fewer."""
    model, x = built(Net).eval(), tokens(2, 5, 8)
    keeps = [Keep() for _ in range(3)]
    probes = [probe(model, [keep]) for keep in keeps]
    for p in probes:
        p.__enter__()
    with torch.no_grad():
        model(x)
        for number in order:
            probes[number].__exit__(None, None, None)
            model(x)
    assert "forward" not in model.__dict__
    measured = [len(p.result().table) for p in probes]
    assert measured == [1 + order.index(number) for number in range(3)]


def test_a_method_that_the_user_replaced_meanwhile_stays():
    """A wrapper around the redirected method, as other libraries make, keeps working and is not measured."""
    model, x = built(Net).eval(), tokens(2, 5, 8)
    with torch.no_grad():
        right = model(x)
        with probe(model, [Keep()]) as p:
            inner = model.forward
            model.forward = lambda *args: 2 * inner(*args)
            assert torch.equal(model(x), 2 * right)
        assert torch.equal(model(x), 2 * right)
    assert len(p.result().table) == 1


def test_a_method_of_the_instance_is_there_again():
    """The method that was there before the first probe, whatever the order of closing."""
    model = built(Net)
    own = model.forward = lambda x: x
    first, second = probe(model, []), probe(model, [])
    first.__enter__()
    second.__enter__()
    first.__exit__()
    second.__exit__()
    assert model.__dict__["forward"] is own


def test_closed_twice_and_entered_twice():
    model, x = built(Net).eval(), tokens(2, 5, 8)
    with torch.no_grad(), probe(model, [Keep()]) as p:
        with pytest.raises(ValueError, match="the probe is open already"):
            p.__enter__()
        model(x)
        p.__exit__()
        p.__exit__()
        model(x)
    assert "forward" not in model.__dict__
    with torch.no_grad(), p:  # again, after it was closed
        model(x)
    assert p.result().table.column("step") == [0, 1]


@pytest.mark.parametrize("how", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_between_two_probes_is_a_model_of_its_own(how):
    model, x = built(Net).eval(), tokens(2, 5, 8)
    outer, inner = probe(model, [Keep()]), probe(model, [Keep()])
    with torch.no_grad(), outer:
        inner.__enter__()
        twin = how(model)
        outer.__exit__()
        another = how(model)
        inner.__exit__()
        for each in (twin, another):
            each.head.bias += 1
            assert_close(each(x), model(x) + 1)
    with pytest.raises(ValueError, match="no forward pass of Net was observed"):
        inner.result()


def test_a_copy_of_an_open_probe_is_closed():
    model, x = built(Net).eval(), tokens(2, 5, 8)
    with torch.no_grad(), probe(model, [Keep()]) as p:
        twin = copy.deepcopy(p)
        twin.__exit__()
        model(x)
        with twin:
            twin.model(x)
    assert [len(one.result().table) for one in (p, twin)] == [1, 1]


# threads


class Slow(Net):
    """A network that waits in every block until other threads had time to run."""

    def forward(self, x):
        x = x.clone()
        for block in self.blocks:
            threading.Event().wait(0.01)
            x = block(x)
        return self.head(x.mean(1))


def test_threads_that_call_one_probed_model():
    """The values are those of each input alone, whatever runs beside it."""
    model = built(Slow).eval()
    inputs = [tokens(2, 5 + number, 8) for number in range(4)]
    right = sorted(entropy(model, x) for x in inputs)

    @torch.no_grad()
    def run(x):
        return model(x)

    with probe(model, [AttentionStatistics()]) as p, ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(run, inputs))
    assert all(torch.equal(run(x), output) for x, output in zip(inputs, outputs))
    steps = sorted(entropies(p, step) for step in range(4))
    assert_close(torch.tensor(steps), torch.tensor(right))


def test_a_part_that_another_thread_runs_is_not_measured():
    """The blocks run in another thread while the model that contains them is observed."""
    model, x, other = built(Slow).eval(), tokens(2, 5, 8), tokens(3, 4, 8)
    right, done = entropy(model, x), threading.Event()

    @torch.no_grad()
    def disturb():
        while not done.is_set():
            model.blocks[0].attention(other)

    thread = threading.Thread(target=disturb)
    thread.start()
    with torch.no_grad(), probe(model, [AttentionStatistics()]) as p:
        model(x)
    done.set()
    thread.join()
    assert_close(torch.tensor(entropies(p)), torch.tensor(right))


def test_a_second_thread_that_probes_the_model_is_refused():
    """So is one that probes a part of the model, or a model that contains it; a copy and other models are
    not, nor is any once the first probe is closed.
    """
    model, x = built(Net).eval(), tokens(2, 5, 8)
    around = nn.Sequential(model)

    def enter(which):
        with torch.no_grad(), probe(which, [Keep()], layers="*"):
            which(x)

    with probe(model, [Keep()]):
        before = model.__dict__["forward"]
        for name, which in (("Net", model), ("Block", model.blocks[0]), ("Sequential", around)):
            with pytest.raises(
                ValueError, match=rf"^{name} is being measured by another thread, MainThread; "
            ):
                in_thread(lambda which=which: enter(which))
        for which in (copy.deepcopy(model), built(Net)):
            in_thread(lambda which=which: enter(which))
        assert model.__dict__["forward"] is before
    in_thread(lambda: enter(model))
    # a probe that a thread left open when it ended
    in_thread(lambda: probe(model, [Keep()]).__enter__())
    enter(model)


def test_threads_that_measure_one_model_have_right_values_or_are_refused():
    """A measurement has several parts, between which no other thread may change the mode of the model."""
    model, x, labels = built(Net), tokens(9, 5, 8), torch.arange(9) % 3

    def values():
        try:
            return measure(model, x, labels, theories=["collapse"], networks=1).table.column("value")
        except ValueError as error:
            return str(error)

    right = values()
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda _: values(), range(6)))
    others = [result for result in results if result != right]
    assert right in results
    assert all(result.startswith("Net is being measured by another thread") for result in others)
    assert model.training


def test_a_probe_may_be_closed_by_another_thread():
    model = built(Net)
    p = probe(model, [Keep()]).__enter__()
    in_thread(p.__exit__)
    assert "forward" not in model.__dict__
    in_thread(lambda: probe(model, [Keep()]).__enter__().__exit__())


class Wait(nn.Module):
    """Waits for an event."""

    def __init__(self, event: threading.Event):
        super().__init__()
        self.event = event

    def forward(self, x):
        assert self.event.wait(10)
        return x


class Meeting(Net):
    """A network that meets another thread in the middle of its pass."""

    def forward(self, x):
        x = self.blocks[0](x.clone())
        self.meeting.wait(10)
        return self.head(self.blocks[1](x).mean(1))


@pytest.mark.parametrize("first", [0, 1])
def test_passes_that_overlap_leave_no_global_state(first):
    """Two models are observed by two threads whose passes overlap and end in either order."""
    import torch._dynamo.eval_frame as dynamo

    models, x = [built(Meeting, seed).eval() for seed in (0, 1)], tokens(2, 5, 8)
    right = [entropy(model, x) for model in models]
    ended = threading.Event()

    class Late(nn.Identity):
        def forward(self, x):
            assert dynamo._stance.stance == "force_eager"
            return x

    both = threading.Barrier(2)
    for number, model in enumerate(models):
        model.meeting = both
        model.head = nn.Sequential(model.head, Late())
        if number != first:
            model.head.insert(1, Wait(ended))

    @torch.no_grad()
    def run(model):
        with probe(model, [AttentionStatistics()]) as p:
            model(x)
        if model is models[first]:
            ended.set()
        return p

    fused, stance = torch.backends.mha.get_fastpath_enabled(), dynamo._stance
    with ThreadPoolExecutor(2) as pool:
        for p, values in zip(pool.map(run, models), right):
            assert_close(torch.tensor(entropies(p)), torch.tensor(values))
    assert torch.backends.mha.get_fastpath_enabled() == fused
    assert dynamo._stance == stance


def test_a_network_beside_a_probe_is_left_alone():
    """A fused layer in another thread gives the same outputs, to the last bit, while a pass is observed."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    model, x, outputs = built(Slow).eval(), tokens(2, 5, 8), []
    with torch.no_grad():
        right = layer(x)
    done = threading.Event()

    @torch.no_grad()
    def run():
        while not done.is_set():
            assert torch.backends.mha.get_fastpath_enabled()
            outputs.append(layer(x))

    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(run)
        with torch.no_grad(), probe(model, [Keep()]):
            model(x)
        done.set()
        beside.result()
    assert outputs
    assert all(torch.equal(output, right) for output in outputs)
