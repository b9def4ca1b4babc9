"""Commands of a sandbox, and processes that outlive their clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable

from . import calls
from .calls import Command
from .errors import CommandError, ForkdError
from .models import CommandResult, ExecEvent, Exit, Output, ProcessInfo, exec_event
from .transport import Told, Transport

Hearer = Callable[[str], Any]

KEPT_BYTES = 8 << 20
"""How much of each output is kept for a result, whoever keeps it: the daemon does the same."""


def heard(event: Told) -> ExecEvent | None:
    """An event of a running command; raises when the daemon lost it."""
    _, name, data = event
    if name == "error":
        raise ForkdError(f"{data.get('error')} ({data.get('code')})")
    return exec_event(name, data)


class Written:
    """What a command wrote, as far as it is kept."""

    def __init__(self) -> None:
        self._kept = {"stdout": bytearray(), "stderr": bytearray()}
        self._truncated = {"stdout": False, "stderr": False}

    def take(self, output: Output) -> None:
        kept = self._kept[output.stream]
        room = KEPT_BYTES - len(kept)
        kept += output.data[:room]
        self._truncated[output.stream] |= len(output.data) > room

    def result(self, end: Exit) -> CommandResult:
        stdout, stderr = (kept.decode("utf-8", "replace") for kept in self._kept.values())
        return CommandResult(stdout, stderr, end.exit_code, end.timed_out, *self._truncated.values())


class Commands:
    """Commands in a sandbox."""

    def __init__(self, transport: Transport, sandbox: str) -> None:
        self._transport = transport
        self._sandbox = sandbox

    def run(
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
            result = calls.command_result(
                self._transport.carry_out(calls.execute(self._sandbox, args, timeout, fields))
            )
        else:
            result = self._streamed(args, timeout, fields, {"stdout": on_stdout, "stderr": on_stderr})
        if check and result.exit_code != 0:
            raise CommandError(args, result.exit_code, result.stderr)
        return result

    def stream(self, cmd: Command, timeout: float = 30, **fields: Any) -> Iterator[ExecEvent]:
        """What a command does, as it does it; the last event is its :class:`Exit`. Leaving the loop ends it."""
        call = calls.execute(self._sandbox, calls.argv(cmd), timeout, {**fields, "stream": True})
        for event in self._transport.events(call):
            told = heard(event)
            if told is not None:
                yield told

    def _streamed(
        self, args: list[str], timeout: float, fields: dict[str, Any], hearers: dict[str, Hearer | None]
    ) -> CommandResult:
        written = Written()
        for event in self.stream(args, timeout, **fields):
            if isinstance(event, Output):
                written.take(event)
                hearer = hearers[event.stream]
                if hearer is not None:
                    hearer(event.text)
            elif isinstance(event, Exit):
                return written.result(event)
        raise ForkdError("the daemon did not say how the command ended")

    # Processes that live on without us

    def start(self, cmd: Command, **fields: Any) -> Process:
        """Starts a process that outlives this client: ``env``, ``cwd``, ``user``, ``tty={"rows": .., "cols": ..}``."""
        info = self._transport.carry_out(calls.start_process(self._sandbox, calls.argv(cmd), fields))
        return Process(self._transport, self._sandbox, info)

    def list(self) -> Sequence[ProcessInfo]:
        return self._transport.carry_out(calls.list_processes(self._sandbox))

    def attach(self, process_id: str) -> Process:
        info = self._transport.carry_out(calls.get_process(self._sandbox, process_id))
        return Process(self._transport, self._sandbox, info)


class Process:
    """A process in a sandbox that lives on without clients."""

    def __init__(self, transport: Transport, sandbox: str, info: ProcessInfo) -> None:
        self._transport = transport
        self._sandbox = sandbox
        self.info = info

    @property
    def id(self) -> str:
        return self.info.id

    def output(self) -> Iterator[ExecEvent]:
        """What is kept of its output, then what comes, to its end; :class:`Skipped` where something is not kept."""
        for event in self._transport.events(calls.process_output(self._sandbox, self.id)):
            told = heard(event)
            if told is not None:
                yield told

    def wait(self) -> Exit:
        for event in self.output():
            if isinstance(event, Exit):
                return event
        raise ForkdError("the daemon did not say how the process ended")

    def write(self, data: str | bytes, *, close: bool = False) -> None:
        raw = data.encode() if isinstance(data, str) else data
        self._transport.carry_out(calls.feed_process(self._sandbox, self.id, raw, close))

    def signal(self, signal: int | str = "TERM") -> None:
        self._transport.carry_out(calls.signal_process(self._sandbox, self.id, signal))

    def resize(self, rows: int, cols: int) -> None:
        self._transport.carry_out(calls.resize_process(self._sandbox, self.id, rows, cols))

    def kill(self) -> None:
        """Ends it and forgets it."""
        self._transport.carry_out(calls.forget_process(self._sandbox, self.id))
