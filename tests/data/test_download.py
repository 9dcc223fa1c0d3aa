"""Downloads from servers on this machine that stop, ignore ranges, send wrong bytes or refuse: the right
archive, or one line of why.
"""

import hashlib
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from transformer_theory import data
from transformer_theory.data import image_sets
from transformer_theory.data.download import BLOCK, Archive, data_folder, fetch

BODY = bytes(range(256)) * 2400
FILE = "cifar-10-python.tar.gz"


class Handler(BaseHTTPRequestHandler):
    """The path is what the server does: /whole, /cut, /drop (stops, then sends nothing), /no-range,
    /cut-no-range, /wrong, /long, /gone.
    """

    asked: list[tuple[str, str | None]]

    def do_GET(self):
        how, wanted = self.path.strip("/"), self.headers.get("Range")
        type(self).asked.append((how, wanted))
        body = bytes(len(BODY)) if how == "wrong" else BODY * 2 if how == "long" else BODY
        start = int(re.sub(r"\D", "", wanted)) if wanted and "no-range" not in how else 0
        if how == "gone":
            self.send_error(404)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        most = {
            "cut": len(BODY) // 3,
            "cut-no-range": len(BODY) // 3,
            "drop": 0 if start else len(BODY) // 3,
        }.get(how)
        self.wfile.write(body[start:][:most])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    """The address of the server, and what it was asked: pairs of path and range."""
    Handler.asked = []
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=lambda: running.serve_forever(poll_interval=0.01))
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}", Handler.asked
        running.shutdown()
        thread.join(10)


def archive(address: str, *ways: str) -> Archive:
    return Archive(FILE, len(BODY), hashlib.md5(BODY).hexdigest(), tuple(f"{address}/{way}" for way in ways))


def test_a_whole_file_with_a_line_for_each_tenth(server, tmp_path):
    lines = []
    path = fetch(archive(server[0], "whole"), tmp_path / "home", lines.append)
    assert path == tmp_path / "home" / FILE
    assert path.read_bytes() == BODY
    assert lines[0] == f"fetching {FILE} (1 MB) from 127.0.0.1 into {tmp_path / 'home'}"
    assert lines[-1].startswith(f"{FILE}: 100 % of")
    assert [file.name for file in path.parent.iterdir()] == [FILE]


def test_a_transfer_that_is_cut_off_goes_on(server, tmp_path):
    assert fetch(archive(server[0], "cut"), tmp_path, str).read_bytes() == BODY
    starts = [int(wanted.removeprefix("bytes=").removesuffix("-")) for _, wanted in server[1][1:]]
    assert server[1][0] == ("cut", None)
    assert starts == sorted(set(starts))
    assert len(starts) >= 2
    assert starts[0] == len(BODY) // 3 // BLOCK * BLOCK


def test_a_server_without_ranges_is_asked_for_the_whole(server, tmp_path):
    part = f".{FILE}.{hashlib.md5(f'{server[0]}/no-range'.encode()).hexdigest()[:8]}.part"
    (tmp_path / part).write_bytes(b"begun once")
    assert fetch(archive(server[0], "no-range"), tmp_path, str).read_bytes() == BODY
    assert server[1] == [("no-range", "bytes=10-")]


def test_the_next_call_goes_on_where_the_last_one_stopped(server, tmp_path):
    with pytest.raises(ValueError, match="interrupted"):
        fetch(archive(server[0], "drop"), tmp_path, str)
    assert not (tmp_path / FILE).exists()
    assert [file.suffix for file in tmp_path.iterdir()] == [".part"]
    held = next(tmp_path.iterdir())
    renamed = f".{FILE}.{hashlib.md5(f'{server[0]}/whole'.encode()).hexdigest()[:8]}.part"
    held.rename(tmp_path / renamed)  # as if the server were well again
    assert fetch(archive(server[0], "whole"), tmp_path, str).read_bytes() == BODY
    assert server[1][-1] == ("whole", f"bytes={len(BODY) // 3 // BLOCK * BLOCK}-")


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        ("wrong", "wrong checksum"),
        ("long", "more than its 614400 bytes"),
        ("gone", "status 404"),
        ("cut-no-range", "interrupted"),
    ],
)
def test_the_next_mirror_follows_one_that_fails(server, tmp_path, way, reason):
    lines = []
    assert fetch(archive(server[0], way, "whole"), tmp_path, lines.append).read_bytes() == BODY
    assert f"127.0.0.1: {reason}" in lines
    # no more is read of a stream than the archive has
    assert all(int(line.split()[1]) <= 100 for line in lines if " % of " in line)
    assert [file.name for file in tmp_path.iterdir()] == [FILE]


def test_all_mirrors_fail_in_one_line(server, tmp_path):
    closed = "http://127.0.0.1:9"
    with pytest.raises(ValueError, match="could not be fetched") as error:
        fetch(
            Archive(
                FILE, len(BODY), "0" * 32, (f"{server[0]}/wrong", f"{server[0]}/gone", f"{closed}/whole")
            ),
            tmp_path,
            str,
        )
    reasons = "127.0.0.1: wrong checksum; 127.0.0.1: status 404; 127.0.0.1: no connection"
    assert (
        str(error.value)
        == f"{FILE} could not be fetched ({reasons}); copy it into {tmp_path}, or pass the path of a copy"
    )
    assert not list(tmp_path.iterdir())


def test_a_wrong_file_is_not_taken_up_again(server, tmp_path):
    with pytest.raises(ValueError, match="wrong checksum"):
        fetch(archive(server[0], "wrong"), tmp_path, str)
    with pytest.raises(ValueError, match="wrong checksum"):
        fetch(archive(server[0], "wrong"), tmp_path, str)
    assert server[1] == [("wrong", None)] * 2


def test_a_bare_name_downloads_once(server, tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_THEORY_DATA", str(tmp_path / "home"))
    monkeypatch.setitem(image_sets.ARCHIVES, "cifar10", archive(server[0], "whole"))
    for _ in range(2):
        # the bytes are right, but no archive
        with pytest.raises(ValueError, match=f"{FILE} is not a .tar.gz"):
            data.images("cifar10", progress=str)
    assert len(server[1]) == 1


def test_a_folder_that_cannot_be_made(server, tmp_path):
    (tmp_path / "home").write_text("a file")
    with pytest.raises(
        ValueError, match=r"home cannot be created \(File exists\); set \$TRANSFORMER_THEORY_DATA to"
    ):
        fetch(archive(server[0], "whole"), tmp_path / "home", str)
    assert not server[1]


def test_where_data_lie(monkeypatch):
    monkeypatch.setenv("TRANSFORMER_THEORY_DATA", "~/mine")
    assert data_folder().name == "mine"
    assert "~" not in str(data_folder())
    monkeypatch.setenv("TRANSFORMER_THEORY_DATA", "")
    assert "transformer_theory" in str(data_folder())
