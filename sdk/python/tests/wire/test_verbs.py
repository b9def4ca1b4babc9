"""A controller has every verb of the REST API."""

from __future__ import annotations

import asyncio
import io
import os
import re
from pathlib import Path
from typing import Any

from .conftest import Clients, Daemon, all_of, settled

ROUTES = Path(__file__).parents[4] / "crates" / "daemon" / "src" / "routes"


def routes() -> set[tuple[str, str]]:
    """What the daemon serves, as its sources document it; what hands a connection over is no verb."""
    texts = (file.read_text() for file in ROUTES.glob("*.rs") if file.stem not in ("lines", "ports"))
    return {
        (method.upper(), path)
        for text in texts
        for method, path in re.findall(r'utoipa::path\(\s*(\w+),\s*path = "([^"]+)"', text)
    }


def example(path: str) -> str:
    for name, value in {"{id}": "sb-1", "{pid}": "1", "{tag}": "t", "{name}": "n", "{session}": "s"}.items():
        path = path.replace(name, value)
    return path


async def ask_for_everything(controller: Any) -> None:
    commands, files = controller.commands("sb-1"), controller.files("sb-1")
    process = await settled(commands.start("x"))
    asks = [
        *(controller.healthz(), controller.version(), controller.metrics(), controller.openapi(), controller.tree()),
        *(controller.list_snapshots(), controller.create_snapshot("t"), controller.delete_snapshot("t")),
        *(controller.snapshot_info("t"), controller.compact_snapshot("t", "u"), controller.build_image(recipe="r")),
        *(controller.pack_snapshot("t", os.devnull), controller.unpack_snapshot(io.BytesIO(b"x"))),
        *(controller.pull_snapshot("https://x"), controller.push_snapshot("t", "https://x"), controller.store_info()),
        *(controller.garbage(), controller.collect_garbage(), controller.verify_snapshots()),
        *(controller.daemon_info(), controller.fork_snapshot("t"), controller.feed_command("sb-1", "s", b"x")),
        *(controller.signal_command("sb-1", "s"), controller.resize_command("sb-1", "s", 1, 1)),
        *(controller.list_sandboxes(), controller.spawn_sandboxes("t"), controller.get_sandbox("sb-1")),
        *(controller.label_sandbox("sb-1", {}), controller.renew_sandbox("sb-1", 1), controller.kill_sandbox("sb-1")),
        *(controller.pause_sandbox("sb-1"), controller.resume_sandbox("sb-1"), controller.ping_sandbox("sb-1")),
        *(controller.network_info("sb-1"), controller.set_egress("sb-1", ["a.org:80"])),
        *(controller.exec_command("sb-1", ["x"]), controller.eval_code("sb-1", "x"), controller.console("sb-1")),
        *(controller.branch_sandbox("sb-1"), commands.list(), commands.attach("1"), process.write("x")),
        *(process.signal(), process.resize(1, 1), process.kill(), files.read("/x"), files.write("/x", "")),
        *(files.remove("/x"), files.stat("/x"), files.list("/x"), files.mkdir("/x"), files.move("/x", "/y")),
        *(controller.list_workspaces(), controller.create_workspace("n", "t"), controller.get_workspace("n")),
        *(controller.suspend_workspace("n"), controller.resume_workspace("n"), controller.delete_workspace("n")),
        *(controller.list_tokens(), controller.create_token("n", ["read"]), controller.delete_token("n")),
    ]
    for ask in asks:
        await settled(ask)
    streams = (process.output(), controller.events(), controller.follow_console("sb-1"), controller.pack_progress())
    for stream in streams:
        await all_of(stream)


def test_a_controller_has_every_verb(daemon: Daemon, clients: Clients) -> None:
    served = routes()
    assert len(served) > 40
    file = {"path": "/x", "name": "x", "kind": "file", "size": 0, "mode": "0644", "uid": 0, "gid": 0, "mtime_unix": 0}
    for method, path in served:
        is_list = method == "GET" and path.rpartition("/")[2] in ("list", "processes")
        daemon.says_json(method, example(path), [] if is_list else {"id": "1", **file})
    for path in ("/metrics", "/v1/sandboxes/sb-1/console"):
        daemon.says("GET", path, content=b"text", headers={"content-type": "text/plain"})
    for path in ("/v1/sandboxes/sb-1/processes/1/output", "/v1/events", "/v1/packs/progress"):
        daemon.says_events("GET", path)

    async def scenario() -> None:
        async with clients.entered(clients.controller()) as controller:
            await ask_for_everything(controller)

    asyncio.run(scenario())
    assert set(daemon.asked) == {(method, example(path)) for method, path in served}


def test_a_console_is_text(daemon: Daemon, clients: Clients) -> None:
    daemon.says("GET", "/v1/sandboxes/sb-1/console", content="é\xff".encode() + b"\xff\n")

    async def scenario() -> None:
        async with clients.entered(clients.controller()) as controller:
            assert await settled(controller.console("sb-1", tail=1)) == "éÿ\ufffd\n"
            assert "".join(await all_of(controller.follow_console("sb-1"))) == "éÿ\ufffd\n"

    asyncio.run(scenario())


def test_a_pack_is_watched(daemon: Daemon, clients: Clients) -> None:
    daemon.says_events("GET", "/v1/packs/progress", ("watch", {"watch": "w-1"}), ("progress", {"done": 1}))

    async def scenario() -> None:
        async with clients.entered(clients.controller()) as controller:
            assert await all_of(controller.pack_progress()) == [{"watch": "w-1"}, {"done": 1}]

    asyncio.run(scenario())


def test_a_pack_comes_and_goes(daemon: Daemon, clients: Clients, tmp_path: Path) -> None:
    mine = tmp_path / "t.tar.zst"
    daemon.says("GET", "/v1/snapshots/t/pack", content=b"a pack", headers={"content-type": "application/zstd"})
    daemon.says_json("POST", "/v1/packs", [{"tag": "u", "is_new": True}], status=201)

    async def scenario() -> None:
        async with clients.entered(clients.controller()) as controller:
            await settled(controller.pack_snapshot("t", mine, description="a word"))
            assert mine.read_bytes() == b"a pack"
            assert await settled(controller.unpack_snapshot(mine, tag="u")) == [{"tag": "u", "is_new": True}]

    asyncio.run(scenario())


def test_a_list_goes_on_at_its_cursor(daemon: Daemon, clients: Clients) -> None:
    async def scenario() -> None:
        async with clients.entered(clients.controller()) as controller:
            daemon.says_json("GET", "/v1/sandboxes", [{"id": "sb-1"}], headers={"x-next-cursor": "7"})
            page = await settled(controller.list_sandboxes(limit=1))
            assert (page, page.next_cursor) == ([{"id": "sb-1"}], "7")
            daemon.says_json("GET", "/v1/sandboxes", [])
            page = await settled(controller.list_sandboxes(limit=1, cursor=page.next_cursor))
            assert (page, page.next_cursor) == ([], None)

    asyncio.run(scenario())
