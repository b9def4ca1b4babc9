"""Every request to the daemon, as data: what is sent, and how the answer is read.

Clients that wait and clients that do not differ only in how they carry a :class:`Call` out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable, Generic, TypeVar, Union
from urllib.parse import quote

from .models import CommandResult, FileInfo, Page, ProcessInfo

T = TypeVar("T")
Json = dict[str, Any]
Command = Union[str, Sequence[str]]

# Whoever asks waits a little longer than the daemon does, whose answer says more than that there is none.
EXEC_GRACE_SECS = 45.0
"""The daemon gives a command 30 s more than its own limit."""
EVAL_GRACE_SECS = 150.0
"""It gives code 120 s more than twice its limit: it may have to wait for that of others, and for an interpreter."""
EVAL_SECS = 30.0
"""How long code may take when nobody says."""
GUEST_SECS = 120.0
"""It waits up to 90 s for what a guest does at once."""
LONG_SECS = 900.0
"""For what writes, reads or removes as much as there is."""
ENDLESS = math.inf
"""A stream may be silent for as long as it likes."""


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


def contents(answer: bytes | None) -> bytes:
    return answer or b""


def text(answer: bytes | None) -> str:
    return contents(answer).decode("utf-8", "replace")


def argv(command: Command) -> list[str]:
    """A text is a line for the guest's shell, anything else is a program and its arguments."""
    return ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)


def path_of(*parts: str) -> str:
    """A path below ``/v1``, whatever is in its parts."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


# Snapshots


def list_snapshots() -> Call[list[Json]]:
    return Call("GET", path_of("snapshots"), same)


def build_image(fields: Json) -> Call[Json]:
    return Call("POST", path_of("images"), same, body=known(**fields), patience=LONG_SECS)


def create_snapshot(tag: str, fields: Json) -> Call[Json]:
    return Call("POST", path_of("snapshots"), same, body={"tag": tag, **known(**fields)}, patience=LONG_SECS)


def snapshot_info(tag: str) -> Call[Json]:
    return Call("GET", path_of("snapshots", tag, "info"), same)


def compact_snapshot(tag: str, to: str) -> Call[Json]:
    return Call("POST", path_of("snapshots", tag, "compact"), same, body={"to": to}, patience=LONG_SECS)


def delete_snapshot(tag: str, cascade: bool, force: bool) -> Call[None]:
    query = known(cascade=cascade or None, force=force or None)
    return Call("DELETE", path_of("snapshots", tag), nothing, query=query)


def fork_snapshot(tag: str, n: int, fields: Json) -> Call[Json]:
    return Call("POST", path_of("snapshots", tag, "fork"), same, body={"n": n, **known(**fields)}, patience=LONG_SECS)


# Packs: snapshots with all they are made of, in one file


def pack(tag: str, words: Json) -> Call[bytes]:
    return Call("GET", path_of("snapshots", tag, "pack"), contents, query=words, patience=LONG_SECS)


def pack_progress() -> Call[None]:
    return Call("GET", path_of("packs", "progress"), nothing, patience=ENDLESS)


def unpack(pack: Any, tag: str | None, force: bool, watch: str | None) -> Call[list[Json]]:
    query = known(tag=tag, force=force or None, watch=watch)
    headers = {"Content-Type": "application/zstd"}
    return Call("POST", path_of("packs"), same, query=query, body=pack, headers=headers, patience=LONG_SECS)


def pull(source: str, fields: Json) -> Call[list[Json]]:
    return Call("POST", path_of("packs", "pull"), same, body={"source": source, **known(**fields)}, patience=LONG_SECS)


def push(tag: str, url: str, words: Json) -> Call[Json]:
    body = {"url": url, **known(**words)}
    return Call("POST", path_of("snapshots", tag, "push"), same, body=body, patience=LONG_SECS)


# The store as a whole


def store() -> Call[Json]:
    return Call("GET", path_of("store"), same)


def garbage() -> Call[Json]:
    return Call("GET", path_of("store", "garbage"), same)


def collect_garbage() -> Call[Json]:
    return Call("DELETE", path_of("store", "garbage"), same, patience=LONG_SECS)


def verify(tags: Sequence[str]) -> Call[Json]:
    return Call("POST", path_of("store", "verify"), same, body={"tags": list(tags)}, patience=LONG_SECS)


# Sandboxes


def spawn(snapshot_tag: str, n: int, fields: Json, idempotency_key: str | None) -> Call[list[Json]]:
    headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
    body = {"snapshot_tag": snapshot_tag, "n": n, **known(**fields)}
    return Call("POST", path_of("sandboxes"), same, body=body, headers=headers, patience=LONG_SECS)


def list_sandboxes(query: Json) -> Call[Page]:
    return Call("GET", path_of("sandboxes"), Page, query=query)


def get_sandbox(sandbox: str) -> Call[Json]:
    return Call("GET", path_of("sandboxes", sandbox), same)


def kill_sandbox(sandbox: str) -> Call[None]:
    return Call("DELETE", path_of("sandboxes", sandbox), nothing)


def update_sandbox(sandbox: str, fields: Json) -> Call[Json]:
    return Call("PATCH", path_of("sandboxes", sandbox), same, body=fields)


def renew_sandbox(sandbox: str, ttl_secs: int | None) -> Call[Json]:
    return Call("POST", path_of("sandboxes", sandbox, "renew"), same, body={"ttl_secs": ttl_secs})


def network_info(sandbox: str) -> Call[Json]:
    return Call("GET", path_of("sandboxes", sandbox, "net"), same)


def set_egress(sandbox: str, fields: Json) -> Call[Json]:
    return Call("PUT", path_of("sandboxes", sandbox, "egress"), same, body=known(**fields))


def act(sandbox: str, what: str) -> Call[Json]:
    """``ping``, ``pause`` or ``resume``."""
    return Call("POST", path_of("sandboxes", sandbox, what), same, patience=GUEST_SECS)


def console(sandbox: str, tail: int | None, follow: bool) -> Call[str]:
    query = known(tail=tail, follow=follow or None)
    patience = ENDLESS if follow else None
    return Call("GET", path_of("sandboxes", sandbox, "console"), text, query=query, patience=patience)


def branch(sandbox: str, fields: Json) -> Call[Json]:
    return Call("POST", path_of("sandboxes", sandbox, "branch"), same, body=known(**fields), patience=LONG_SECS)


def execute(sandbox: str, args: list[str], timeout_secs: float, fields: Json) -> Call[Json]:
    body = {"args": args, "timeout_secs": timeout_secs, **known(**fields)}
    patience = ENDLESS if fields.get("stream") else timeout_secs + EXEC_GRACE_SECS
    return Call("POST", path_of("sandboxes", sandbox, "exec"), same, body=body, patience=patience)


def evaluate(sandbox: str, code: str, timeout_secs: float | None) -> Call[Json]:
    patience = 2 * (EVAL_SECS if timeout_secs is None else timeout_secs) + EVAL_GRACE_SECS
    body = known(code=code, timeout_secs=timeout_secs)
    return Call("POST", path_of("sandboxes", sandbox, "eval"), same, body=body, patience=patience)


def command_result(answer: Json) -> CommandResult:
    stdout, stderr = answer.get("stdout") or "", answer.get("stderr") or ""
    flags = (bool(answer.get(name)) for name in ("timed_out", "stdout_truncated", "stderr_truncated"))
    return CommandResult(stdout, stderr, int(answer["exit_code"]), *flags)


# Commands that somebody follows


def of_command(sandbox: str, session: str, verb: str, **sent: Any) -> Call[None]:
    path = path_of("sandboxes", sandbox, "exec", session, verb)
    return Call("POST", path, nothing, patience=GUEST_SECS, **sent)


def feed_command(sandbox: str, session: str, data: bytes, close: bool) -> Call[None]:
    return of_command(sandbox, session, "stdin", query=known(close=close or None), body=data)


def signal_command(sandbox: str, session: str, signal: int | str) -> Call[None]:
    return of_command(sandbox, session, "signal", body={"signal": signal})


def resize_command(sandbox: str, session: str, rows: int, cols: int) -> Call[None]:
    return of_command(sandbox, session, "resize", body={"rows": rows, "cols": cols})


# Processes


def of_processes(
    method: str, sandbox: str, parts: Sequence[str], read: Callable[[Any], T], patience: float = GUEST_SECS, **sent: Any
) -> Call[T]:
    return Call(method, path_of("sandboxes", sandbox, "processes", *parts), read, patience=patience, **sent)


def start_process(sandbox: str, args: list[str], fields: Json) -> Call[ProcessInfo]:
    return of_processes("POST", sandbox, [], ProcessInfo.of, body={"args": args, **known(**fields)})


def list_processes(sandbox: str) -> Call[list[ProcessInfo]]:
    return of_processes("GET", sandbox, [], lambda all_: [ProcessInfo.of(one) for one in all_])


def get_process(sandbox: str, process: str) -> Call[ProcessInfo]:
    return of_processes("GET", sandbox, [process], ProcessInfo.of)


def forget_process(sandbox: str, process: str) -> Call[None]:
    return of_processes("DELETE", sandbox, [process], nothing)


def signal_process(sandbox: str, process: str, signal: int | str) -> Call[None]:
    return of_processes("POST", sandbox, [process, "signal"], nothing, body={"signal": signal})


def resize_process(sandbox: str, process: str, rows: int, cols: int) -> Call[None]:
    return of_processes("POST", sandbox, [process, "resize"], nothing, body={"rows": rows, "cols": cols})


def feed_process(sandbox: str, process: str, data: bytes, close: bool) -> Call[None]:
    return of_processes("POST", sandbox, [process, "stdin"], nothing, query=known(close=close or None), body=data)


def process_output(sandbox: str, process: str) -> Call[None]:
    return of_processes("GET", sandbox, [process, "output"], nothing, ENDLESS)


# Files


def of_files(
    method: str, sandbox: str, what: Sequence[str], read: Callable[[Any], T], patience: float = GUEST_SECS, **sent: Any
) -> Call[T]:
    return Call(method, path_of("sandboxes", sandbox, "files", *what), read, patience=patience, **sent)


def read_file(sandbox: str, path: str) -> Call[bytes]:
    return of_files("GET", sandbox, [], contents, query={"path": path})


def write_file(sandbox: str, path: str, data: Any, fields: Json) -> Call[FileInfo]:
    return of_files("PUT", sandbox, [], FileInfo.of, query={"path": path, **known(**fields)}, body=data)


def stat_file(sandbox: str, path: str) -> Call[FileInfo]:
    return of_files("GET", sandbox, ["stat"], FileInfo.of, query={"path": path})


def list_files(sandbox: str, path: str, depth: int) -> Call[list[FileInfo]]:
    query = {"path": path, "depth": depth}
    return of_files("GET", sandbox, ["list"], lambda all_: [FileInfo.of(one) for one in all_], query=query)


def make_dir(sandbox: str, path: str, fields: Json) -> Call[FileInfo]:
    return of_files("POST", sandbox, ["mkdir"], FileInfo.of, body={"path": path, **known(**fields)})


def move_file(sandbox: str, source: str, to: str, overwrite: bool) -> Call[FileInfo]:
    body = {"from": source, "to": to, "overwrite": overwrite}
    return of_files("POST", sandbox, ["move"], FileInfo.of, LONG_SECS, body=body)


def remove_file(sandbox: str, path: str, recursive: bool) -> Call[None]:
    query = {"path": path, **known(recursive=recursive or None)}
    return of_files("DELETE", sandbox, [], nothing, LONG_SECS, query=query)


# Tokens


def list_tokens() -> Call[list[Json]]:
    return Call("GET", path_of("tokens"), same)


def create_token(name: str, scopes: list[str], ttl_secs: int | None) -> Call[Json]:
    return Call("POST", path_of("tokens"), same, body={"name": name, "scopes": scopes, **known(ttl_secs=ttl_secs)})


def delete_token(name: str) -> Call[None]:
    return Call("DELETE", path_of("tokens", name), nothing)


# Workspaces and the rest


def workspace(method: str, name: str | None, what: str | None, body: Json | None) -> Call[Any]:
    parts = ["workspaces", *([] if name is None else [name]), *([] if what is None else [what])]
    return Call(method, path_of(*parts), same, body=body, patience=LONG_SECS)


def events(since: int | None) -> Call[None]:
    return Call("GET", path_of("events"), nothing, query=known(since=since), patience=ENDLESS)


def tree() -> Call[Json]:
    return Call("GET", path_of("tree"), same)


def openapi() -> Call[Json]:
    return Call("GET", path_of("openapi.json"), same)


def daemon() -> Call[Json]:
    return Call("GET", path_of("daemon"), same)


def healthz() -> Call[Json]:
    return Call("GET", "/healthz", same)


def version() -> Call[Json]:
    return Call("GET", "/version", same)


def metrics() -> Call[str]:
    return Call("GET", "/metrics", text)
