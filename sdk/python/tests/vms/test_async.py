"""The same for asyncio."""

from __future__ import annotations

import asyncio

from forkd import AsyncSandbox


def test_many_at_once(tag: str) -> None:
    async def work(n: int) -> tuple[str, str, bytes]:
        async with AsyncSandbox(tag) as sandbox:
            heard: list[str] = []
            ran = await sandbox.commands.run(f"echo {n}", on_stdout=heard.append)
            await sandbox.files.write("/root/n", str(n))
            assert "".join(heard) == ran.stdout
            return str(await sandbox.eval(f"{n} + 1")), ran.stdout, await sandbox.files.read("/root/n")

    async def all_of_them() -> list[tuple[str, str, bytes]]:
        return await asyncio.gather(*(work(n) for n in range(3)))

    expected = [(str(n + 1), f"{n}\n", str(n).encode()) for n in range(3)]
    assert asyncio.run(all_of_them()) == expected
