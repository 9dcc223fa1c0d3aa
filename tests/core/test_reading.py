"""Files that hold what no reader expects: pipes, devices, endless nesting, claims beyond the memory."""

import contextlib
import io
import json
import os
import random
import signal
import socket
import warnings
import zipfile

import numpy as np
import pytest

from tests.cases import each_case
from transformer_theory.core import reading
from transformer_theory.core.journal import Pieces
from transformer_theory.core.reading import parse_json, read_array, read_arrays, read_json
from transformer_theory.core.result import Result, read_table
from transformer_theory.data import TokenData, image_sets
from transformer_theory.data.graph_files import read_edge_list, read_graphml
from transformer_theory.data.image_cache import read_npz
from transformer_theory.data.labels import read_labels, read_text
from transformer_theory.data.text import read_words
from transformer_theory.models.stored import stored
from transformer_theory.models.transformers_folder import read_ids
from transformer_theory.models.weights import load_weights
from transformer_theory.report.origins import stored_results
from transformer_theory.theories.attention_svm.dynamics.states import load as load_factors
from transformer_theory.theories.scan_snap.dynamics.training import load as load_state
from transformer_theory.theories.turing import TuringMachine
from transformer_theory.training.image.checkpoint import load as load_checkpoint
from transformer_theory.training.image.folder import GrowingTable

READERS = {
    "tokens.npz": TokenData.from_npz,
    "images.npz": read_npz,
    "image set.npz": image_sets.images,
    "text.txt": read_words,
    "labels.txt": read_labels,
    "labels.npy": read_labels,
    "plain.txt": lambda path: read_text(path, "a text"),
    "ids.npy": lambda path: read_ids(path, length=4, sequences=None),
    "graph.edgelist": read_edge_list,
    "graph.graphml": read_graphml,
    "net.safetensors": load_weights,
    "net.pt": load_weights,
    "best.safetensors": stored,
    "last.pt": load_checkpoint,
    "table.jsonl": read_table,
    "grown.jsonl": lambda path: GrowingTable.read(path, 1),
    "result.json": lambda path: Result.load(path.parent),
    "claims.json": lambda path: stored_results([path]),
    "run.unfinished.jsonl": Pieces,
    "machine.txt": TuringMachine.load,
    "svm.npz": load_factors,
    "snap.npz": load_state,
}


@contextlib.contextmanager
def within(seconds):
    """Fails if the block takes longer, as reading a pipe without a writer does."""

    def stop(number, frame):
        raise AssertionError(f"still reading after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def pipe(path):
    os.mkfifo(path)


def device(path):
    path.symlink_to("/dev/zero")


def listening(path):
    with socket.socket(socket.AF_UNIX) as made, contextlib.chdir(path.parent):
        made.bind(path.name)


def loop(path):
    path.symlink_to(path.name)


@each_case("make", [pipe, device, listening, loop])
@each_case("name", READERS)
def test_what_is_no_file_is_refused_at_once(tmp_path, name, make):
    path = tmp_path / name
    make(path)
    with within(20), pytest.raises((ValueError, OSError)) as error:
        READERS[name](path)
    assert "\n" not in str(error.value)
    assert "[Errno" not in str(error.value)
    assert str(path if name != "result.json" else tmp_path) in str(error.value)


DEEP = 100_000 * "[" + 100_000 * "]"


@each_case("name", [name for name in READERS if name.endswith((".json", ".jsonl"))])
def test_json_that_is_nested_without_end_is_one_line(tmp_path, name):
    path = tmp_path / name
    path.write_text(DEEP + "\n" + DEEP + "\n")
    with pytest.raises(ValueError, match=r"nested too deeply|does not hold|must hold|must be"):
        READERS[name](path)


def test_deep_json_of_every_kind():
    for text in (DEEP, 100_000 * '{"a":' + "1" + 100_000 * "}", DEEP.encode()):
        with pytest.raises(ValueError, match="nested too deeply"):
            parse_json(text)
    assert parse_json('{"a": [1, null]}') == {"a": [1, None]}


def header(shape, descr="<i8"):
    """The header of a .npy file."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue()


@each_case("shape", [(2**50,), (5,), (3,), (2**31, 2**31)])
def test_a_header_that_claims_other_bytes_than_there_are(tmp_path, shape):
    content = header(shape) + np.arange(4).tobytes()
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(ValueError, match=r"an array that claims [\d,]+ bytes and holds 32"):
        read_array(tmp_path / "a.npy")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("tokens.npy", content)
    with pytest.raises(ValueError, match=r"tokens as an array that claims [\d,]+ bytes and holds 32"):
        read_arrays(tmp_path / "a.npz")


def test_a_damaged_header_is_an_array_or_one_error(tmp_path):
    """Any bytes of it removed, or replaced by others."""
    chance, content, failed = random.Random(0), header((4,)) + np.arange(4).tobytes(), 0
    for _ in range(2000):
        start, size = chance.randrange(6, 128), chance.choice((0, 1, 1, 3, 40))
        new = chance.choice(
            (b"", chance.randbytes(1), b"(", b"{", b"'", b"\0", b"\n", chance.randbytes(size))
        )
        damaged = content[:start] + new + content[start + size :]
        (tmp_path / "a.npy").write_bytes(damaged)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of numpy, about headers of Python 2
            try:
                read_array(tmp_path / "a.npy")
            except ValueError:
                failed += 1
    assert failed > 1500
    (tmp_path / "a.npy").write_bytes(content[:20] + b"(" + content[21:])
    with pytest.raises(ValueError, match="an array whose header is damaged"):
        read_array(tmp_path / "a.npy")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_those_of_numpy(tmp_path, save):
    arrays = {
        "whole": np.arange(6).reshape(2, 3),
        "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "single": np.array(3.5, dtype=np.float32),
        "none": np.zeros((0, 4)),
        "text": np.array(["a", "bcd"]),
        "swapped": np.arange(3, dtype=">f4"),
    }
    save(tmp_path / "a.npz", **arrays)
    found = read_arrays(tmp_path / "a.npz")
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)
        np.save(tmp_path / "a.npy", array)
        assert np.array_equal(read_array(tmp_path / "a.npy"), array)


def test_what_unpacks_to_more_than_the_free_memory_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", tokens=np.zeros((1000, 100)))
    np.save(tmp_path / "a.npy", np.zeros((1000, 100)))
    size = 8 * 1000 * 100
    monkeypatch.setattr(reading, "free_memory", lambda: 3 * size)
    for read, name in ((read_arrays, "a.npz"), (read_array, "a.npy")):
        with pytest.raises(ValueError, match=r"GiB, and reading it takes 3 times as much, got .* choose"):
            read(tmp_path / name)
    monkeypatch.setattr(reading, "free_memory", lambda: 3 * size + 4000)
    assert read_arrays(tmp_path / "a.npz")["tokens"].shape == (1000, 100)


def test_much_that_is_packed_into_little_is_refused(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", tokens=np.zeros((1000, 100)))
    assert read_arrays(tmp_path / "a.npz")["tokens"].shape == (1000, 100)
    monkeypatch.setattr(reading, "PACKED_BYTES", 100_000)
    with pytest.raises(ValueError, match=r"GiB packed into a file of .* store it without compression"):
        read_arrays(tmp_path / "a.npz")


def test_a_long_text_is_refused(tmp_path, monkeypatch):
    (tmp_path / "a.json").write_text("[" + 1000 * "1, " + "1]")
    monkeypatch.setattr(reading, "free_memory", lambda: 1000)
    with pytest.raises(ValueError, match="choose a smaller file"):
        read_json(tmp_path / "a.json")


@each_case("key", ["value", "seed", "theory", "null", "interval", "at", "source", "further_nulls"])
@each_case("value", [{"a": 1}, [1, "b"], True, 10**400, "text", [[]], 2.5])
def test_a_row_with_a_value_of_another_type_is_one_line(tmp_path, key, value):
    row = {"theory": "crate", "kind": "on data", "quantity": "rate", "value": 1.0}
    (tmp_path / "table.jsonl").write_text(json.dumps(row | {key: value}) + "\n")
    with contextlib.suppress(ValueError):
        table = read_table(tmp_path / "table.jsonl")
        # what is accepted is a measurement whose columns have their types; empty nulls are dropped
        accepted = {"theory": str, "value": float, "seed": int, "at": dict, "further_nulls": list}
        assert type(value) is accepted[key]
        assert Result("x", table=table).to_pandas().shape[0] == 1
