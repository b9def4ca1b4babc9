"""A daemon that says what it was told to, on loopback, and the clients that ask it.

A scenario is written once for those that wait and those that do not: :func:`settled` awaits what must be awaited.
"""

from __future__ import annotations

import inspect
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from forkd import AsyncController, AsyncSandbox, Controller, Sandbox

PATIENCE_SECS = 30


@dataclass
class Answer:
    """What is said to a request. ``missing`` bytes of what is announced never come; a ``silent`` one says nothing."""

    status: int = 200
    content: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    missing: int = 0
    silent: bool = False


class Daemon:
    """What it was asked, and what it says to that: 404 unless it was told otherwise."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.over = threading.Event()
        self.url = ""
        self._answers: dict[tuple[str, str], Answer] = {}

    def says(self, method: str, path: str, answer: Answer | None = None, **fields: Any) -> None:
        self._answers[method, path] = answer or Answer(**fields)

    def says_json(self, method: str, path: str, content: Any, **fields: Any) -> None:
        headers = {"content-type": "application/json", **fields.pop("headers", {})}
        self.says(method, path, content=json.dumps(content).encode(), headers=headers, **fields)

    def says_events(self, method: str, path: str, *events: tuple[str, dict[str, Any]]) -> None:
        """As the daemon writes them: JSON in which nothing is escaped that need not be."""
        lines = (f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n" for name, data in events)
        self.says(method, path, content="".join(lines).encode(), headers={"content-type": "text/event-stream"})

    def answer(self, method: str, path: str) -> Answer:
        self.asked.append((method, path))
        unknown = json.dumps({"error": f"there is no {method} {path}", "code": "route_not_found"}).encode()
        return self._answers.get((method, path), Answer(404, unknown, {"content-type": "application/json"}))


def handler_of(daemon: Daemon) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = PATIENCE_SECS
        disable_nagle_algorithm = True

        def take_body(self) -> None:
            """All of it: the next request comes after it."""
            if self.headers.get("transfer-encoding") != "chunked":
                self.rfile.read(int(self.headers.get("content-length", 0)))
                return
            while size := int(self.rfile.readline(), 16):
                self.rfile.read(size + len(b"\r\n"))
            self.rfile.readline()

        def answer(self) -> None:
            self.take_body()
            said = daemon.answer(self.command, self.path.partition("?")[0])
            if said.silent:
                daemon.over.wait(PATIENCE_SECS)
                self.close_connection = True
                return
            self.send_response(said.status)
            for name, value in said.headers.items():
                self.send_header(name, value)
            if said.status != 204:
                self.send_header("content-length", str(len(said.content) + said.missing))
            self.end_headers()
            self.wfile.write(said.content)
            self.close_connection = said.missing > 0

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

        def log_message(self, format: str, *args: Any) -> None:
            """What was asked is in ``asked``."""

    return Handler


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    scripted = Daemon()
    with ThreadingHTTPServer(("127.0.0.1", 0), handler_of(scripted)) as server:
        server.daemon_threads = True
        scripted.url = f"http://127.0.0.1:{server.server_port}"
        scripted.says_json("GET", "/v1/sandboxes/sb-1", {"id": "sb-1"})
        scripted.says("DELETE", "/v1/sandboxes/sb-1", status=204)
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        yield scripted
        scripted.over.set()
        server.shutdown()
        serving.join()


async def settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def all_of(values: Any) -> list[Any]:
    """All that comes of an iterator of either kind."""
    return [one async for one in values] if hasattr(values, "__aiter__") else list(values)


@dataclass(frozen=True)
class Clients:
    """Of one kind, in front of one daemon."""

    daemon: Daemon
    waits: bool

    @asynccontextmanager
    async def entered(self, client: Any) -> AsyncIterator[Any]:
        """``with`` or ``async with``."""
        if self.waits:
            with client:
                yield client
        else:
            async with client:
                yield client

    def controller(self, **fields: Any) -> Any:
        return (Controller if self.waits else AsyncController)(self.daemon.url, **fields)

    async def sandbox(self) -> Any:
        """``sb-1``, which lives already."""
        return await settled((Sandbox if self.waits else AsyncSandbox).connect("sb-1", base_url=self.daemon.url))


@pytest.fixture(params=["sync", "async"])
def clients(request: pytest.FixtureRequest, daemon: Daemon) -> Clients:
    return Clients(daemon, request.param == "sync")
