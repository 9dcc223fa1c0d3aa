"""A training that stops and is resumed: what a probe and its callbacks had measured is there afterwards."""

import json
import warnings
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.problems.networks import Keep, Net, all_metrics, built, theory_metrics, tokens
from transformer_theory.core.metric import Metric
from transformer_theory.metrics import AttentionMaps, AttentionStatistics
from transformer_theory.probes import probe
from transformer_theory.probes.callbacks import lightning_callback, trainer_callback
from transformer_theory.probes.stored_state import _bytes_of

X, Y = tokens(24, 5, 8), torch.arange(24) % 3


def trained(model: nn.Module, p, steps: range) -> None:
    """A plain loop; the state of the optimiser is the weights alone."""
    with p:
        for step in steps:
            p.labels, p.step = Y[:8], step
            functional.cross_entropy(model(X[:8] + step), Y[:8]).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad
            model.zero_grad()


def rows_by_step(result) -> list[tuple[int, str]]:
    return sorted((row.step, json.dumps(row.to_json())) for row in result.table)


@pytest.mark.parametrize(("every", "stored"), [(1, False), (2, True)])
def test_a_plain_loop_continues_as_if_it_had_not_stopped(every, stored, tmp_path):
    """The state is taken after five steps, two more are lost, and a new process repeats them: rows, arrays
    and the comparisons with earlier measurements are those of an uninterrupted run.
    """

    def new(name):
        options = {"file": tmp_path / name} if stored else {}
        return probe(built(Net).eval(), all_metrics(), every=every, draws=0, **options)

    whole = new("whole")
    trained(whole.model, whole, range(9))

    first = new("part")
    trained(first.model, first, range(5))
    torch.save([first.model.state_dict(), first.state_dict()], tmp_path / "checkpoint.pt")
    trained(first.model, first, range(5, 7))

    weights, state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    second = new("part")
    second.model.load_state_dict(weights)
    second.load_state_dict(state)
    before = second.result()
    assert set(before.table.column("step")) == set(range(0, 5, every))
    trained(second.model, second, range(5, 9))

    result, right = second.result(), whole.result()
    assert result.table == right.table
    assert result.settings == right.settings
    assert result.arrays.keys() == right.arrays.keys()
    assert all(np.array_equal(result.arrays[name], right.arrays[name]) for name in right.arrays)
    assert any(row.quantity == "rebound of attention's entropy" and row.value for row in right.table)
    if stored:
        assert (tmp_path / "part").read_bytes() == (tmp_path / "whole").read_bytes()


def test_a_file_keeps_the_rows_of_others(tmp_path):
    """Rows of an earlier run stay before those of the probe; a half-written line at the end is replaced."""
    path, model, x = tmp_path / "rows.jsonl", built(Net).eval(), tokens(2, 5, 8)
    path.write_text("an earlier run\n")
    with torch.no_grad():
        with probe(model, [Keep()], file=path) as first:
            model(x)
            state = first.state_dict()
            model(x)
        with path.open("a") as file:
            file.write('{"theory": "netw')
        second = probe(model, [Keep()], file=path)
        second.load_state_dict(state)
        assert second.result().table.column("step") == [0]
        assert len(path.read_text().splitlines()) == 4  # nothing is removed before the training goes on
        with second:
            model(x)
    assert second.result().table.column("step") == [0, 1]
    assert [line[:14] for line in path.read_text().splitlines()] == [
        "an earlier run",
        *2 * ['{"theory": "ne'],
    ]


def test_states_that_do_not_fit_are_refused(tmp_path):
    path, model, x = tmp_path / "rows.jsonl", built(Net).eval(), tokens(2, 5, 8)

    def refused(match, state, metrics=None, **options):
        p = probe(model, metrics or [Keep()], **options)
        with pytest.raises(ValueError, match=match):
            p.load_state_dict(state)

    with torch.no_grad(), probe(model, [Keep()]) as p, probe(model, [Keep()], file=path) as filed:
        model(x)
        model(x)
        with p.accumulate():
            for action in (p.state_dict, lambda: p.load_state_dict({})):
                with pytest.raises(ValueError, match=r"must be called outside accumulate\(\)"):
                    action()
            model(x)
    memory, file = p.state_dict(), filed.state_dict()
    refused("metrics Keep, got AttentionStatistics; pass the same metrics", memory, [AttentionStatistics()])
    refused("rows in memory, got one with its rows in a file", memory, file=path)
    refused("rows in a file, got one with its rows in memory", file)
    refused(
        r"other.jsonl must hold the rows of the state, \d+ bytes, got 0", file, file=tmp_path / "other.jsonl"
    )
    with torch.no_grad(), probe(model, [Keep()], file=path):
        model(x)
    refused("holds rows of another run, from step 0, after those of the state, until step 2", file, file=path)

    class Words(Keep):
        def persistent_state(self):
            return {b"a": torch.zeros(1)}

    with pytest.raises(ValueError, match="keys of the persistent state of Words must be made of texts"):
        probe(model, [Words()]).state_dict()


class Drift(Metric):
    """Counts the measurements, and keeps the number under keys and in types of every kind."""

    def __init__(self):
        super().__init__()
        self.memory = {}

    def update(self, activations):
        self.memory = {
            key: self.memory.get(key, torch.zeros((), dtype=dtype)) + 1 for key, dtype in self.KEYS.items()
        }

    kinds = ("outputs",)
    KEYS: ClassVar = {
        (0, 1): torch.bfloat16,
        "a b/c": torch.int64,
        3: torch.float64,
        ((1,), "x"): torch.float16,
    }

    def compute(self, *, draws=0, generator=None):
        return ()

    def arrays(self):
        return {"words/1": np.array(["a", "bc"]), "numbers": np.arange(3, dtype=np.uint16)[:, None].T}

    def persistent_state(self):
        return self.memory

    def load_persistent_state(self, state):
        self.memory = state


@pytest.mark.parametrize("text", [False, True])
def test_keys_and_types_survive(text):
    from transformer_theory.probes.stored_state import from_text, to_text

    model, x = built(Net).eval(), tokens(2, 5, 8)
    first, second = Drift(), Drift()
    with torch.no_grad(), probe(model, [first]) as p:
        model(x)
        model(x)
    state, again = p.state_dict(), probe(model, [second])
    again.load_state_dict(from_text(to_text(state)) if text else state)
    assert second.memory == first.memory == dict.fromkeys(Drift.KEYS, 2)
    assert {key: value.dtype for key, value in second.memory.items()} == Drift.KEYS
    arrays, right = again.result().arrays, p.result().arrays
    assert {name: (x.dtype, x.tolist()) for name, x in arrays.items()} == {
        name: (x.dtype, x.tolist()) for name, x in right.items()
    }


# Lightning


def module(seed: int = 0):
    import pytorch_lightning as lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = built(Net, seed)

        def training_step(self, batch, index):
            self.network.eval()  # dropout would differ in a resumed run
            return functional.cross_entropy(self.network(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Module()


def lightning_run(callbacks, steps: int, path=None, save=None, seed: int = 0, **options):
    import pytorch_lightning as lightning

    options |= {
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
    }
    # a run that is resumed within an epoch begins again with the first batch: all batches are equal
    data = torch.utils.data.TensorDataset(X[:4].repeat(6, 1, 1), Y[:4].repeat(6))
    data = torch.utils.data.DataLoader(data, batch_size=4)
    with torch.random.fork_rng(), warnings.catch_warnings():
        torch.manual_seed(0)
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(max_steps=steps, callbacks=callbacks, **options)
        trainer.fit(module(seed), data, ckpt_path=path, weights_only=True)
        if save is not None:
            trainer.save_checkpoint(save)


def persistent_metrics() -> list[Metric]:
    return [*theory_metrics("scan_snap", "joma"), AttentionStatistics(), AttentionMaps()]


def test_lightning_resumes_with_the_rows_of_both_runs(tmp_path):
    """Two callbacks with different metrics and intervals; the checkpoint holds texts and tensors only. A run
    that was resumed at its end has all rows, too, and a third run continues the second.
    """

    def callbacks():
        return [
            lightning_callback(persistent_metrics(), every=2),
            lightning_callback([AttentionStatistics()], every=1, max_samples=2),
        ]

    whole = callbacks()
    lightning_run(whole, 6)
    path, later = tmp_path / "three.ckpt", tmp_path / "six.ckpt"
    lightning_run(callbacks(), 3, save=path)
    assert torch.load(path, weights_only=True)["callbacks"]
    second, third, after = callbacks(), callbacks(), callbacks()
    lightning_run(second, 6, path, save=later)
    lightning_run(third, 6, later)
    lightning_run(after, 7, later)
    for right, resumed, ended, longer in zip(whole, second, third, after):
        rows = rows_by_step(right.result)
        assert rows_by_step(resumed.result) == rows_by_step(ended.result) == rows
        assert [row for row in rows_by_step(longer.result) if row[0] < 6] == rows
        assert set(longer.result.table.column("step")) == set(right.result.table.column("step")) | {6}
        assert resumed.result.arrays.keys() == right.result.arrays.keys()
        assert ended.result.settings["model"] == "Module"
    assert {0, 2, 4} == set(whole[0].result.table.column("step"))


def test_a_callback_that_is_used_again_has_each_step_once(tmp_path):
    """The same object is resumed from an earlier step, as a program that restarts its own training does; and
    from a step in the middle of accumulated gradients.
    """
    callback = lightning_callback([AttentionStatistics()], every=1)
    lightning_run([callback], 2, save=tmp_path / "two.ckpt", accumulate_grad_batches=2)
    lightning_run([callback], 4, tmp_path / "two.ckpt", accumulate_grad_batches=2)
    once = rows_by_step(callback.result)
    assert len(set(once)) == len(once)
    lightning_run([callback], 4, tmp_path / "two.ckpt", accumulate_grad_batches=2)
    assert rows_by_step(callback.result) == once
    assert {step for step, _ in once} == {0, 1, 2, 3}


def test_a_new_training_measures_its_first_step():
    """The first training was last measured at the same step, 0."""
    callback, alone = (lightning_callback([AttentionStatistics()], every=10) for _ in range(2))
    lightning_run([callback], 3)
    lightning_run([callback], 3, seed=1)
    lightning_run([alone], 3, seed=1)
    assert callback.result.table == alone.result.table


def test_a_step_that_failed_is_measured_in_the_resumed_run(tmp_path):
    """The step fails after its pass has begun; the checkpoint is written afterwards."""
    import pytorch_lightning as lightning

    class Fails(lightning.Callback):
        def on_train_batch_start(self, trainer, *_):
            if trainer.global_step == 2:
                raise KeyError("stopped")

        def on_exception(self, trainer, *_):
            trainer.save_checkpoint(tmp_path / "stopped.ckpt")

    first, second = (lightning_callback([AttentionStatistics()], every=1) for _ in range(2))
    with pytest.raises(KeyError, match="stopped"):
        lightning_run([first, Fails()], 5)
    lightning_run([second], 4, tmp_path / "stopped.ckpt")
    assert set(second.result.table.column("step")) == {0, 1, 2, 3}


# transformers


class WithLoss(nn.Module):
    """A network that returns its loss, as the Trainer wants it."""

    def __init__(self):
        super().__init__()
        self.network = built(Net)

    def forward(self, x, labels):
        logits = self.network(x)
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def trainer_run(folder, callbacks, steps: int, *, resume=None, **options):
    from transformers import Trainer, TrainingArguments

    with torch.random.fork_rng():
        options = {
            "max_steps": steps,
            "save_steps": 3,
            "learning_rate": 1e-2,
            "lr_scheduler_type": "constant",
            "use_cpu": True,
            "report_to": "none",
            "logging_strategy": "no",
            "disable_tqdm": True,
            **options,
        }
        data = [{"x": x, "labels": y} for x, y in zip(X, Y)]
        arguments = TrainingArguments(output_dir=str(folder), per_device_train_batch_size=4, **options)
        trainer = Trainer(WithLoss(), arguments, train_dataset=data, callbacks=callbacks)
        trainer.train(resume_from_checkpoint=resume)
    return trainer


@pytest.mark.parametrize("restore", [False, True])
def test_transformers_trainer_resumes_with_the_rows_of_both_runs(restore, tmp_path):
    def callbacks():
        return [
            trainer_callback(persistent_metrics(), every=2),
            trainer_callback([AttentionStatistics()], every=1, max_samples=2),
        ]

    whole, second = callbacks(), callbacks()
    trainer_run(tmp_path / "whole", whole, 6, save_strategy="no")
    trainer_run(tmp_path / "part", callbacks(), 5)
    checkpoint = str(tmp_path / "part" / "checkpoint-3")
    options = {"restore_callback_states_from_checkpoint": restore}
    trainer = trainer_run(tmp_path / "part", second, 6, resume=checkpoint, **options)
    for right, resumed in zip(whole, second):
        assert rows_by_step(resumed.result) == rows_by_step(right.result)
        assert resumed.result.arrays.keys() == right.result.arrays.keys()
    name = "network/attention entropy/layer 1/head 1"
    logged = [entry["step"] for entry in trainer.state.log_history if name in entry]
    assert sorted(logged) == sorted([0, 2, 4, *range(6)])


def test_transformers_trainer_resumes_from_a_checkpoint_without_the_callback(tmp_path):
    trainer_run(tmp_path, [], 3)
    callback = trainer_callback([AttentionStatistics()], every=1)
    trainer_run(tmp_path, [callback], 6, resume=str(tmp_path / "checkpoint-3"))
    assert set(callback.result.table.column("step")) == {3, 4, 5}


def test_objects_are_not_pickled_into_a_state():
    with pytest.raises(ValueError, match="Object arrays cannot be saved"):
        _bytes_of(np.array([{}, []], dtype=object))
