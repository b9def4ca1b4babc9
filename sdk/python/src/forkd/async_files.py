"""Files for programs that do not wait: :mod:`forkd.files`, awaited."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import IO, Any

from . import calls
from .files import pieces, replacing
from .models import FileInfo
from .transport import AsyncTransport


class AsyncFiles:
    """Files of a sandbox. Paths are absolute."""

    def __init__(self, transport: AsyncTransport, sandbox: str) -> None:
        self._transport = transport
        self._sandbox = sandbox

    async def read(self, path: str) -> bytes:
        return await self._transport.carry_out(calls.read_file(self._sandbox, path))

    async def read_text(self, path: str) -> str:
        return (await self.read(path)).decode()

    async def write(self, path: str, data: str | bytes | IO[bytes], **fields: Any) -> FileInfo:
        """Replaces a file as a whole: ``mode="0644"``, ``parents=True``, ``user``. An open file is streamed."""
        raw = data.encode() if isinstance(data, str) else data if isinstance(data, bytes) else pieces(data)
        return await self._transport.carry_out(calls.write_file(self._sandbox, path, raw, fields))

    async def download(self, path: str, to: str | os.PathLike[str]) -> None:
        """Copies a file out, however big. If it does not come whole, what was there before is still there."""
        async with self._transport.open(calls.read_file(self._sandbox, path)) as response:
            with replacing(to) as file:
                async for piece in response.aiter_bytes():
                    file.write(piece)

    async def upload(self, source: str | os.PathLike[str], path: str, **fields: Any) -> FileInfo:
        """Copies a file in, however big."""
        with open(source, "rb") as file:
            return await self.write(path, file, **fields)

    async def stat(self, path: str) -> FileInfo:
        return await self._transport.carry_out(calls.stat_file(self._sandbox, path))

    async def list(self, path: str, depth: int = 1) -> Sequence[FileInfo]:
        return await self._transport.carry_out(calls.list_files(self._sandbox, path, depth))

    async def mkdir(self, path: str, *, parents: bool = True, mode: str | None = None) -> FileInfo:
        return await self._transport.carry_out(calls.make_dir(self._sandbox, path, {"parents": parents, "mode": mode}))

    async def move(self, source: str, to: str, *, overwrite: bool = False) -> FileInfo:
        return await self._transport.carry_out(calls.move_file(self._sandbox, source, to, overwrite))

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        await self._transport.carry_out(calls.remove_file(self._sandbox, path, recursive))
