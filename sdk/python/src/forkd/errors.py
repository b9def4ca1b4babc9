"""What can go wrong, as a program tells it apart."""

from __future__ import annotations

import json
from typing import Any


class ForkdError(RuntimeError):
    """Everything this package raises by itself."""


class ControllerError(ForkdError):
    """The daemon's answer was not a success.

    ``status`` is the HTTP status, ``code`` the stable name of the case (such as ``sandbox_not_found``), ``body`` the
    whole answer.
    """

    def __init__(self, status: int, body: Any, url: str) -> None:
        self.status = status
        self.body = body
        self.url = url
        self.code: str | None = body.get("code") if isinstance(body, dict) else None
        reason = body.get("error") if isinstance(body, dict) else body
        super().__init__(f"{url} answered {status}: {reason}")


class EvalError(ForkdError):
    """What was evaluated raised an exception; ``traceback`` is the guest's."""

    def __init__(self, message: str, traceback: str | None) -> None:
        self.traceback = traceback
        super().__init__(message if traceback is None else f"{message}\n{traceback}")


class CommandError(ForkdError):
    """A command that was to succeed did not."""

    def __init__(self, args: list[str], exit_code: int, stderr: str) -> None:
        self.command = args
        self.exit_code = exit_code
        self.stderr = stderr
        super().__init__(f"{args} ended with {exit_code}: {stderr.strip()}")


def controller_error(status: int, raw: bytes, url: str) -> ControllerError:
    """From an answer's bytes, which may be anything."""
    text = raw.decode("utf-8", "replace")
    try:
        return ControllerError(status, json.loads(text), url)
    except ValueError:
        return ControllerError(status, text, url)
