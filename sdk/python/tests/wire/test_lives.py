"""Sandboxes that are made and ended while something fails."""

from __future__ import annotations

import asyncio
import logging

import pytest
from forkd import ControllerError

from .conftest import Clients, Daemon, settled

SANDBOX = "/v1/sandboxes/sb-1"
BROKEN = {"error": "the disk is gone", "code": "internal"}


@pytest.fixture
def forking(daemon: Daemon) -> Daemon:
    """One that forks ``sb-1`` into two."""
    daemon.says_json("POST", f"{SANDBOX}/branch", {"tag": "between"})
    daemon.says_json("POST", "/v1/sandboxes", [{"id": "sb-2"}, {"id": "sb-3"}], status=201)
    daemon.says_json("GET", "/v1/sandboxes", [{"id": "sb-2"}, {"id": "sb-3"}])
    for path in ("/v1/snapshots/between", "/v1/sandboxes/sb-2", "/v1/sandboxes/sb-3"):
        daemon.says("DELETE", path, status=204)
    return daemon


def test_a_fork_asks_for_nothing_it_was_told(forking: Daemon, clients: Clients) -> None:
    async def scenario() -> None:
        twins = await settled((await clients.sandbox()).fork(2))
        assert [twin.id for twin in twins] == ["sb-2", "sb-3"]
        for twin in twins:
            await settled(twin.kill())

    asyncio.run(scenario())
    expected = [
        ("GET", SANDBOX),
        ("POST", f"{SANDBOX}/branch"),
        ("POST", "/v1/sandboxes"),
        ("DELETE", "/v1/snapshots/between"),
        ("DELETE", "/v1/sandboxes/sb-2"),
        ("DELETE", "/v1/sandboxes/sb-3"),
    ]
    assert forking.asked == expected


def test_a_fork_that_fails_leaves_nothing(forking: Daemon, clients: Clients, caplog: pytest.LogCaptureFixture) -> None:
    forking.says_json("DELETE", "/v1/snapshots/between", BROKEN, status=500)

    async def scenario() -> None:
        with pytest.raises(ControllerError, match="the disk is gone"):
            await settled((await clients.sandbox()).fork(2))

    with caplog.at_level(logging.WARNING, logger="forkd"):
        asyncio.run(scenario())
    assert {("DELETE", "/v1/sandboxes/sb-2"), ("DELETE", "/v1/sandboxes/sb-3")} <= set(forking.asked)
    assert "/v1/snapshots/between" in caplog.text


def test_why_a_fork_failed_is_what_is_told(forking: Daemon, clients: Clients) -> None:
    forking.says_json("POST", "/v1/sandboxes", {"error": "no room", "code": "no_space"}, status=507)
    forking.says_json("GET", "/v1/sandboxes", [])
    forking.says_json("DELETE", "/v1/snapshots/between", BROKEN, status=500)

    async def scenario() -> None:
        with pytest.raises(ControllerError, match="no room"):
            await settled((await clients.sandbox()).fork(2))

    asyncio.run(scenario())
    assert forking.asked[-1] == ("DELETE", "/v1/snapshots/between")


def test_the_error_of_a_block_is_not_hidden(daemon: Daemon, clients: Clients, caplog: pytest.LogCaptureFixture) -> None:
    daemon.says_json("DELETE", SANDBOX, BROKEN, status=500)

    async def scenario() -> None:
        with pytest.raises(KeyError, match="mine"):
            async with clients.entered(await clients.sandbox()):
                raise KeyError("mine")
        assert "sb-1" in caplog.text
        # Without one, there is nothing to hide.
        with pytest.raises(ControllerError, match="the disk is gone"):
            async with clients.entered(await clients.sandbox()):
                pass

    with caplog.at_level(logging.WARNING, logger="forkd"):
        asyncio.run(scenario())
