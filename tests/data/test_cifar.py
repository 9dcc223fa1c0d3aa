"""CIFAR in its official forms, cut down to a few images: what is read, what it is called, and what is
refused.
"""

import contextlib
import gzip
import io
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest

from tests.cases import each_case
from transformer_theory import data
from transformer_theory.data import cifar
from transformer_theory.data.cifar import FORMS, read_cifar

PY10, BIN10, PY100, BIN100 = FORMS
FINE, COARSE = [f"fine{i}" for i in range(100)], [f"coarse{i}" for i in range(20)]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_THEORY_DATA", str(tmp_path / "home"))
    return tmp_path / "home"


def contents(form=PY10, each=2) -> dict[str, bytes]:
    """The files of a form: image i of file k is filled with 10 k + i in red, more in green and blue; labels
    count up.
    """
    files = {}
    for k, (name, part) in enumerate(form.parts.items()):
        n = part * each
        values = (10 * k + np.arange(n))[:, None] + np.repeat([0, 50, 100], 1024)
        pixels = values.astype(np.uint8)
        labels = [(i + k) % form.classes[0] for i in range(n)]
        coarse = [label // 5 for label in labels]
        if form.binary:
            fronts = [coarse, labels] if form.classes[1] else [labels]
            files[name] = np.concatenate([np.array(fronts, np.uint8).T, pixels], axis=1).tobytes()
        else:
            entries = (
                {"fine_labels": labels, "coarse_labels": coarse} if form.classes[1] else {"labels": labels}
            )
            files[name] = pickle.dumps({"data": pixels, "filenames": ["x.png"] * n, **entries}, protocol=2)
    names = {
        "batches.meta": {"label_names": FINE[:10]},
        "meta": {"fine_label_names": FINE, "coarse_label_names": COARSE},
    }
    lists = {"batches.meta.txt": FINE[:10], "fine_label_names.txt": FINE, "coarse_label_names.txt": COARSE}
    return files | {
        m: "\n".join(lists[m]).encode() if form.binary else pickle.dumps(names[m], protocol=2)
        for m in form.meta
    }


def folder(root: Path, form=PY10, **changed) -> Path:
    """A folder with the files of a form; None leaves one out."""
    root.mkdir(parents=True)
    for name, blob in (contents(form) | changed).items():
        if blob is not None:
            (root / name).write_bytes(blob)
    return root


def archive(path: Path, members, form=PY10) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for member in members:
            info = (
                member[0]
                if isinstance(member[0], tarfile.TarInfo)
                else tarfile.TarInfo(f"{form.folder}/{member[0]}")
            )
            info.size = len(member[1])
            tar.addfile(info, io.BytesIO(member[1]))
    return path


def refused(path, match):
    with pytest.raises(ValueError, match=match) as error:
        data.images(path)
    assert "\n" not in str(error.value)


@each_case("packed", [False, True])
@each_case("form", FORMS, ids=lambda form: form.folder)
def test_all_forms_hold_the_same(tmp_path, form, packed):
    path = (
        archive(tmp_path / form.archive, contents(form).items(), form)
        if packed
        else folder(tmp_path / form.folder, form)
    )
    train, test = data.images(path)
    assert train.name == test.name == f"{form.name} (not the official files)"
    assert (len(train), len(test), train.classes, train.channels, train.size) == (
        10,
        2,
        form.classes[0],
        3,
        32,
    )
    assert train.pixels[1, :, 5, 7].tolist() == [1, 51, 101]
    assert train.labels[:2].tolist() == [0, 1]
    assert test.pixels[0, 2, 0, 0] == 100 + 10 * (len(form.parts) - 1)
    assert test.labels[0] == len(form.parts) - 1
    assert train.names == tuple(FINE[: form.classes[0]])


@pytest.mark.parametrize("form", [PY100, BIN100], ids=lambda form: form.folder)
def test_coarse_classes_by_name(home, form):
    folder(home / form.folder, form)
    train, _ = data.images("cifar100-coarse")
    assert train.name == "cifar100-coarse (not the official files)"
    assert train.names == tuple(COARSE)
    assert train.labels.tolist() == [i // 5 for i in range(10)]
    assert data.images("cifar100")[0].labels.tolist() == list(range(10))


def test_official_files_are_called_so(tmp_path, monkeypatch):
    import hashlib

    for file, blob in contents().items():
        if file in PY10.checksums:
            monkeypatch.setitem(PY10.checksums, file, hashlib.md5(blob).hexdigest())
    assert data.images(folder(tmp_path / "a"))[0].name == "cifar10"
    changed = bytearray(contents()["data_batch_3"])
    changed[500] ^= 1
    assert (
        data.images(folder(tmp_path / "b", data_batch_3=bytes(changed)))[0].name
        == "cifar10 (not the official files)"
    )


def test_a_bare_name_looks_in_the_data_folder(home):
    archive(home / BIN10.archive, contents(BIN10).items(), BIN10)
    assert len(data.images("cifar10")[0]) == 10
    tokens = data.load("cifar10")
    assert tokens.tokens.shape == (10, 16, 192)
    assert tokens.name == "cifar10 (not the official files)"


def test_a_bare_name_finds_a_folder_of_images(home):
    from PIL import Image

    for place in ("train/cat/0.jpg", "train/dog/0.jpg", "test/cat/0.jpg"):
        (home / "cifar10" / place).parent.mkdir(parents=True)
        Image.new("RGB", (32, 32)).save(home / "cifar10" / place)
    assert data.images("cifar10")[0].name == "cifar10 (JPEG copy)"


class Armed:
    """Unpickling this would leave a trace."""

    def __init__(self, trace: Path):
        self.trace = trace

    def __reduce__(self):
        return (os.mkdir, (str(self.trace),))


def test_pickles_never_run_anything(tmp_path):
    trace = tmp_path / "trace"
    for k, harm in enumerate((Armed(trace), {"data": [Armed(trace)]})):
        blob = pickle.dumps(harm, protocol=2)
        refused(
            folder(tmp_path / str(k), data_batch_2=blob),
            r"data_batch_2 must be a file of CIFAR, got a pickle that refers to \w+.mkdir",
        )
    refused(
        folder(tmp_path / "eval", **{"batches.meta": b"cbuiltins\neval\n(S'1'\ntR."}),
        "refers to builtins.eval, which is never run",
    )
    assert not trace.exists()


def as_python_2(pixels: np.ndarray, labels: list[int]) -> bytes:
    """A batch byte by byte as Python 2 and the NumPy of its time wrote the official ones."""
    n = len(pixels)
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01K"
        + bytes([n])
        + b"M\x00\x0c\x86"
    )
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    raw = b"\x89T" + (n * 3072).to_bytes(4, "little") + pixels.tobytes() + b"tb"
    return (
        b"\x80\x02}(U\x04data"
        + array
        + dtype
        + raw
        + b"U\x06labels]("
        + b"".join(b"K" + bytes([k]) for k in labels)
        + b"eu."
    )


def test_pickles_of_python_2(tmp_path):
    pixels = np.random.default_rng(0).integers(256, size=(2, 3072), dtype=np.uint8)
    _, test = data.images(folder(tmp_path / "a", test_batch=as_python_2(pixels, [3, 9])))
    assert test.pixels.flatten(1).tolist() == pixels.tolist()
    assert test.labels.tolist() == [3, 9]


@each_case(
    ("held", "message"),
    [
        (np.zeros((2, 3072)), "an array of type 'f8' instead of uint8"),
        (np.array([None, "x"], dtype=object), "an array of type 'O8' instead of uint8"),
        (np.zeros((2, 3071), np.uint8), r"'data' other than an array of bytes \[n, 3072\]"),
        ([1, 2], r"'data' other than an array of bytes"),
    ],
)
def test_pickles_with_other_arrays(tmp_path, held, message):
    refused(
        folder(tmp_path / "a", test_batch=pickle.dumps({"data": held, "labels": [0, 1]}, protocol=2)),
        f"test_batch .*{message}",
    )


@each_case(
    "blob",
    [
        # an array of a terabyte
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I1000000000000\ntS'b'\ntR.",
        b"cnumpy\nndarray\n(I5\ntR.",  # the class itself
        b"K\x01r\xff\xff\xff\x7f0",  # a place in the memo that would take 32 GiB
        b"",
        b"hello",
        b"(lp0\n",
    ],
)
def test_pickles_that_are_made_to_harm_or_damaged(tmp_path, blob):
    refused(
        folder(tmp_path / "a", data_batch_1=blob),
        "data_batch_1 must be a file of CIFAR, got a (damaged or incomplete )?pickle",
    )


class OneLine(Exception):
    """What a damaged file should end in."""


def one_line(path):
    """Reads a folder; turns one line that names it into OneLine, and lets anything else through."""
    try:
        read_cifar(path)
    except ValueError as error:
        if str(path) in str(error) and "\n" not in str(error):
            raise OneLine from error
        raise


def test_damaged_pickles_end_in_one_line(tmp_path):
    whole, random = contents()["test_batch"], np.random.default_rng(0)
    path = folder(tmp_path / "a")
    for _ in range(60):
        broken = bytearray(whole)
        places = np.concatenate([random.integers(0, 300, 3), random.integers(len(whole) - 60, len(whole), 2)])
        for place in places:
            broken[place] = random.integers(256)
        (path / "test_batch").write_bytes(broken)
        with contextlib.suppress(OneLine):
            one_line(path)


@each_case(
    ("changed", "message"),
    [
        ({"data_batch_3": None}, "a lacks data_batch_3; unpack cifar-10-python.tar.gz again"),
        ({"batches.meta": None}, "a lacks batches.meta"),
        (
            {"data_batch_4": contents()["data_batch_4"][:3000]},
            "data_batch_4 .* got a damaged or incomplete pickle; get it again",
        ),
        (
            {"data_batch_5": contents(each=1)["data_batch_5"]},
            "whole files, got 1 images in data_batch_5, but 2 would fit the others",
        ),
        (
            {"test_batch": pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [0, 10]}, 2)},
            "labels from 0 to 10 where classes",
        ),
        (
            {"test_batch": pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [0, -1]}, 2)},
            "labels from -1 to 0 where classes",
        ),
        (
            {"test_batch": pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [0, 2**70]}, 2)},
            f"labels from 0 to {2**70} where",
        ),
        (
            {"test_batch": pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [0]}, 2)},
            "'labels' other than a list of 2 integers",
        ),
        (
            {"test_batch": pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": "ab"}, 2)},
            "'labels' other than a list of 2 integers",
        ),
        ({"test_batch": pickle.dumps([1, 2], 2)}, "a pickle without 'data' and 'labels'"),
        ({"batches.meta": pickle.dumps({}, 2)}, "no list of names under 'label_names'"),
        (
            {"batches.meta": pickle.dumps({"label_names": ["a"]}, 2)},
            "batches.meta must name 10 classes, got 1",
        ),
        (
            {"test_batch.bin": contents(BIN10)["test_batch.bin"]},
            "a file of cifar-10-batches-bin among those of cifar-10-batches-py",
        ),
    ],
)
def test_folders_that_are_not_whole(tmp_path, changed, message):
    refused(folder(tmp_path / "a", **changed), message)


@each_case(
    ("changed", "message"),
    [
        (
            {"data_batch_2.bin": contents(BIN10)["data_batch_2.bin"][:3073]},
            "got 1 images in data_batch_2.bin, but 2 would fit the others",
        ),
        (
            {"data_batch_2.bin": contents(BIN10)["data_batch_2.bin"][:-1]},
            "6145 bytes, not a multiple of a record of 3073",
        ),
        ({"data_batch_2.bin": b""}, "0 bytes, not a multiple"),
        ({"data_batch_2.bin": b"\x0b" + bytes(3072)}, "labels from 11 to 11 where classes are 0 to 9"),
    ],
)
def test_binary_files_that_are_not_whole(tmp_path, changed, message):
    refused(folder(tmp_path / "a", BIN10, **changed), message)


def test_half_a_file_of_cifar100(tmp_path):
    half = contents(BIN100, each=1)["train.bin"]
    refused(
        folder(tmp_path / "a", BIN100, **{"train.bin": half}),
        "got 5 images in train.bin, but 10 would fit the others",
    )


def test_a_file_without_rights(tmp_path, monkeypatch):
    path = folder(tmp_path / "a")

    def forbidden(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", forbidden)
    refused(path, r"data_batch_1 cannot be read \(Permission denied\); check its permissions")
    packed = archive(tmp_path / "a.tar.gz", contents().items())
    monkeypatch.setattr(gzip, "open", forbidden)
    refused(packed, r"a.tar.gz cannot be read \(Permission denied\)")


def test_archives_cut_short_damaged_or_none(tmp_path):
    whole = archive(tmp_path / "a.tar.gz", contents().items()).read_bytes()
    for k, blob in enumerate(
        (
            whole[: len(whole) // 2],
            whole[:-4],
            whole[:-8] + bytes(4) + whole[-4:],
            b"",
            b"hello",
            gzip.compress(b"hello"),
        )
    ):
        (tmp_path / f"{k}.tar.gz").write_bytes(blob)
        refused(
            tmp_path / f"{k}.tar.gz",
            r".tar.gz is not a .tar.gz, is damaged or incomplete \(.*\); get it again",
        )
    refused(
        archive(tmp_path / "other.tar.gz", [("readme.html", b"hello")]),
        "other.tar.gz must hold the files of CIFAR, got none of them",
    )


@pytest.mark.parametrize("name", ["../../evil", "/etc/evil", "cifar-10-batches-py/../../data_batch_1"])
def test_archives_that_point_out_of_their_folder(tmp_path, name):
    path = archive(tmp_path / "in" / "a.tar.gz", [(tarfile.TarInfo(name), b"evil"), *contents().items()])
    refused(path, "has a member outside its folder, '.*'; take the official archive")
    assert {file.name for file in tmp_path.rglob("*")} == {"in", "a.tar.gz"}


def test_archives_with_links_or_a_file_twice(tmp_path):
    link = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    rest = [(file, blob) for file, blob in contents().items() if file != "data_batch_1"]
    refused(archive(tmp_path / "a.tar.gz", [(link, b""), *rest]), "a.tar.gz lacks data_batch_1")
    refused(
        archive(tmp_path / "b.tar.gz", [*contents().items(), ("test_batch", contents()["test_batch"])]),
        "test_batch .* got two of that name",
    )


def test_archives_that_unpack_to_too_much(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar, "MAX_BYTES", 2**20)
    bomb = archive(tmp_path / "a.tar.gz", [("readme", bytes(2**21)), *contents().items()])
    assert bomb.stat().st_size < 2**17
    refused(bomb, "a.tar.gz unpacks to more than 1 MiB; take the official archive")
    sparse = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
    sparse.pax_headers = {
        "GNU.sparse.major": "0",
        "GNU.sparse.size": str(2**50),
        "GNU.sparse.map": "0,1",
    }  # one byte that claims a petabyte
    refused(
        archive(tmp_path / "b.tar.gz", [(sparse, b"x")]), "must hold the files of CIFAR, got none of them"
    )
    monkeypatch.setattr(cifar, "MAX_MEMBERS", 3)
    refused(
        archive(tmp_path / "c.tar.gz", [(str(k), b"") for k in range(5)]), "c.tar.gz has more than 3 members"
    )
