"""The daemon's verbs, one method each. Answers are what the daemon sends, as dictionaries."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import IO, Any

from . import calls
from .commands import Commands
from .files import Files, pieces, replacing
from .models import BranchMode, Event, Page
from .transport import Transport

Json = dict[str, Any]


def branch_fields(tag: str | None, diff: bool, measure_diff: bool, mode: BranchMode | None, wait: bool) -> Json:
    """The newer ``mode`` wins over the older flags."""
    older = {} if mode is not None else calls.known(diff=diff or None, measure_diff=measure_diff or None)
    return {**calls.known(tag=tag, mode=mode), **older, **({} if wait else {"wait": False})}


def spawn_fields(
    per_child_netns: bool,
    memory_limit_mib: int | None,
    prewarm: bool,
    live_fork: bool,
    hugepages: bool,
    ttl_secs: int | None,
    labels: Mapping[str, str] | None,
    env: Mapping[str, str] | None,
    per_child: Sequence[Json] | None,
    network: Json | None = None,
) -> Json:
    flags = {"per_child_netns": per_child_netns, "prewarm": prewarm, "live_fork": live_fork, "hugepages": hugepages}
    return {
        **{name: True for name, said in flags.items() if said},
        "memory_limit_mib": memory_limit_mib,
        "ttl_secs": ttl_secs,
        "labels": None if labels is None else dict(labels),
        "env": None if env is None else dict(env),
        "per_child": None if per_child is None else list(per_child),
        **(network or {}),
    }


def network_fields(
    egress: str | Sequence[str] | None, limits: Mapping[str, int] | None, limits_name: str = "network_limits"
) -> Json:
    """A policy is one text, or a list of its entries."""
    policy = egress if egress is None or isinstance(egress, str) else list(egress)
    return calls.known(**{"egress": policy, limits_name: None if limits is None else dict(limits)})


class Controller:
    """A client of the daemon.

    ``base_url`` and ``token`` come from ``FORKD_URL`` and ``FORKD_TOKEN`` unless they are said; ``unix:///PATH`` is a
    daemon on a unix socket.
    """

    def __init__(self, base_url: str | None = None, token: str | None = None, timeout: float = 60.0) -> None:
        self._transport = Transport(base_url, token, timeout)

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> Controller:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def healthz(self) -> Json:
        return self._transport.carry_out(calls.healthz())

    def version(self) -> Json:
        return self._transport.carry_out(calls.version())

    def daemon_info(self) -> Json:
        """How the daemon is: its version, since when it runs, how many sandboxes and clients it has."""
        return self._transport.carry_out(calls.daemon())

    def metrics(self) -> str:
        """As Prometheus reads them."""
        return self._transport.carry_out(calls.metrics())

    def openapi(self) -> Json:
        """What the daemon serves, as a document."""
        return self._transport.carry_out(calls.openapi())

    # Snapshots

    def list_snapshots(self) -> list[Json]:
        return self._transport.carry_out(calls.list_snapshots())

    def build_image(self, **fields: Any) -> Json:
        """Builds the image of a ``recipe``, or completes a ``rootfs`` with the steps of ``build`` in a VM."""
        return self._transport.carry_out(calls.build_image(fields))

    def create_snapshot(self, tag: str, **fields: Any) -> Json:
        """Boots a VM, warms it up and keeps it: ``recipe``, or ``kernel`` and ``rootfs``; ``vcpus``, ``memory_mib``.

        ``warm={"command": ...}`` says what is done before, ``replace=True`` takes the place of another one.
        """
        return self._transport.carry_out(calls.create_snapshot(tag, fields))

    def snapshot_info(self, tag: str) -> Json:
        return self._transport.carry_out(calls.snapshot_info(tag))

    def compact_snapshot(self, tag: str, to: str) -> Json:
        return self._transport.carry_out(calls.compact_snapshot(tag, to))

    def delete_snapshot(self, tag: str, *, cascade: bool = False, force: bool = False) -> None:
        self._transport.carry_out(calls.delete_snapshot(tag, cascade, force))

    def fork_snapshot(self, tag: str, n: int = 1, **fields: Any) -> Json:
        """Forks ``n`` children and tells how long each took; ``keep_working=True`` keeps those that work."""
        return self._transport.carry_out(calls.fork_snapshot(tag, n, fields))

    # Packs

    def pack_snapshot(
        self,
        tag: str,
        to: str | os.PathLike[str],
        *,
        description: str | None = None,
        base_image: str | None = None,
        watch: str | None = None,
    ) -> None:
        """Writes a snapshot and all it is made of into a file of ours, for another host: whole, or nothing changes."""
        words = {"description": description, "base_image": base_image, "watch": watch}
        with self._transport.open(calls.pack(tag, words)) as response, replacing(to) as file:
            for piece in response.iter_bytes():
                file.write(piece)

    def unpack_snapshot(
        self,
        source: str | os.PathLike[str] | IO[bytes],
        *,
        tag: str | None = None,
        force: bool = False,
        watch: str | None = None,
    ) -> list[Json]:
        """Takes a pack, a file of ours or one that is open; its snapshots, the one that it is of last."""
        if isinstance(source, (str, os.PathLike)):
            with open(source, "rb") as file:
                return self.unpack_snapshot(file, tag=tag, force=force, watch=watch)
        return self._transport.carry_out(calls.unpack(pieces(source), tag, force, watch))

    def pack_progress(self) -> Iterator[Json]:
        """How far a pack is, to its end: the first has ``watch``, the name by which to pack or unpack it meanwhile."""
        for _, _, data in self._transport.events(calls.pack_progress()):
            yield data

    def pull_snapshot(
        self, source: str, *, hub: str | None = None, tag: str | None = None, force: bool = False
    ) -> list[Json]:
        """Has the daemon get a pack from an address, or ``OWNER/NAME[@VERSION]`` from a hub, and takes it."""
        return self._transport.carry_out(calls.pull(source, {"hub": hub, "tag": tag, "force": force or None}))

    def push_snapshot(
        self, tag: str, url: str, *, description: str | None = None, base_image: str | None = None
    ) -> Json:
        """Has the daemon pack a snapshot and hand it to a server, in one PUT request."""
        words = {"description": description, "base_image": base_image}
        return self._transport.carry_out(calls.push(tag, url, words))

    # The store as a whole

    def store_info(self) -> Json:
        """What all snapshots take; what they share counts once."""
        return self._transport.carry_out(calls.store())

    def garbage(self) -> Json:
        """What no snapshot needs. Nothing is changed."""
        return self._transport.carry_out(calls.garbage())

    def collect_garbage(self) -> Json:
        """Removes what no snapshot needs; tells what it was."""
        return self._transport.carry_out(calls.collect_garbage())

    def verify_snapshots(self, tags: Sequence[str] = ()) -> Json:
        """Compares these snapshots, or all, with what was written; what is wrong is in ``findings``."""
        return self._transport.carry_out(calls.verify(tags))

    # Sandboxes

    def spawn_sandboxes(
        self,
        snapshot_tag: str,
        n: int = 1,
        per_child_netns: bool = False,
        memory_limit_mib: int | None = None,
        prewarm: bool = False,
        live_fork: bool = False,
        hugepages: bool = False,
        *,
        ttl_secs: int | None = None,
        labels: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        per_child: Sequence[Json] | None = None,
        egress: str | Sequence[str] | None = None,
        network_limits: Mapping[str, int] | None = None,
        idempotency_key: str | None = None,
    ) -> list[Json]:
        """Forks ``n`` children of a snapshot; all of them are ready, or there is an error and none."""
        said = (per_child_netns, memory_limit_mib, prewarm, live_fork, hugepages, ttl_secs, labels, env, per_child)
        fields = spawn_fields(*said, network_fields(egress, network_limits))
        return self._transport.carry_out(calls.spawn(snapshot_tag, n, fields, idempotency_key))

    def list_sandboxes(
        self,
        *,
        snapshot_tag: str | None = None,
        labels: Mapping[str, str] | None = None,
        status: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page:
        """All that fit, or at most ``limit`` of them; the next ones begin at ``cursor``, the page's ``next_cursor``."""
        label = None if labels is None else [f"{name}={value}" for name, value in labels.items()]
        query = calls.known(snapshot_tag=snapshot_tag, label=label, status=status, limit=limit, cursor=cursor)
        return self._transport.carry_out(calls.list_sandboxes(query))

    def get_sandbox(self, sandbox_id: str) -> Json:
        return self._transport.carry_out(calls.get_sandbox(sandbox_id))

    def kill_sandbox(self, sandbox_id: str) -> None:
        self._transport.carry_out(calls.kill_sandbox(sandbox_id))

    def renew_sandbox(self, sandbox_id: str, ttl_secs: int | None) -> Json:
        """Lets it live so much longer from now on, or until it is killed."""
        return self._transport.carry_out(calls.renew_sandbox(sandbox_id, ttl_secs))

    def label_sandbox(self, sandbox_id: str, labels: Mapping[str, str]) -> Json:
        return self._transport.carry_out(calls.update_sandbox(sandbox_id, {"labels": dict(labels)}))

    def network_info(self, sandbox_id: str) -> Json:
        """What it may reach, what it sent and received, and what it was refused."""
        return self._transport.carry_out(calls.network_info(sandbox_id))

    def set_egress(
        self,
        sandbox_id: str,
        egress: str | Sequence[str] | None = None,
        *,
        limits: Mapping[str, int] | None = None,
    ) -> Json:
        """What it may reach from its next packet on: ``none``, ``all``, or addresses, networks and names.

        ``limits`` are all of them: ``send_kib_per_sec``, ``receive_kib_per_sec``, ``packets_per_sec``, ``connections``.
        """
        return self._transport.carry_out(calls.set_egress(sandbox_id, network_fields(egress, limits, "limits")))

    def pause_sandbox(self, sandbox_id: str) -> Json:
        return self._transport.carry_out(calls.act(sandbox_id, "pause"))

    def resume_sandbox(self, sandbox_id: str) -> Json:
        return self._transport.carry_out(calls.act(sandbox_id, "resume"))

    def ping_sandbox(self, sandbox_id: str) -> Json:
        return self._transport.carry_out(calls.act(sandbox_id, "ping"))

    def branch_sandbox(
        self,
        sandbox_id: str,
        tag: str | None = None,
        diff: bool = False,
        measure_diff: bool = False,
        mode: BranchMode | None = None,
        wait: bool = True,
    ) -> Json:
        """Takes a snapshot of a sandbox that runs on. With ``wait=False`` it is written later."""
        return self._transport.carry_out(calls.branch(sandbox_id, branch_fields(tag, diff, measure_diff, mode, wait)))

    def exec_command(self, sandbox_id: str, args: Sequence[str], timeout_secs: int = 30, **fields: Any) -> Json:
        """Runs a program to its end: ``stdin``, ``env``, ``cwd`` and ``user`` may be said."""
        return self._transport.carry_out(calls.execute(sandbox_id, list(args), timeout_secs, fields))

    def feed_command(self, sandbox_id: str, session: str, data: bytes, *, close: bool = False) -> None:
        """Input for a command that is followed as a stream, by the name that the stream gave it."""
        self._transport.carry_out(calls.feed_command(sandbox_id, session, data, close))

    def signal_command(self, sandbox_id: str, session: str, signal: int | str = "TERM") -> None:
        self._transport.carry_out(calls.signal_command(sandbox_id, session, signal))

    def resize_command(self, sandbox_id: str, session: str, rows: int, cols: int) -> None:
        self._transport.carry_out(calls.resize_command(sandbox_id, session, rows, cols))

    def eval_code(self, sandbox_id: str, code: str, timeout_secs: int | None = None) -> Json:
        return self._transport.carry_out(calls.evaluate(sandbox_id, code, timeout_secs))

    def console(self, sandbox_id: str, tail: int | None = None) -> str:
        """What its kernel and console wrote, or the last lines of it."""
        return self._transport.carry_out(calls.console(sandbox_id, tail, False))

    def follow_console(self, sandbox_id: str, tail: int | None = None) -> Iterator[str]:
        """The same, and what comes, until the sandbox ends."""
        yield from self._transport.text(calls.console(sandbox_id, tail, True))

    def commands(self, sandbox_id: str) -> Commands:
        """Its commands and processes."""
        return Commands(self._transport, sandbox_id)

    def files(self, sandbox_id: str) -> Files:
        return Files(self._transport, sandbox_id)

    # Workspaces

    def list_workspaces(self) -> list[Json]:
        return list(self._transport.carry_out(calls.workspace("GET", None, None, None)))

    def get_workspace(self, name: str) -> Json:
        return dict(self._transport.carry_out(calls.workspace("GET", name, None, None)))

    def create_workspace(self, name: str, snapshot_tag: str, **fields: Any) -> Json:
        body = {"name": name, "snapshot_tag": snapshot_tag, **calls.known(**fields)}
        return dict(self._transport.carry_out(calls.workspace("POST", None, None, body)))

    def suspend_workspace(self, name: str, diff: bool = False) -> Json:
        return dict(self._transport.carry_out(calls.workspace("POST", name, "suspend", {"diff": diff})))

    def resume_workspace(self, name: str) -> Json:
        return dict(self._transport.carry_out(calls.workspace("POST", name, "resume", {})))

    def delete_workspace(self, name: str) -> None:
        self._transport.carry_out(calls.workspace("DELETE", name, None, None))

    # Tokens

    def list_tokens(self) -> list[Json]:
        return self._transport.carry_out(calls.list_tokens())

    def create_token(self, name: str, scopes: Sequence[str], ttl_secs: int | None = None) -> Json:
        """Of ``read``, ``exec``, ``spawn`` and ``admin``. Only this answer ever has the ``token`` itself."""
        return self._transport.carry_out(calls.create_token(name, list(scopes), ttl_secs))

    def delete_token(self, name: str) -> None:
        self._transport.carry_out(calls.delete_token(name))

    # Everything

    def tree(self) -> Json:
        """Which snapshot and which sandbox came from which."""
        return self._transport.carry_out(calls.tree())

    def events(self, since: int | None = None) -> Iterator[Event]:
        """Everything that changes, as it does; ``since`` an event's id replays what came after it."""
        for number, name, data in self._transport.events(calls.events(since)):
            yield Event(int(number or data.get("id", 0)), name, data)
