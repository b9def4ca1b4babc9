"""Files of a sandbox."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any

from . import calls
from .models import FileInfo
from .transport import Transport

CHUNK_BYTES = 1 << 20


def pieces(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(CHUNK_BYTES):
        yield piece


@contextmanager
def replacing(to: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A file of ours, written beside its place and moved there when all of it has come; else nothing has changed."""
    if os.path.exists(to) and not os.path.isfile(to):
        # A pipe or a terminal is written to, and a directory is refused.
        with open(to, "wb") as file:
            yield file
        return
    place = os.path.realpath(to)
    beside = os.path.join(os.path.dirname(place), f".forkd-{secrets.token_hex(8)}")
    try:
        with open(beside, "xb") as file:
            if os.path.exists(place):
                shutil.copymode(place, beside)
            yield file
        os.replace(beside, place)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(beside)
        raise


class Files:
    """Files of a sandbox. Paths are absolute."""

    def __init__(self, transport: Transport, sandbox: str) -> None:
        self._transport = transport
        self._sandbox = sandbox

    def read(self, path: str) -> bytes:
        return self._transport.carry_out(calls.read_file(self._sandbox, path))

    def read_text(self, path: str) -> str:
        return self.read(path).decode()

    def write(self, path: str, data: str | bytes | IO[bytes], **fields: Any) -> FileInfo:
        """Replaces a file as a whole: ``mode="0644"``, ``parents=True``, ``user``. An open file is streamed."""
        raw = data.encode() if isinstance(data, str) else data if isinstance(data, bytes) else pieces(data)
        return self._transport.carry_out(calls.write_file(self._sandbox, path, raw, fields))

    def download(self, path: str, to: str | os.PathLike[str]) -> None:
        """Copies a file out, however big. If it does not come whole, what was there before is still there."""
        with self._transport.open(calls.read_file(self._sandbox, path)) as response, replacing(to) as file:
            for piece in response.iter_bytes():
                file.write(piece)

    def upload(self, source: str | os.PathLike[str], path: str, **fields: Any) -> FileInfo:
        """Copies a file in, however big."""
        with open(source, "rb") as file:
            return self.write(path, file, **fields)

    def stat(self, path: str) -> FileInfo:
        return self._transport.carry_out(calls.stat_file(self._sandbox, path))

    def list(self, path: str, depth: int = 1) -> Sequence[FileInfo]:
        return self._transport.carry_out(calls.list_files(self._sandbox, path, depth))

    def mkdir(self, path: str, *, parents: bool = True, mode: str | None = None) -> FileInfo:
        return self._transport.carry_out(calls.make_dir(self._sandbox, path, {"parents": parents, "mode": mode}))

    def move(self, source: str, to: str, *, overwrite: bool = False) -> FileInfo:
        return self._transport.carry_out(calls.move_file(self._sandbox, source, to, overwrite))

    def remove(self, path: str, *, recursive: bool = False) -> None:
        self._transport.carry_out(calls.remove_file(self._sandbox, path, recursive))
