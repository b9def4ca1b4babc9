"""Every request to the daemon, as data: what is sent, and how the answer is read.

Clients that wait and clients that do not differ only in how they carry a :class:`Call` out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable, Generic, TypeVar, Union
from urllib.parse import quote

from .models import CommandResult, FileInfo, ProcessInfo

T = TypeVar("T")
Json = dict[str, Any]
Command = Union[str, Sequence[str]]

GRACE_SECS = 15.0
"""How much longer than the guest's own time limit the answer is waited for."""


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request. ``patience`` is in seconds; without it the client's own holds."""

    method: str
    path: str
    read: Callable[[Any], T]
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    patience: float | None = None

    def params(self) -> list[tuple[str, str]]:
        """The query, without what was not said."""
        said = ((name, value) for name, value in self.query.items() if value is not None)
        flat = ((name, one) for name, value in said for one in (value if isinstance(value, list) else [value]))
        return [(name, str(one).lower() if isinstance(one, bool) else str(one)) for name, one in flat]


def known(**fields: Any) -> Json:
    """Only what was said."""
    return {name: value for name, value in fields.items() if value is not None}


def same(answer: Any) -> Any:
    return answer


def nothing(_answer: Any) -> None:
    return None


def argv(command: Command) -> list[str]:
    """A text is a line for the guest's shell, anything else is a program and its arguments."""
    return ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)


def path_of(*parts: str) -> str:
    """A path below ``/v1``, whatever is in its parts."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


# Snapshots


def list_snapshots() -> Call[list[Json]]:
    return Call("GET", path_of("snapshots"), same)


def create_snapshot(tag: str, fields: Json) -> Call[Json]:
    return Call("POST", path_of("snapshots"), same, body={"tag": tag, **known(**fields)}, patience=900.0)


def snapshot_info(tag: str) -> Call[Json]:
    return Call("GET", path_of("snapshots", tag, "info"), same)


def compact_snapshot(tag: str, to: str) -> Call[Json]:
    return Call("POST", path_of("snapshots", tag, "compact"), same, body={"to": to}, patience=900.0)


def delete_snapshot(tag: str, cascade: bool, force: bool) -> Call[None]:
    query = known(cascade=cascade or None, force=force or None)
    return Call("DELETE", path_of("snapshots", tag), nothing, query=query)


# Sandboxes


def spawn(snapshot_tag: str, n: int, fields: Json, idempotency_key: str | None) -> Call[list[Json]]:
    headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
    body = {"snapshot_tag": snapshot_tag, "n": n, **known(**fields)}
    return Call("POST", path_of("sandboxes"), same, body=body, headers=headers)


def list_sandboxes(query: Json) -> Call[list[Json]]:
    return Call("GET", path_of("sandboxes"), same, query=query)


def get_sandbox(sandbox: str) -> Call[Json]:
    return Call("GET", path_of("sandboxes", sandbox), same)


def kill_sandbox(sandbox: str) -> Call[None]:
    return Call("DELETE", path_of("sandboxes", sandbox), nothing)


def update_sandbox(sandbox: str, fields: Json) -> Call[Json]:
    return Call("PATCH", path_of("sandboxes", sandbox), same, body=fields)


def act(sandbox: str, what: str) -> Call[Json]:
    """``ping``, ``pause`` or ``resume``."""
    return Call("POST", path_of("sandboxes", sandbox, what), same)


def branch(sandbox: str, fields: Json) -> Call[Json]:
    return Call("POST", path_of("sandboxes", sandbox, "branch"), same, body=known(**fields), patience=900.0)


def execute(sandbox: str, args: list[str], timeout_secs: float, fields: Json) -> Call[Json]:
    body = {"args": args, "timeout_secs": timeout_secs, **known(**fields)}
    return Call("POST", path_of("sandboxes", sandbox, "exec"), same, body=body, patience=timeout_secs + GRACE_SECS)


def evaluate(sandbox: str, code: str, timeout_secs: float | None) -> Call[Json]:
    patience = None if timeout_secs is None else timeout_secs + GRACE_SECS
    body = known(code=code, timeout_secs=timeout_secs)
    return Call("POST", path_of("sandboxes", sandbox, "eval"), same, body=body, patience=patience)


def command_result(answer: Json) -> CommandResult:
    stdout, stderr = answer.get("stdout") or "", answer.get("stderr") or ""
    return CommandResult(stdout, stderr, int(answer["exit_code"]), bool(answer.get("timed_out")))


# Processes


def start_process(sandbox: str, args: list[str], fields: Json) -> Call[ProcessInfo]:
    return Call(
        "POST", path_of("sandboxes", sandbox, "processes"), ProcessInfo.of, body={"args": args, **known(**fields)}
    )


def list_processes(sandbox: str) -> Call[list[ProcessInfo]]:
    return Call("GET", path_of("sandboxes", sandbox, "processes"), lambda all_: [ProcessInfo.of(one) for one in all_])


def get_process(sandbox: str, process: str) -> Call[ProcessInfo]:
    return Call("GET", path_of("sandboxes", sandbox, "processes", process), ProcessInfo.of)


def forget_process(sandbox: str, process: str) -> Call[None]:
    return Call("DELETE", path_of("sandboxes", sandbox, "processes", process), nothing)


def signal_process(sandbox: str, process: str, signal: int | str) -> Call[None]:
    return Call("POST", path_of("sandboxes", sandbox, "processes", process, "signal"), nothing, body={"signal": signal})


def resize_process(sandbox: str, process: str, rows: int, cols: int) -> Call[None]:
    body = {"rows": rows, "cols": cols}
    return Call("POST", path_of("sandboxes", sandbox, "processes", process, "resize"), nothing, body=body)


def feed_process(sandbox: str, process: str, data: bytes, close: bool) -> Call[None]:
    query = known(close=close or None)
    return Call("POST", path_of("sandboxes", sandbox, "processes", process, "stdin"), nothing, query=query, body=data)


def process_output(sandbox: str, process: str) -> Call[None]:
    return Call("GET", path_of("sandboxes", sandbox, "processes", process, "output"), nothing)


# Files


def read_file(sandbox: str, path: str) -> Call[bytes]:
    return Call("GET", path_of("sandboxes", sandbox, "files"), bytes, query={"path": path})


def write_file(sandbox: str, path: str, data: Any, fields: Json) -> Call[FileInfo]:
    query = {"path": path, **known(**fields)}
    return Call("PUT", path_of("sandboxes", sandbox, "files"), FileInfo.of, query=query, body=data)


def stat_file(sandbox: str, path: str) -> Call[FileInfo]:
    return Call("GET", path_of("sandboxes", sandbox, "files", "stat"), FileInfo.of, query={"path": path})


def list_files(sandbox: str, path: str, depth: int) -> Call[list[FileInfo]]:
    query = {"path": path, "depth": depth}
    return Call(
        "GET",
        path_of("sandboxes", sandbox, "files", "list"),
        lambda all_: [FileInfo.of(one) for one in all_],
        query=query,
    )


def make_dir(sandbox: str, path: str, fields: Json) -> Call[FileInfo]:
    return Call(
        "POST", path_of("sandboxes", sandbox, "files", "mkdir"), FileInfo.of, body={"path": path, **known(**fields)}
    )


def move_file(sandbox: str, source: str, to: str, overwrite: bool) -> Call[FileInfo]:
    body = {"from": source, "to": to, "overwrite": overwrite}
    return Call("POST", path_of("sandboxes", sandbox, "files", "move"), FileInfo.of, body=body)


def remove_file(sandbox: str, path: str, recursive: bool) -> Call[None]:
    query = {"path": path, **known(recursive=recursive or None)}
    return Call("DELETE", path_of("sandboxes", sandbox, "files"), nothing, query=query)


# Workspaces and the rest


def workspace(method: str, name: str | None, what: str | None, body: Json | None) -> Call[Any]:
    parts = ["workspaces", *([] if name is None else [name]), *([] if what is None else [what])]
    return Call(method, path_of(*parts), same, body=body, patience=900.0)


def events(since: int | None) -> Call[None]:
    return Call("GET", path_of("events"), nothing, query=known(since=since))


def tree() -> Call[Json]:
    return Call("GET", path_of("tree"), same)


def version() -> Call[Json]:
    return Call("GET", "/version", same)
