"""A sandbox as one works with it: commands, files, evaluations, forks and branches."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from . import calls
from .commands import Commands
from .controller import branch_fields
from .errors import ControllerError, EvalError, ForkdError
from .files import Files
from .models import BranchMode, EvalResult
from .transport import Transport

DEFAULT_TAG = "pyagent"
NOT_FOUND = 404


def eval_result(answer: dict[str, Any]) -> EvalResult:
    """What an evaluation gave; raises what it raised."""
    if answer.get("error"):
        raise EvalError(answer["error"], answer.get("traceback"))
    return EvalResult(answer.get("result"), answer.get("result_json"), answer.get("stdout") or "")


def value(result: EvalResult) -> Any:
    """JSON where the interpreter speaks it, else the value's ``repr``."""
    if result.result is None and result.result_json is not None:
        return json.loads(result.result_json)
    return result.result


class Sandbox:
    """A VM of one's own, forked from a warm snapshot.

    ::

        with Sandbox("pyagent") as sandbox:
            sandbox.eval("numpy.zeros(5).tolist()")
            sandbox.commands.run("ls /")

    Any number of them may live at once. ``target`` with ``spawn=False`` names one that lives already.
    """

    def __init__(
        self,
        tag: str | None = None,
        target: str | None = None,
        timeout: float = 30,
        *,
        spawn: bool = True,
        base_url: str | None = None,
        token: str | None = None,
        **options: Any,
    ) -> None:
        self._transport = Transport(base_url, token, max(timeout, 60.0))
        self._place = (base_url, token)
        self.timeout = timeout
        self._ended = False
        if spawn:
            said = tag or os.environ.get("FORKD_TAG") or DEFAULT_TAG
            self.info = self._transport.carry_out(calls.spawn(said, 1, options, None))[0]
        elif target:
            self.info = self._transport.carry_out(calls.get_sandbox(target))
        else:
            raise ForkdError("spawn=False needs target, the id of a sandbox that lives")
        self.id: str = self.info["id"]
        self.commands = Commands(self._transport, self.id)
        self.files = Files(self._transport, self.id)

    @classmethod
    def create(cls, *args: Any, **kwargs: Any) -> Sandbox:
        return cls(*args, **kwargs)

    @classmethod
    def connect(cls, sandbox_id: str, **kwargs: Any) -> Sandbox:
        """One that lives already."""
        return cls(target=sandbox_id, spawn=False, **kwargs)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def eval(self, code: str, timeout: float | None = None) -> Any:
        """Evaluates in the warm interpreter, whose state lasts as long as the sandbox."""
        return value(self.run_code(code, timeout))

    def run_code(self, code: str, timeout: float | None = None) -> EvalResult:
        """The same, with what it printed."""
        return eval_result(self._transport.carry_out(calls.evaluate(self.id, code, timeout)))

    def ping(self) -> dict[str, Any]:
        return self._transport.carry_out(calls.act(self.id, "ping"))

    def pause(self) -> None:
        self._transport.carry_out(calls.act(self.id, "pause"))

    def resume(self) -> None:
        self._transport.carry_out(calls.act(self.id, "resume"))

    def renew(self, ttl_secs: int | None) -> None:
        self.info = self._transport.carry_out(calls.update_sandbox(self.id, {"ttl_secs": ttl_secs}))

    def branch(self, tag: str | None = None, mode: BranchMode | None = None, wait: bool = True) -> str:
        """Takes a snapshot as it is now, and runs on; the snapshot's tag."""
        taken = self._transport.carry_out(calls.branch(self.id, branch_fields(tag, False, False, mode, wait)))
        return str(taken["tag"])

    def fork(self, n: int = 1, **options: Any) -> Sequence[Sandbox]:
        """``n`` sandboxes that go on from where this one is. The snapshot between is removed when they are there."""
        tag = self.branch()
        try:
            spawned = self._transport.carry_out(calls.spawn(tag, n, options, None))
        finally:
            self._transport.carry_out(calls.delete_snapshot(tag, False, False))
        base_url, token = self._place
        return [Sandbox.connect(one["id"], base_url=base_url, token=token, timeout=self.timeout) for one in spawned]

    def kill(self) -> None:
        """Ends it; nothing of it is left. Twice is as good as once."""
        if self._ended:
            return
        try:
            self._transport.carry_out(calls.kill_sandbox(self.id))
        except ControllerError as error:
            if error.status != NOT_FOUND:
                raise
        self._ended = True
        self._transport.close()
