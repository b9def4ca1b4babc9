"""A sandbox for programs that do not wait: :class:`forkd.Sandbox`, awaited."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from . import calls
from .async_commands import AsyncCommands
from .async_files import AsyncFiles
from .controller import branch_fields
from .errors import ControllerError, ForkdError
from .models import BranchMode, EvalResult
from .sandbox import DEFAULT_TAG, LEAST_SECS, NOT_FOUND, eval_result, value
from .transport import AsyncTransport, log


class AsyncSandbox:
    """A VM of one's own; see :class:`forkd.Sandbox`.

    ::

        async with AsyncSandbox("pyagent") as sandbox:
            await sandbox.eval("numpy.zeros(5).tolist()")

    It is there after ``await sandbox.start()``, which ``async with`` and :meth:`create` do by themselves.
    """

    info: dict[str, Any]
    commands: AsyncCommands
    files: AsyncFiles

    def __init__(
        self,
        tag: str | None = None,
        target: str | None = None,
        timeout: float = 30,
        *,
        spawn: bool = True,
        base_url: str | None = None,
        token: str | None = None,
        **options: Any,
    ) -> None:
        if not spawn and not target:
            raise ForkdError("spawn=False needs target, the id of a sandbox that lives")
        self._transport = AsyncTransport(base_url, token, max(timeout, LEAST_SECS))
        self._place = (base_url, token)
        self._tag = tag or os.environ.get("FORKD_TAG") or DEFAULT_TAG
        self._options = options
        self.timeout = timeout
        self.id = "" if spawn else str(target)
        self._ended = False

    @classmethod
    async def create(cls, *args: Any, **kwargs: Any) -> AsyncSandbox:
        return await cls(*args, **kwargs).start()

    @classmethod
    async def connect(cls, sandbox_id: str, **kwargs: Any) -> AsyncSandbox:
        """One that lives already."""
        return await cls(target=sandbox_id, spawn=False, **kwargs).start()

    async def start(self) -> AsyncSandbox:
        if self.id:
            return self._be(await self._transport.carry_out(calls.get_sandbox(self.id)))
        return self._be((await self._transport.carry_out(calls.spawn(self._tag, 1, self._options, None)))[0])

    def _be(self, info: dict[str, Any]) -> AsyncSandbox:
        self.info = info
        self.id = info["id"]
        self.commands = AsyncCommands(self._transport, self.id)
        self.files = AsyncFiles(self._transport, self.id)
        return self

    async def __aenter__(self) -> AsyncSandbox:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.kill()
        except ForkdError as failed:
            if error is None:
                raise
            log.warning("sandbox %s may be left behind: %s", self.id, failed)

    async def eval(self, code: str, timeout: float | None = None) -> Any:
        return value(await self.run_code(code, timeout))

    async def run_code(self, code: str, timeout: float | None = None) -> EvalResult:
        return eval_result(await self._transport.carry_out(calls.evaluate(self.id, code, timeout)))

    async def ping(self) -> dict[str, Any]:
        return await self._transport.carry_out(calls.act(self.id, "ping"))

    async def pause(self) -> None:
        await self._transport.carry_out(calls.act(self.id, "pause"))

    async def resume(self) -> None:
        await self._transport.carry_out(calls.act(self.id, "resume"))

    async def renew(self, ttl_secs: int | None) -> None:
        self.info = await self._transport.carry_out(calls.renew_sandbox(self.id, ttl_secs))

    async def branch(self, tag: str | None = None, mode: BranchMode | None = None, wait: bool = True) -> str:
        """Takes a snapshot as it is now, and runs on; the snapshot's tag."""
        taken = await self._transport.carry_out(calls.branch(self.id, branch_fields(tag, False, False, mode, wait)))
        return str(taken["tag"])

    async def fork(self, n: int = 1, **options: Any) -> Sequence[AsyncSandbox]:
        """``n`` sandboxes that go on from where this one is: all of them, or there is an error and none."""
        tag = await self.branch()
        try:
            spawned = await self._transport.carry_out(calls.spawn(tag, n, options, None))
            await self._transport.carry_out(calls.delete_snapshot(tag, False, False))
        except BaseException:
            await self._take_back(tag)
            raise
        return [self._twin(info) for info in spawned]

    async def _take_back(self, tag: str) -> None:
        """Removes a snapshot that was made to be forked once, and whatever was forked of it."""
        for one in await self._transport.attempt(calls.list_sandboxes({"snapshot_tag": tag})) or []:
            await self._transport.attempt(calls.kill_sandbox(one["id"]))
        await self._transport.attempt(calls.delete_snapshot(tag, False, False))

    def _twin(self, info: dict[str, Any]) -> AsyncSandbox:
        """One that is known to live, and need not be asked for."""
        base_url, token = self._place
        twin = AsyncSandbox(target=info["id"], spawn=False, base_url=base_url, token=token, timeout=self.timeout)
        return twin._be(info)

    async def kill(self) -> None:
        """Ends it; nothing of it is left. Twice is as good as once."""
        if self._ended or not self.id:
            return
        try:
            await self._transport.carry_out(calls.kill_sandbox(self.id))
        except ControllerError as error:
            if error.status != NOT_FOUND:
                raise
        self._ended = True
        await self._transport.close()
