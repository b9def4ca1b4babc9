"""Commands for programs that do not wait: :mod:`forkd.commands`, awaited."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from . import calls
from .calls import Command
from .commands import Hearer, Written, heard
from .errors import CommandError, ForkdError
from .models import CommandResult, ExecEvent, Exit, Output, ProcessInfo
from .transport import AsyncTransport


class AsyncCommands:
    """Commands in a sandbox."""

    def __init__(self, transport: AsyncTransport, sandbox: str) -> None:
        self._transport = transport
        self._sandbox = sandbox

    async def run(
        self,
        cmd: Command,
        timeout: float = 30,
        *,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        on_stdout: Hearer | None = None,
        on_stderr: Hearer | None = None,
        check: bool = False,
    ) -> CommandResult:
        """Runs a command to its end. A text is a line for the guest's shell.

        With ``on_stdout`` or ``on_stderr`` what it writes is handed over as it comes, all of it; the result has the
        first 8 MiB of each. With ``check`` a failure raises :class:`CommandError`.
        """
        args = calls.argv(cmd)
        fields = {"stdin": stdin, "env": None if env is None else dict(env), "cwd": cwd, "user": user}
        if on_stdout is None and on_stderr is None:
            answer = await self._transport.carry_out(calls.execute(self._sandbox, args, timeout, fields))
            result = calls.command_result(answer)
        else:
            result = await self._streamed(args, timeout, fields, {"stdout": on_stdout, "stderr": on_stderr})
        if check and result.exit_code != 0:
            raise CommandError(args, result.exit_code, result.stderr)
        return result

    async def stream(self, cmd: Command, timeout: float = 30, **fields: Any) -> AsyncIterator[ExecEvent]:
        """What a command does, as it does it; the last event is its :class:`Exit`. Leaving the loop ends it."""
        call = calls.execute(self._sandbox, calls.argv(cmd), timeout, {**fields, "stream": True})
        async for event in self._transport.events(call):
            told = heard(event)
            if told is not None:
                yield told

    async def _streamed(
        self, args: list[str], timeout: float, fields: dict[str, Any], hearers: dict[str, Hearer | None]
    ) -> CommandResult:
        written = Written()
        async for event in self.stream(args, timeout, **fields):
            if isinstance(event, Output):
                written.take(event)
                hearer = hearers[event.stream]
                if hearer is not None:
                    hearer(event.text)
            elif isinstance(event, Exit):
                return written.result(event)
        raise ForkdError("the daemon did not say how the command ended")

    # Processes that live on without us

    async def start(self, cmd: Command, **fields: Any) -> AsyncProcess:
        """Starts a process that outlives this client: ``env``, ``cwd``, ``user``, ``tty={"rows": .., "cols": ..}``."""
        info = await self._transport.carry_out(calls.start_process(self._sandbox, calls.argv(cmd), fields))
        return AsyncProcess(self._transport, self._sandbox, info)

    async def list(self) -> Sequence[ProcessInfo]:
        return await self._transport.carry_out(calls.list_processes(self._sandbox))

    async def attach(self, process_id: str) -> AsyncProcess:
        info = await self._transport.carry_out(calls.get_process(self._sandbox, process_id))
        return AsyncProcess(self._transport, self._sandbox, info)


class AsyncProcess:
    """A process in a sandbox that lives on without clients."""

    def __init__(self, transport: AsyncTransport, sandbox: str, info: ProcessInfo) -> None:
        self._transport = transport
        self._sandbox = sandbox
        self.info = info

    @property
    def id(self) -> str:
        return self.info.id

    async def output(self) -> AsyncIterator[ExecEvent]:
        """What is kept of its output, then what comes, to its end; :class:`Skipped` where something is not kept."""
        async for event in self._transport.events(calls.process_output(self._sandbox, self.id)):
            told = heard(event)
            if told is not None:
                yield told

    async def wait(self) -> Exit:
        async for event in self.output():
            if isinstance(event, Exit):
                return event
        raise ForkdError("the daemon did not say how the process ended")

    async def write(self, data: str | bytes, *, close: bool = False) -> None:
        raw = data.encode() if isinstance(data, str) else data
        await self._transport.carry_out(calls.feed_process(self._sandbox, self.id, raw, close))

    async def signal(self, signal: int | str = "TERM") -> None:
        await self._transport.carry_out(calls.signal_process(self._sandbox, self.id, signal))

    async def resize(self, rows: int, cols: int) -> None:
        await self._transport.carry_out(calls.resize_process(self._sandbox, self.id, rows, cols))

    async def kill(self) -> None:
        """Ends it and forgets it."""
        await self._transport.carry_out(calls.forget_process(self._sandbox, self.id))
