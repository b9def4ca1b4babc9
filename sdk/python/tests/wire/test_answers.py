"""What clients make of answers, whole and broken, with and without waiting."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path
from typing import Any

import httpx
import pytest
from forkd import CommandResult, ControllerError, EvalError, Exit, ForkdError, NoAnswerError, Output, Skipped, calls
from forkd import commands as commands_module
from forkd.transport import arguments

from .conftest import Clients, Daemon, all_of, settled

SANDBOX = "/v1/sandboxes/sb-1"
ODD_ENDS = "a\u0085b\u2028c\u2029d\x0be\x0cf\x1cg\r\n"
"""All that Python takes for the end of a line, and JSON does not."""


def test_output_may_have_any_character(daemon: Daemon, clients: Clients) -> None:
    said = (("started", {"process_id": "1"}), ("stdout", {"data": ODD_ENDS}), ("exit", {"exit_code": 0}))
    daemon.says_events("POST", f"{SANDBOX}/exec", *said)
    daemon.says_events("GET", f"{SANDBOX}/processes/1/output", *said)
    daemon.says_json("GET", f"{SANDBOX}/processes/1", {"id": "1"})

    async def scenario() -> None:
        sandbox, heard = await clients.sandbox(), list[str]()
        ran = await settled(sandbox.commands.run("x", on_stdout=heard.append))
        assert (ran.stdout, heard) == (ODD_ENDS, [ODD_ENDS])
        process = await settled(sandbox.commands.attach("1"))
        assert (await all_of(process.output()))[1:] == [Output("stdout", ODD_ENDS.encode()), Exit(0)]
        assert await settled(process.wait()) == Exit(0)

    asyncio.run(scenario())


def test_an_empty_file_is_empty(daemon: Daemon, clients: Clients) -> None:
    daemon.says("GET", f"{SANDBOX}/files", headers={"content-type": "application/octet-stream"})

    async def scenario() -> None:
        files = (await clients.sandbox()).files
        assert await settled(files.read("/empty")) == b""
        assert await settled(files.read_text("/empty")) == ""

    asyncio.run(scenario())


def test_a_download_that_fails_changes_nothing(daemon: Daemon, clients: Clients, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("mine")

    async def scenario() -> None:
        files = (await clients.sandbox()).files
        with pytest.raises(ControllerError):
            await settled(files.download("/none", mine))
        assert (mine.read_text(), os.listdir(tmp_path)) == ("mine", ["mine"])
        daemon.says("GET", f"{SANDBOX}/files", content=b"half of", missing=8)
        for to in (mine, tmp_path / "new"):
            with pytest.raises(NoAnswerError):
                await settled(files.download("/half", to))
        assert (mine.read_text(), os.listdir(tmp_path)) == ("mine", ["mine"])

    asyncio.run(scenario())


def test_a_download_takes_its_place(daemon: Daemon, clients: Clients, tmp_path: Path) -> None:
    daemon.says("GET", f"{SANDBOX}/files", content=b"theirs")
    old, link, new = tmp_path / "old", tmp_path / "link", tmp_path / "new"
    old.write_text("mine, and longer")
    old.chmod(0o640)
    link.symlink_to(old)

    async def scenario() -> None:
        files = (await clients.sandbox()).files
        for to in (link, str(new), os.devnull):
            await settled(files.download("/theirs", to))
        with pytest.raises(IsADirectoryError):
            await settled(files.download("/theirs", tmp_path))

    asyncio.run(scenario())
    assert (old.read_text(), new.read_text(), link.is_symlink()) == ("theirs", "theirs", True)
    assert stat.S_IMODE(old.stat().st_mode) == 0o640
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
    assert sorted(os.listdir(tmp_path)) == ["link", "new", "old"]


def test_what_was_cut_off_says_so(daemon: Daemon, clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands_module, "KEPT_BYTES", 4)
    answer = {"stdout": "abcd", "stderr": "e", "exit_code": 0, "stdout_truncated": True, "stderr_truncated": False}

    async def scenario() -> None:
        commands, heard = (await clients.sandbox()).commands, list[str]()
        daemon.says_json("POST", f"{SANDBOX}/exec", answer)
        cut = CommandResult("abcd", "e", 0, stdout_truncated=True)
        assert await settled(commands.run("x")) == cut
        # Who listens hears all of it, and keeps no more than who does not.
        pieces = [("stdout", {"data": data}) for data in ("abc", "def", "ghi")]
        daemon.says_events(
            "POST",
            f"{SANDBOX}/exec",
            *pieces,
            ("stderr", {"data": "e"}),
            ("exit", {"exit_code": 0, "timed_out": False}),
        )
        assert await settled(commands.run("x", on_stdout=heard.append)) == cut
        assert heard == ["abc", "def", "ghi"]

    asyncio.run(scenario())


def test_what_is_not_kept_any_more_leaves_a_mark(daemon: Daemon, clients: Clients) -> None:
    said = (("skipped", {"bytes": 7}), ("stdout", {"data": "rest"}), ("exit", {"exit_code": 0}))
    daemon.says_json("GET", f"{SANDBOX}/processes/1", {"id": "1"})
    daemon.says_events("GET", f"{SANDBOX}/processes/1/output", *said)

    async def scenario() -> None:
        process = await settled((await clients.sandbox()).commands.attach("1"))
        assert await all_of(process.output()) == [Skipped(7), Output("stdout", b"rest"), Exit(0)]

    asyncio.run(scenario())


def test_what_was_printed_before_an_error_is_not_lost(daemon: Daemon, clients: Clients) -> None:
    printed = {"stdout": "out", "stderr": "err"}

    async def scenario() -> None:
        sandbox = await clients.sandbox()
        daemon.says_json("POST", f"{SANDBOX}/eval", {"result": "1", "exit_code": 0, **printed})
        ran = await settled(sandbox.run_code("x"))
        assert (ran.result, ran.stdout, ran.stderr) == ("1", "out", "err")
        daemon.says_json("POST", f"{SANDBOX}/eval", {"error": "KeyError: 'x'", "exit_code": 1, **printed})
        with pytest.raises(EvalError, match="KeyError") as raised:
            await settled(sandbox.eval("x"))
        assert (raised.value.stdout, raised.value.stderr) == ("out", "err")

    asyncio.run(scenario())


def test_no_answer_is_an_error_of_ours(daemon: Daemon, clients: Clients) -> None:
    daemon.says("GET", "/version", silent=True)
    daemon.says_json("GET", "/v1/tree", {}, missing=1)
    daemon.says("GET", "/v1/snapshots", content=b"<html>", headers={"content-type": "application/json"})
    daemon.says("GET", "/v1/events", content=b"data: {\n\n", headers={"content-type": "text/event-stream"})

    async def scenario() -> None:
        async with clients.entered(clients.controller(timeout=0.2)) as controller:
            for ask in (controller.version, controller.tree):
                with pytest.raises(NoAnswerError) as lost:
                    await settled(ask())
                assert lost.value.reached
                assert isinstance(lost.value.__cause__, httpx.TransportError)
            with pytest.raises(ForkdError, match="no JSON"):
                await settled(controller.list_snapshots())
            with pytest.raises(ForkdError, match="no JSON"):
                await all_of(controller.events())
            nowhere = type(controller)("unix:///nowhere/forkd.sock")
            with pytest.raises(NoAnswerError) as lost:
                await settled(nowhere.version())
            assert not lost.value.reached

    asyncio.run(scenario())


def test_who_asks_is_more_patient_than_the_daemon() -> None:
    """A command gets 30 s more than its limit; code twice its limit and 120 s, since it may have to wait its turn."""

    def patience(call: calls.Call[Any]) -> httpx.Timeout:
        told = arguments(call, 5.0)["timeout"]
        assert isinstance(told, httpx.Timeout)
        assert told.connect == 5.0
        return told

    assert (patience(calls.execute("sb-1", ["x"], 100, {})).read or 0) > 130
    assert (patience(calls.evaluate("sb-1", "x", 100)).read or 0) > 320
    assert (patience(calls.evaluate("sb-1", "x", None)).read or 0) > 180
    assert (patience(calls.remove_file("sb-1", "/", True)).read or 0) > 600
    assert (patience(calls.get_process("sb-1", "1")).read or 0) > 90
    assert patience(calls.execute("sb-1", ["x"], 1, {"stream": True})).read is None
    assert patience(calls.process_output("sb-1", "1")).read is None
    assert patience(calls.version()).read == 5.0
