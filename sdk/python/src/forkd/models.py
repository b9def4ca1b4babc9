"""What is handed out: plain data."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any, Literal, Union

BranchMode = Literal["full", "diff", "live"]
"""How a branch is stored. ``diff`` and ``live`` keep only what differs from the snapshot below."""


@dataclass(frozen=True)
class CommandResult:
    """How a command ended, and what it wrote: the first 8 MiB of each; ``truncated`` says that there was more."""

    stdout: str
    stderr: str
    exit_code: int
    timed_out: bool = False
    stdout_truncated: bool = False
    stderr_truncated: bool = False


@dataclass(frozen=True)
class EvalOutput:
    """One thing that code showed, such as a plot or a table, in all forms it has."""

    kind: Literal["result", "display"]
    data: dict[str, str]
    """The forms by media type; base64 where a form is not text."""

    @property
    def png(self) -> bytes | None:
        """The picture, if it is one."""
        encoded = self.data.get("image/png")
        return None if encoded is None else base64.b64decode(encoded)

    @property
    def html(self) -> str | None:
        return self.data.get("text/html")


@dataclass(frozen=True)
class EvalResult:
    """What an evaluation gave: the value as its interpreter shows it, and as JSON where that has it.

    ``outputs`` are plots and tables, of interpreters that show them.
    """

    result: str | None
    result_json: str | None
    stdout: str
    stderr: str = ""
    outputs: list[EvalOutput] = field(default_factory=list)


@dataclass(frozen=True)
class FileInfo:
    """A file of the guest's."""

    path: str
    name: str
    kind: Literal["file", "dir", "symlink", "other"]
    size: int
    mode: str
    uid: int
    gid: int
    mtime_unix: float
    target: str | None = None

    @classmethod
    def of(cls, data: dict[str, Any]) -> FileInfo:
        return cls(**{name: data.get(name) for name in cls.__dataclass_fields__})  # type: ignore[arg-type]


@dataclass(frozen=True)
class ProcessInfo:
    """A process that lives on without clients."""

    id: str
    args: list[str]
    status: Literal["running", "exited"]
    started_at_unix: float
    cwd: str | None = None
    user: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool | None = None
    tty: Any = None
    pid: int | None = None

    @classmethod
    def of(cls, data: dict[str, Any]) -> ProcessInfo:
        known = {name: data.get(name) for name in cls.__dataclass_fields__}
        known["id"] = str(data["id"])
        return cls(**known)  # type: ignore[arg-type]


class Page(list[dict[str, Any]]):
    """A part of a list; ``next_cursor`` is where the next one begins, ``None`` if there is none."""

    next_cursor: str | None = None


@dataclass(frozen=True)
class Event:
    """One thing that changed, as ``/v1/events`` tells it."""

    id: int
    kind: str
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Output:
    """A piece of what a process wrote, in its order."""

    stream: Literal["stdout", "stderr"]
    data: bytes

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True)
class Skipped:
    """Here a process wrote so much that is not kept any more."""

    bytes: int


@dataclass(frozen=True)
class Exit:
    """How a process ended; the last thing that is heard of it."""

    exit_code: int
    signal: int | None = None
    timed_out: bool = False


@dataclass(frozen=True)
class Started:
    """The first thing that is heard of a process."""

    process_id: str | None = None


ExecEvent = Union[Started, Output, Skipped, Exit]


def exec_event(name: str, data: dict[str, Any]) -> ExecEvent | None:
    """An event of a process; ``None`` for one of a later version, which is passed over."""
    if name in ("stdout", "stderr"):
        raw = data.get("data", "")
        binary = base64.b64decode(raw) if data.get("encoding") == "base64" else raw.encode()
        return Output("stdout" if name == "stdout" else "stderr", binary)
    if name == "exit":
        return Exit(int(data["exit_code"]), data.get("signal"), bool(data.get("timed_out")))
    if name == "skipped":
        return Skipped(int(data["bytes"]))
    if name == "started":
        process_id = data.get("process_id")
        return Started(None if process_id is None else str(process_id))
    return None
