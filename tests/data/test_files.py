"""Files that hold no TokenData are refused with one line; nothing is unpickled."""

import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.cases import each_case
from transformer_theory import data
from transformer_theory.data import TokenData

TOKENS = np.zeros((4, 3, 2))


class Armed:
    """Unpickling this would leave a trace."""

    def __init__(self, trace: Path):
        self.trace = trace

    def __reduce__(self):
        return (Path.touch, (self.trace,))


def refused(path, match):
    with pytest.raises(ValueError, match=match) as error:
        TokenData.from_npz(path)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_missing_file(tmp_path):
    refused(tmp_path / "no.npz", "no such file")


def test_without_tokens(tmp_path):
    np.savez(tmp_path / "a.npz", x=TOKENS, labels=np.zeros(4, int))
    refused(tmp_path / "a.npz", "must hold an array 'tokens'.* got x, labels")


def test_empty_archive(tmp_path):
    np.savez(tmp_path / "a.npz")
    refused(tmp_path / "a.npz", "got no array")


def test_unknown_array_with_the_nearest_name(tmp_path):
    np.savez(tmp_path / "a.npz", tokens=TOKENS, label=np.zeros(4, int))
    refused(tmp_path / "a.npz", "unknown array 'label'; did you mean 'labels'")


def test_object_arrays_are_never_unpickled(tmp_path):
    trace = tmp_path / "trace"
    harmful = np.array([Armed(trace)], dtype=object)
    for name in ("tokens", "labels"):
        np.savez(tmp_path / "a.npz", **{"tokens": TOKENS} | {name: harmful})
        refused(
            tmp_path / "a.npz",
            f"got {name} as an array of Python objects, which are never unpickled",
        )
    np.save(tmp_path / "b.npz.npy", harmful)
    refused(tmp_path / "b.npz.npy", "must be an .npz")
    assert not trace.exists()


def test_a_single_array(tmp_path):
    np.save(tmp_path / "a.npy", TOKENS)
    refused(tmp_path / "a.npy", r"must be an .npz \(a zip of arrays\).* numpy.savez")


def test_a_text_file_and_a_folder(tmp_path):
    (tmp_path / "a.npz").write_text("tokens")
    refused(tmp_path / "a.npz", "must be an .npz")
    refused(tmp_path, "must be a file, got a folder")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_file_cut_short(tmp_path, save):
    save(tmp_path / "a.npz", tokens=np.random.default_rng(0).normal(size=(40, 30, 2)))
    whole = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "b.npz").write_bytes(whole[: len(whole) // 2])
    refused(tmp_path / "b.npz", "cut short")


@each_case("save", [np.savez, np.savez_compressed])
@each_case("place", [60, 150, 400, 4000, -30])
def test_a_damaged_file(tmp_path, save, place):
    save(tmp_path / "a.npz", tokens=np.random.default_rng(0).normal(size=(40, 30, 2)))
    broken = bytearray((tmp_path / "a.npz").read_bytes())
    broken[place : place + 8] = bytes(255 - byte for byte in broken[place : place + 8])
    (tmp_path / "b.npz").write_bytes(broken)
    refused(tmp_path / "b.npz", "b.npz")


def test_a_member_that_is_no_array(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("tokens", "hello")
    refused(tmp_path / "a.npz", "got tokens as a file of another kind")


@each_case(
    ("fields", "message"),
    [
        (
            {"tokens": np.full((4, 3, 2), np.nan)},
            "a.npz: tokens must be finite, got 24 NaN or infinite values of 24, the first in sequence 0",
        ),
        ({"tokens": np.zeros((4, 3))}, r"tokens must have shape \[n, seq, dim\] .* got \[4, 3\]"),
        (
            {"tokens": np.zeros((4, 3, 2), dtype=complex)},
            "tokens must be an array of numbers, got dtype complex128",
        ),
        ({"tokens": np.full((4, 3, 2), "a")}, "tokens must be an array of numbers, got dtype <U1"),
        ({"labels": np.zeros(4)}, "labels must be integers, got dtype float64"),
        ({"labels": np.zeros(0, int)}, r"labels must have shape \[4\]"),
        (
            {"labels": np.array([0, 1, 2, 10**9])},
            r"labels must be 0..k-1 for k classes, got label 1000000000 with only 4 sequences; relabel",
        ),
        ({"ids": np.full((4, 3), 7), "vocab_size": 7}, r"ids must lie in \[0, 7\), got 7"),
        ({"vocab_size": np.array([1, 2])}, "vocab_size must be one integer"),
        ({"vocab_size": 2.5}, "vocab_size must be one integer"),
    ],
)
def test_fields_that_do_not_fit(unchecked, tmp_path, fields, message):
    np.savez(tmp_path / "a.npz", **{"tokens": TOKENS} | fields)
    assert refused(tmp_path / "a.npz", message).startswith(str(tmp_path / "a.npz"))


def test_the_first_bad_sequence_is_named(tmp_path):
    tokens = TOKENS.copy()
    tokens[2, 1, 0], tokens[3, 0, 0] = np.inf, np.nan
    np.savez(tmp_path / "a.npz", tokens=tokens)
    refused(
        tmp_path / "a.npz",
        r"got 2 NaN or infinite values of 24, the first in sequence 2 \(counted from 0\); drop or impute",
    )


def test_values_that_float32_cannot_hold_are_refused(tmp_path):
    tokens = np.ones((5, 3, 2))
    tokens[3, 1], tokens[1, 0] = -1e200, 1e16
    np.savez(tmp_path / "a.npz", tokens=tokens)
    words = (
        r"a.npz: tokens must stay within 1e\+15 in magnitude .* got largest 1e\+200 in sequence 3 \(counted "
        r"from 0\); rescale them"
    )
    refused(tmp_path / "a.npz", words)
    np.savez(tmp_path / "a.npz", tokens=np.ones((5, 3, 2)), query=np.full((5, 2), 1e16))
    refused(tmp_path / "a.npz", "query must stay within")
    np.savez(tmp_path / "a.npz", tokens=np.full((5, 3, 2), -1e15))
    assert len(TokenData.from_npz(tmp_path / "a.npz")) == 5


def test_a_label_too_large_for_one_sequence(tmp_path):
    np.savez(tmp_path / "a.npz", tokens=TOKENS[:1], labels=np.array([2]))
    refused(
        tmp_path / "a.npz",
        r"labels must be 0\.\.k-1 for k classes, got label 2 with only 1 sequence; relabel with numpy.unique",
    )


@each_case(
    ("name", "message"),
    [
        ("digit", "unknown data 'digit', neither .* did you mean 'digits'"),
        ("zzz", "unknown data 'zzz', neither .* there are: digits"),
        ("", "unknown data ''"),
        ("cifar1O", "unknown data 'cifar1O', neither .* did you mean 'cifar10'"),
        ("no/such.npz", "no such file: no/such.npz"),
        ("no.npz", "no such file: no.npz"),
    ],
)
def test_unknown_names_are_refused_with_a_suggestion(name, message):
    with pytest.raises(ValueError, match=message) as error:
        data.load(name)
    assert "\n" not in str(error.value)


def test_load_takes_a_path(tmp_path):
    np.savez(tmp_path / "a.npz", tokens=TOKENS)
    assert len(data.load(tmp_path / "a.npz")) == len(data.load(str(tmp_path / "a.npz"))) == 4
