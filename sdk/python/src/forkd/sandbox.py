"""A sandbox as one works with it: commands, files, evaluations, forks and branches."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import IO, Any, Callable

from . import calls
from .calls import Command
from .controller import branch_fields
from .errors import CommandError, ControllerError, EvalError, ForkdError
from .models import BranchMode, CommandResult, EvalResult, ExecEvent, Exit, FileInfo, Output, ProcessInfo, exec_event
from .transport import Transport

DEFAULT_TAG = "pyagent"
CHUNK_BYTES = 1 << 20
NOT_FOUND = 404

Hearer = Callable[[str], Any]


def eval_result(answer: dict[str, Any]) -> EvalResult:
    """What an evaluation gave; raises what it raised."""
    if answer.get("error"):
        raise EvalError(answer["error"], answer.get("traceback"))
    return EvalResult(answer.get("result"), answer.get("result_json"), answer.get("stdout") or "")


def value(result: EvalResult) -> Any:
    """JSON where the interpreter speaks it, else the value's ``repr``."""
    if result.result is None and result.result_json is not None:
        return json.loads(result.result_json)
    return result.result


def heard(event: tuple[str | None, str, dict[str, Any]]) -> ExecEvent | None:
    """An event of a running command; raises when the daemon lost it."""
    _, name, data = event
    if name == "error":
        raise ForkdError(f"{data.get('error')} ({data.get('code')})")
    return exec_event(name, data)


def pieces(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(CHUNK_BYTES):
        yield piece


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

        With ``on_stdout`` or ``on_stderr`` what it writes is handed over as it comes. With ``check`` a failure
        raises :class:`CommandError`.
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
        written: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        for event in self.stream(args, timeout, **fields):
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
        """What is kept of its output, then what comes, to its end."""
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


class Files:
    """Files of a sandbox. Paths are absolute."""

    def __init__(self, transport: Transport, sandbox: str) -> None:
        self._transport = transport
        self._sandbox = sandbox

    def read(self, path: str) -> bytes:
        return self._transport.carry_out(calls.read_file(self._sandbox, path)) or b""

    def read_text(self, path: str) -> str:
        return self.read(path).decode()

    def write(self, path: str, data: str | bytes | IO[bytes], **fields: Any) -> FileInfo:
        """Replaces a file as a whole: ``mode="0644"``, ``parents=True``, ``user``. An open file is streamed."""
        raw = data.encode() if isinstance(data, str) else data if isinstance(data, bytes) else pieces(data)
        return self._transport.carry_out(calls.write_file(self._sandbox, path, raw, fields))

    def download(self, path: str, to: str | os.PathLike[str]) -> None:
        """Copies a file out, however big."""
        with open(to, "wb") as file, self._transport.open(calls.read_file(self._sandbox, path)) as response:
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


class Sandbox:
    """A VM of one's own, forked from a warm snapshot.

    ::

        with Sandbox("pyagent") as sandbox:
            sandbox.eval("numpy.zeros(5).tolist()")
            sandbox.commands.run("ls /")

    Any number of them may live at once. ``target`` with ``spawn=False`` names one that lives already.
    """

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
        self._transport = Transport(base_url, token, max(timeout, 60.0))
        self._place = (base_url, token)
        self.timeout = timeout
        self._ended = False
        if spawn:
            said = tag or os.environ.get("FORKD_TAG") or DEFAULT_TAG
            self.info = self._transport.carry_out(calls.spawn(said, 1, options, None))[0]
        elif target:
            self.info = self._transport.carry_out(calls.get_sandbox(target))
        else:
            raise ForkdError("spawn=False needs target, the id of a sandbox that lives")
        self.id: str = self.info["id"]
        self.commands = Commands(self._transport, self.id)
        self.files = Files(self._transport, self.id)

    @classmethod
    def create(cls, *args: Any, **kwargs: Any) -> Sandbox:
        return cls(*args, **kwargs)

    @classmethod
    def connect(cls, sandbox_id: str, **kwargs: Any) -> Sandbox:
        """One that lives already."""
        return cls(target=sandbox_id, spawn=False, **kwargs)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def eval(self, code: str, timeout: float | None = None) -> Any:
        """Evaluates in the warm interpreter, whose state lasts as long as the sandbox."""
        return value(self.run_code(code, timeout))

    def run_code(self, code: str, timeout: float | None = None) -> EvalResult:
        """The same, with what it printed."""
        return eval_result(self._transport.carry_out(calls.evaluate(self.id, code, timeout)))

    def ping(self) -> dict[str, Any]:
        return self._transport.carry_out(calls.act(self.id, "ping"))

    def pause(self) -> None:
        self._transport.carry_out(calls.act(self.id, "pause"))

    def resume(self) -> None:
        self._transport.carry_out(calls.act(self.id, "resume"))

    def renew(self, ttl_secs: int | None) -> None:
        self.info = self._transport.carry_out(calls.update_sandbox(self.id, {"ttl_secs": ttl_secs}))

    def branch(self, tag: str | None = None, mode: BranchMode | None = None, wait: bool = True) -> str:
        """Takes a snapshot as it is now, and runs on; the snapshot's tag."""
        taken = self._transport.carry_out(calls.branch(self.id, branch_fields(tag, False, False, mode, wait)))
        return str(taken["tag"])

    def fork(self, n: int = 1, **options: Any) -> Sequence[Sandbox]:
        """``n`` sandboxes that go on from where this one is. The snapshot between is removed when they are there."""
        tag = self.branch()
        try:
            spawned = self._transport.carry_out(calls.spawn(tag, n, options, None))
        finally:
            self._transport.carry_out(calls.delete_snapshot(tag, False, False))
        base_url, token = self._place
        return [Sandbox.connect(one["id"], base_url=base_url, token=token, timeout=self.timeout) for one in spawned]

    def kill(self) -> None:
        """Ends it; nothing of it is left. Twice is as good as once."""
        if self._ended:
            return
        try:
            self._transport.carry_out(calls.kill_sandbox(self.id))
        except ControllerError as error:
            if error.status != NOT_FOUND:
                raise
        self._ended = True
        self._transport.close()
