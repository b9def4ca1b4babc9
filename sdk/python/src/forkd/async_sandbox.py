"""A sandbox for programs that do not wait: :class:`forkd.Sandbox`, awaited."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import IO, Any

from . import calls
from .calls import Command
from .controller import branch_fields
from .errors import CommandError, ControllerError, ForkdError
from .models import BranchMode, CommandResult, EvalResult, ExecEvent, Exit, FileInfo, Output, ProcessInfo
from .sandbox import DEFAULT_TAG, NOT_FOUND, Hearer, eval_result, heard, pieces, value
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

        With ``on_stdout`` or ``on_stderr`` what it writes is handed over as it comes. With ``check`` a failure
        raises :class:`CommandError`.
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
        written: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        async for event in self.stream(args, timeout, **fields):
            if isinstance(event, Output):
                written[event.stream].append(event.data)
                hearer = hearers[event.stream]
                if hearer is not None:
                    hearer(event.text)
            elif isinstance(event, Exit):
                stdout, stderr = (b"".join(written[name]).decode("utf-8", "replace") for name in ("stdout", "stderr"))
                return CommandResult(stdout, stderr, event.exit_code, event.timed_out)
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
        """What is kept of its output, then what comes, to its end."""
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


class AsyncFiles:
    """Files of a sandbox. Paths are absolute."""

    def __init__(self, transport: AsyncTransport, sandbox: str) -> None:
        self._transport = transport
        self._sandbox = sandbox

    async def read(self, path: str) -> bytes:
        return await self._transport.carry_out(calls.read_file(self._sandbox, path)) or b""

    async def read_text(self, path: str) -> str:
        return (await self.read(path)).decode()

    async def write(self, path: str, data: str | bytes | IO[bytes], **fields: Any) -> FileInfo:
        """Replaces a file as a whole: ``mode="0644"``, ``parents=True``, ``user``. An open file is streamed."""
        raw = data.encode() if isinstance(data, str) else data if isinstance(data, bytes) else pieces(data)
        return await self._transport.carry_out(calls.write_file(self._sandbox, path, raw, fields))

    async def download(self, path: str, to: str | os.PathLike[str]) -> None:
        """Copies a file out, however big."""
        with open(to, "wb") as file:
            async with self._transport.open(calls.read_file(self._sandbox, path)) as response:
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
        self._transport = AsyncTransport(base_url, token, max(timeout, 60.0))
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
            self.info = await self._transport.carry_out(calls.get_sandbox(self.id))
        else:
            self.info = (await self._transport.carry_out(calls.spawn(self._tag, 1, self._options, None)))[0]
        self.id = self.info["id"]
        self.commands = AsyncCommands(self._transport, self.id)
        self.files = AsyncFiles(self._transport, self.id)
        return self

    async def __aenter__(self) -> AsyncSandbox:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.kill()

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
        self.info = await self._transport.carry_out(calls.update_sandbox(self.id, {"ttl_secs": ttl_secs}))

    async def branch(self, tag: str | None = None, mode: BranchMode | None = None, wait: bool = True) -> str:
        """Takes a snapshot as it is now, and runs on; the snapshot's tag."""
        taken = await self._transport.carry_out(calls.branch(self.id, branch_fields(tag, False, False, mode, wait)))
        return str(taken["tag"])

    async def fork(self, n: int = 1, **options: Any) -> Sequence[AsyncSandbox]:
        """``n`` sandboxes that go on from where this one is."""
        tag = await self.branch()
        try:
            spawned = await self._transport.carry_out(calls.spawn(tag, n, options, None))
        finally:
            await self._transport.carry_out(calls.delete_snapshot(tag, False, False))
        base_url, token = self._place
        return [
            await AsyncSandbox.connect(one["id"], base_url=base_url, token=token, timeout=self.timeout)
            for one in spawned
        ]

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
