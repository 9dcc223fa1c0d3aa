"""Stored networks and checkpoints: files are read back exactly, and no file, whatever its contents, runs code
or passes for another.
"""

import json
import os
import pickle
import random
import zipfile
from dataclasses import asdict

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.problems.image_trainings import SMALL, interrupting, noise, trained, with_
from transformer_theory.core.measurement import Measurement
from transformer_theory.models import stored
from transformer_theory.training.image import checkpoint, folder, saved
from transformer_theory.training.image.folder import GrowingTable


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    trained(folder, with_(epochs=1))
    return folder


class Malice:
    """Writes a file when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


def test_a_network_is_loaded_exactly(run):
    found = saved.load(run)
    assert (found.network, found.names, found.origin["data"]) == ("crate", ("a", "b", "c"), "noise")
    assert found.sizes == SMALL.sizes(image_size=8, channels=1, num_classes=3)
    held = torch.load(run / "last.pt", weights_only=True)
    weights = load_file(run / "best.safetensors")
    assert weights.keys() == held["network"].keys()
    logits = found.model(noise(4).pixels / 255)
    assert logits.shape == (4, 3)
    assert torch.equal(logits, saved.load(run / "best.safetensors").model(noise(4).pixels / 255))
    state = torch.random.get_rng_state()
    saved.load(run)
    assert torch.equal(torch.random.get_rng_state(), state)


def edited(run, path, **change):
    """The network with other metadata and their checksum."""
    weights, record = stored.stored(run / "best.safetensors")
    record |= change
    record["crc32"] = stored.checksum(weights, record)
    save_file(weights, path, metadata={"transformer_theory": json.dumps(record)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 3, "version": "9.0"}, r"format 2 .* got format 3 of version 9\.0"),
        ({"sizes": {"dim": 8}}, "does not describe a network that this version can build"),
        ({"sizes": 3}, "does not describe a network"),
        ({"sizes": {"image_size": "eight"}}, "does not describe a network"),
        ({"network": "unheard of"}, "does not describe a network .*'unheard of'"),
        ({"network": ["crate"]}, "does not describe a network"),
        ({"objective": None}, "does not describe a network"),
        ({"objective": {"name": "other"}}, "does not describe a network"),
        ({"mean": "grey"}, "does not describe a network"),
        ({"mean": [0.5, 0.5]}, "does not describe a network"),
        ({"std": [0.0]}, "does not describe a network"),
        ({"names": 4}, "does not describe a network"),
        ({"origin": "here"}, "does not describe a network"),
        ({"network": "vit"}, "missing: .* unknown: "),
    ],
)
def test_metadata_that_describe_no_network(run, tmp_path, unchecked, change, message):
    edited(run, tmp_path / "other.safetensors", **change)
    with pytest.raises(ValueError, match=message) as raised:
        saved.load(tmp_path / "other.safetensors")
    assert str(tmp_path) in str(raised.value)


def test_other_files_are_no_networks(run, tmp_path):
    path = tmp_path / "best.safetensors"
    for text in ("[1]", "{"):
        save_file({"a": torch.zeros(1)}, path, metadata={"transformer_theory": text})
        with pytest.raises(ValueError, match="must describe its network in JSON"):
            saved.load(path)
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(ValueError, match=r"got weights without their origin; models\.load_weights"):
        saved.load(path)
    torch.save({"a": torch.zeros(1)}, tmp_path / "best.pt")
    with pytest.raises(ValueError, match=r"must be a \.safetensors file"):
        saved.load(tmp_path / "best.pt")
    for nowhere in (tmp_path / "no.safetensors", tmp_path):
        path.unlink(missing_ok=True)
        with pytest.raises(FileNotFoundError):
            saved.load(nowhere)
    content = (run / "best.safetensors").read_bytes()
    for damaged in (
        b"",
        content[:7],
        content[: len(content) // 2],
        content[:-1],
        pickle.dumps(Malice(tmp_path / "mark")),
    ):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="must be a whole safetensors file"):
            saved.load(path)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("archive", [True, False])
def test_a_checkpoint_that_asks_for_code_is_not_read(tmp_path, archive):
    held = {"format": checkpoint.FORMAT, "run": Malice(tmp_path / "mark")}
    torch.save(held, tmp_path / "last.pt", _use_new_zipfile_serialization=archive)
    with pytest.raises(ValueError, match=r"posix\.system" if archive else r"last\.pt"):
        checkpoint.load(tmp_path / "last.pt")
    assert not (tmp_path / "mark").exists()


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_damaged_checkpoints(run, tmp_path):
    content = (run / "last.pt").read_bytes()
    path = tmp_path / "last.pt"
    plain = pickle.dumps(Malice(tmp_path / "mark"), protocol=4)
    for damaged in (
        b"",
        b"\x80",
        content[:100],
        content[: len(content) // 2],
        content[:-50],
        b"no checkpoint at all",
        plain,
    ):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"last\.pt must be a (whole )?checkpoint"):
            checkpoint.load(path)
    assert not (tmp_path / "mark").exists()


def flipped(content: bytes, place: int) -> bytes:
    """The content with one other bit."""
    changed = bytearray(content)
    changed[place // 8] ^= 1 << place % 8
    return bytes(changed)


def test_any_flipped_bit_of_the_stored_numbers_is_found(run, tmp_path):
    """20 of the payload of each file, one at a time: of the weights and moments, and of the weights and their
    metadata.
    """
    generator = random.Random(0)
    last, best = ((run / name).read_bytes() for name in ("last.pt", "best.safetensors"))
    with zipfile.ZipFile(run / "last.pt") as archive:
        members = [
            (last.index(content), len(content))
            for entry in archive.infolist()
            if (content := archive.read(entry))
        ]
    for _ in range(20):
        offset, size = generator.choices(members, [size for _, size in members])[0]
        (tmp_path / "last.pt").write_bytes(flipped(last, 8 * offset + generator.randrange(8 * size)))
        with pytest.raises(ValueError, match=r"last\.pt"):
            checkpoint.load(tmp_path / "last.pt")
        (tmp_path / "best.safetensors").write_bytes(flipped(best, generator.randrange(64, 8 * len(best))))
        with pytest.raises(ValueError, match=r"best\.safetensors"):
            saved.load(tmp_path / "best.safetensors")


def test_a_network_without_a_checksum_was_written_by_the_version_before(run, tmp_path):
    weights, record = stored.stored(run / "best.safetensors")
    record["format"] = 1
    save_file(weights, tmp_path / "best.safetensors", metadata={"transformer_theory": json.dumps(record)})
    assert saved.load(tmp_path / "best.safetensors").origin == saved.load(run).origin


def test_sizes_are_compared_before_memory_is_allocated(run, tmp_path):
    """A network of 120,000 tokens' width would need 57 GB; so many layers or dimensions could not even be
    counted.
    """
    sizes = saved.load(run).sizes
    for change in ({"dim": 120_000}, {"dim": 2**40}, {"depth": 10**9}, {"num_classes": 2**60}):
        edited(run, tmp_path / "other.safetensors", sizes={**asdict(sizes), **change})
        with pytest.raises(ValueError, match=r"other\.safetensors"):
            saved.load(tmp_path / "other.safetensors")


@pytest.mark.parametrize("missing", ["settings", "objective", "theories"])
def test_a_run_without_its_settings(run, tmp_path, missing):
    held = torch.load(run / "last.pt", weights_only=True)
    del held["run"][missing]
    torch.save(held, tmp_path / "last.pt")
    with pytest.raises(ValueError, match=f"for {missing}"):
        checkpoint.stored_run(tmp_path / "last.pt")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 6, "version": "9.0"}, r"format 5 .* got format 6 of version 9\.0"),
        ({"run": 3}, "got int for run; begin again"),
        ({"step": 1.5}, "got float for step"),
        ({"seconds": "long"}, "got str for seconds"),
        ({"rows": [1]}, "got list for rows"),
        ({"network": None}, "got NoneType for network"),
        ({"optimiser": ...}, "got nothing for optimiser"),
    ],
)
def test_checkpoints_of_other_content(run, tmp_path, change, message):
    held = {**torch.load(run / "last.pt", weights_only=True), **change}
    torch.save({name: value for name, value in held.items() if value is not ...}, tmp_path / "last.pt")
    with pytest.raises(ValueError, match=message):
        checkpoint.load(tmp_path / "last.pt")


def test_a_checkpoint_is_of_a_training(tmp_path):
    torch.save([1], tmp_path / "last.pt")
    with pytest.raises(ValueError, match="got list without a format"):
        checkpoint.load(tmp_path / "last.pt")


@pytest.mark.parametrize(
    ("part", "content"),
    [
        ("network", {}),
        ("network", {"a": torch.zeros(1)}),
        ("optimiser", {}),
        ("optimiser", {"state": {7: {}}, "param_groups": []}),
    ],
)
def test_states_that_do_not_fit_their_settings(tmp_path, part, content):
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "run", with_(epochs=1, interval=1), callback=interrupting(2))
    path = tmp_path / "run" / "last.pt"
    torch.save({**torch.load(path, weights_only=True), part: content}, path)
    with pytest.raises(ValueError, match=r"last\.pt contradicts its own settings"):
        trained(tmp_path / "run", with_(epochs=1, interval=1), resume=True)


def test_a_table_is_serialised_once_and_read_back(tmp_path, monkeypatch):
    serialised, checked_line = [], folder.checked_line
    monkeypatch.setattr(folder, "checked_line", lambda row: serialised.append(row) or checked_line(row))
    table = GrowingTable(tmp_path / "table.jsonl")
    for step, value in enumerate([1.5, float("nan"), 0.5, 2.0]):
        table.rows.append(Measurement("network", "network", "é", value, step=step))
        table.write()
    assert len(serialised) == 4
    assert not list(tmp_path.glob(".*"))
    stored = GrowingTable.read(tmp_path / "table.jsonl", 3)
    assert [row.value for row in stored.rows] == [1.5, None, 0.5]
    assert [row.step for row in stored.rows] == [0, 1, 2]
    stored.rows.append(Measurement("network", "network", "loss", 1.0, split="test"))
    stored.write()  # in place of the fourth
    assert [each.ended for each in (stored, GrowingTable.read(tmp_path / "table.jsonl", 0))] == [False, True]
    assert len(GrowingTable.read(tmp_path / "table.jsonl", 4).rows) == 4


@pytest.mark.parametrize(
    "line", ["1", "{", '{"quantity": 1}', '{"theory": "network", "quantity": 1, "value": 1}', "\xff"]
)
def test_other_rows_are_no_table(tmp_path, unchecked, line):
    path = tmp_path / "table.jsonl"
    path.write_bytes(line.encode("latin-1"))
    with pytest.raises(
        ValueError,
        match=r"table\.jsonl must hold the rows of the training, got others .*; begin again without --resume",
    ):
        GrowingTable.read(path, 0)
