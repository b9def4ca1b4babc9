"""Carrying calls out over HTTP, on TCP or on the daemon's unix socket."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import httpx

from .calls import Call
from .errors import ForkdError, controller_error

T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:8889"
UNIX = "unix://"


def place(base_url: str | None) -> tuple[str, str | None]:
    """The daemon's address: a URL, and the unix socket it is behind, if it is."""
    said = base_url or os.environ.get("FORKD_URL") or DEFAULT_URL
    if said.startswith(UNIX):
        return "http://forkd", said[len(UNIX) :]
    if not said.startswith(("http://", "https://")):
        raise ForkdError(f"{said!r} is no address of a daemon; say http://HOST:PORT, https://HOST:PORT or unix:///PATH")
    return said.rstrip("/"), None


def authorization(token: str | None) -> dict[str, str]:
    said = token if token is not None else os.environ.get("FORKD_TOKEN")
    return {"Authorization": f"Bearer {said}"} if said else {}


def arguments(call: Call[Any], timeout: float) -> dict[str, Any]:
    """What httpx is told: bytes and streams as they are, everything else as JSON."""
    sent: dict[str, Any] = {"params": call.params(), "headers": dict(call.headers)}
    sent["timeout"] = httpx.Timeout(timeout if call.patience is None else max(call.patience, timeout))
    if isinstance(call.body, (dict, list)):
        sent["json"] = call.body
    elif call.body is not None:
        sent["content"] = call.body
    return sent


def understood(call: Call[T], response: httpx.Response) -> T:
    if not response.is_success:
        raise controller_error(response.status_code, response.content, str(response.url))
    if not response.content:
        return call.read(None)
    is_json = response.headers.get("content-type", "").startswith("application/json")
    return call.read(response.json() if is_json else response.content)


class EventLines:
    """Server-sent events from lines: ``(id, name, data)``, when one is whole."""

    def __init__(self) -> None:
        self._id: str | None = None
        self._name = "message"
        self._data: list[str] = []

    def feed(self, line: str) -> tuple[str | None, str, dict[str, Any]] | None:
        if line:
            name, _, value = line.partition(":")
            value = value[1:] if value.startswith(" ") else value
            if name == "data":
                self._data.append(value)
            elif name == "event":
                self._name = value
            elif name == "id":
                self._id = value
            return None
        data, name = self._data, self._name
        self._data, self._name = [], "message"
        return (self._id, name, json.loads("\n".join(data))) if data else None


class Transport:
    """One that waits."""

    def __init__(self, base_url: str | None, token: str | None, timeout: float) -> None:
        url, socket = place(base_url)
        self.timeout = timeout
        self._client = httpx.Client(
            base_url=url, headers=authorization(token), transport=httpx.HTTPTransport(uds=socket), trust_env=False
        )

    def close(self) -> None:
        self._client.close()

    def carry_out(self, call: Call[T]) -> T:
        return understood(call, self._client.request(call.method, call.path, **arguments(call, self.timeout)))

    @contextmanager
    def open(self, call: Call[Any]) -> Iterator[httpx.Response]:
        """The answer while it comes. A stream may be silent for as long as it likes."""
        sent = arguments(call, self.timeout)
        sent["timeout"] = httpx.Timeout(self.timeout, read=None)
        with self._client.stream(call.method, call.path, **sent) as response:
            if not response.is_success:
                raise controller_error(response.status_code, response.read(), str(response.url))
            yield response

    def events(self, call: Call[Any]) -> Iterator[tuple[str | None, str, dict[str, Any]]]:
        lines = EventLines()
        with self.open(call) as response:
            for line in response.iter_lines():
                event = lines.feed(line)
                if event is not None:
                    yield event


class AsyncTransport:
    """One that does not."""

    def __init__(self, base_url: str | None, token: str | None, timeout: float) -> None:
        url, socket = place(base_url)
        self.timeout = timeout
        self._client = httpx.AsyncClient(
            base_url=url, headers=authorization(token), transport=httpx.AsyncHTTPTransport(uds=socket), trust_env=False
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def carry_out(self, call: Call[T]) -> T:
        sent = arguments(call, self.timeout)
        content = sent.get("content")
        if isinstance(content, Iterable) and not isinstance(content, (bytes, str)):
            sent["content"] = _in_turn(content)
        return understood(call, await self._client.request(call.method, call.path, **sent))

    @asynccontextmanager
    async def open(self, call: Call[Any]) -> AsyncIterator[httpx.Response]:
        sent = arguments(call, self.timeout)
        sent["timeout"] = httpx.Timeout(self.timeout, read=None)
        async with self._client.stream(call.method, call.path, **sent) as response:
            if not response.is_success:
                raise controller_error(response.status_code, await response.aread(), str(response.url))
            yield response

    async def events(self, call: Call[Any]) -> AsyncIterator[tuple[str | None, str, dict[str, Any]]]:
        lines = EventLines()
        async with self.open(call) as response:
            async for line in response.aiter_lines():
                event = lines.feed(line)
                if event is not None:
                    yield event


async def _in_turn(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
