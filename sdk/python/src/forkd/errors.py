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


class NoAnswerError(ForkdError):
    """There is no answer, or not all of one: the daemon is not there, left, or took too long.

    What was asked may have been done all the same, unless the daemon was not even ``reached``.
    """

    def __init__(self, what: str, reason: str, reached: bool) -> None:
        self.reached = reached
        hint = (
            "it may have been done all the same" if reached else "is `forkd serve` running, and FORKD_URL its address?"
        )
        super().__init__(f"{what} was not answered ({reason}); {hint}")


class EvalError(ForkdError):
    """What was evaluated raised an exception; ``traceback`` is the guest's, the rest what was printed before."""

    def __init__(self, message: str, traceback: str | None, stdout: str = "", stderr: str = "") -> None:
        self.traceback = traceback
        self.stdout = stdout
        self.stderr = stderr
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
