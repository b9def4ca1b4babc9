"""Carrying calls out over HTTP, on TCP or on the daemon's unix socket."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Optional, TypeVar

import httpx

from .calls import ENDLESS, Call
from .errors import ForkdError, NoAnswerError, controller_error
from .models import Page

T = TypeVar("T")
Told = tuple[Optional[str], str, dict[str, Any]]
"""An event: its id, its name, and what it says."""

DEFAULT_URL = "http://127.0.0.1:8889"
UNIX = "unix://"
NEXT_CURSOR = "x-next-cursor"
NOT_REACHED = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)

log = logging.getLogger("forkd")


def place(base_url: str | None) -> tuple[str, str | None]:
    """The daemon's address: a URL, and the unix socket it is behind, if it is."""
    said = base_url or os.environ.get("FORKD_URL") or DEFAULT_URL
    if said.startswith(UNIX):
        return "http://forkd", said[len(UNIX) :]
    wrong = f"{said!r} is no address of a daemon; say http://HOST:PORT, https://HOST:PORT or unix:///PATH"
    if not said.startswith(("http://", "https://")):
        raise ForkdError(wrong)
    try:
        return str(httpx.URL(said.rstrip("/"))), None
    except httpx.InvalidURL as error:
        raise ForkdError(wrong) from error


def authorization(token: str | None) -> dict[str, str]:
    said = token if token is not None else os.environ.get("FORKD_TOKEN")
    return {"Authorization": f"Bearer {said}"} if said else {}


def arguments(call: Call[Any], timeout: float) -> dict[str, Any]:
    """What httpx is told: bytes and streams as they are, everything else as JSON."""
    sent: dict[str, Any] = {"params": call.params(), "headers": dict(call.headers)}
    patience = timeout if call.patience is None else max(call.patience, timeout)
    sent["timeout"] = httpx.Timeout(None if patience == ENDLESS else patience, connect=timeout, pool=timeout)
    if isinstance(call.body, (dict, list)):
        sent["json"] = call.body
    elif call.body is not None:
        sent["content"] = call.body
    return sent


def understood(call: Call[T], response: httpx.Response) -> T:
    if not response.is_success:
        raise controller_error(response.status_code, response.content, str(response.url))
    is_json = response.headers.get("content-type", "").startswith("application/json")
    content = from_json(response.content) if is_json and response.content else response.content or None
    answer = call.read(content)
    if isinstance(answer, Page):
        answer.next_cursor = response.headers.get(NEXT_CURSOR)
    return answer


def from_json(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ForkdError(f"the daemon said what is no JSON: {text[:200]!r}") from error


@contextmanager
def reported(call: Call[Any]) -> Iterator[None]:
    """What httpx makes of a daemon that does not answer is an error of ours."""
    try:
        yield
    except httpx.RequestError as error:
        reason = str(error) or type(error).__name__
        raise NoAnswerError(f"{call.method} {call.path}", reason, not isinstance(error, NOT_REACHED)) from error


class EventLines:
    """Server-sent events from bytes as they come, each when it is whole.

    Lines end at a newline only: what else Python takes for an end may stand in the JSON of an event.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._id: str | None = None
        self._name = "message"
        self._data: list[str] = []

    def feed(self, piece: bytes) -> list[Told]:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        events = (self._take(line.removesuffix(b"\r").decode("utf-8", "replace")) for line in lines)
        return [event for event in events if event is not None]

    def _take(self, line: str) -> Told | None:
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
        return (self._id, name, from_json("\n".join(data))) if data else None


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
        with reported(call):
            response = self._client.request(call.method, call.path, **arguments(call, self.timeout))
        return understood(call, response)

    def attempt(self, call: Call[T]) -> T | None:
        """For cleaning up after an error, which is worth more than one that comes now."""
        try:
            return self.carry_out(call)
        except ForkdError as error:
            log.warning("something may be left behind: %s", error)
            return None

    @contextmanager
    def open(self, call: Call[Any]) -> Iterator[httpx.Response]:
        """The answer while it comes."""
        sent = arguments(call, self.timeout)
        with reported(call), self._client.stream(call.method, call.path, **sent) as response:
            if not response.is_success:
                raise controller_error(response.status_code, response.read(), str(response.url))
            yield response

    def text(self, call: Call[str]) -> Iterator[str]:
        with self.open(call) as response:
            yield from response.iter_text()

    def events(self, call: Call[Any]) -> Iterator[Told]:
        lines = EventLines()
        with self.open(call) as response:
            for piece in response.iter_bytes():
                yield from lines.feed(piece)


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
        with reported(call):
            response = await self._client.request(call.method, call.path, **sent)
        return understood(call, response)

    async def attempt(self, call: Call[T]) -> T | None:
        try:
            return await self.carry_out(call)
        except ForkdError as error:
            log.warning("something may be left behind: %s", error)
            return None

    @asynccontextmanager
    async def open(self, call: Call[Any]) -> AsyncIterator[httpx.Response]:
        sent = arguments(call, self.timeout)
        with reported(call):
            async with self._client.stream(call.method, call.path, **sent) as response:
                if not response.is_success:
                    raise controller_error(response.status_code, await response.aread(), str(response.url))
                yield response

    async def text(self, call: Call[str]) -> AsyncIterator[str]:
        async with self.open(call) as response:
            async for piece in response.aiter_text():
                yield piece

    async def events(self, call: Call[Any]) -> AsyncIterator[Told]:
        lines = EventLines()
        async with self.open(call) as response:
            async for piece in response.aiter_bytes():
                for event in lines.feed(piece):
                    yield event


async def _in_turn(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
