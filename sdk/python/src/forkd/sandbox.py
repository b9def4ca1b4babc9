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
from .models import BranchMode, EvalOutput, EvalResult
from .transport import Transport, log

DEFAULT_TAG = "pyagent"
LEAST_SECS = 60.0
"""However short the time for commands is, the daemon gets this long for its own work."""
NOT_FOUND = 404


def eval_result(answer: dict[str, Any]) -> EvalResult:
    """What an evaluation gave; raises what it raised."""
    stdout, stderr = answer.get("stdout") or "", answer.get("stderr") or ""
    if answer.get("error"):
        raise EvalError(answer["error"], answer.get("traceback"), stdout, stderr)
    outputs = [EvalOutput(shown["kind"], shown["data"]) for shown in answer.get("outputs") or []]
    return EvalResult(answer.get("result"), answer.get("result_json"), stdout, stderr, outputs)


def value(result: EvalResult) -> Any:
    """What JSON says, where the interpreter speaks it, else the value's ``repr``."""
    return result.result if result.result_json is None else json.loads(result.result_json)


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
        if not spawn and not target:
            raise ForkdError("spawn=False needs target, the id of a sandbox that lives")
        transport = Transport(base_url, token, max(timeout, LEAST_SECS))
        try:
            if spawn:
                said = tag or os.environ.get("FORKD_TAG") or DEFAULT_TAG
                info = transport.carry_out(calls.spawn(said, 1, options, None))[0]
            else:
                info = transport.carry_out(calls.get_sandbox(str(target)))
        except BaseException:
            transport.close()
            raise
        self._be(info, transport, (base_url, token), timeout)

    def _be(
        self, info: dict[str, Any], transport: Transport, place: tuple[str | None, str | None], timeout: float
    ) -> None:
        self._transport = transport
        self._place = place
        self._ended = False
        self.timeout = timeout
        self.info = info
        self.id: str = info["id"]
        self.commands = Commands(transport, self.id)
        self.files = Files(transport, self.id)

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
        try:
            self.kill()
        except ForkdError as failed:
            if error is None:
                raise
            log.warning("sandbox %s may be left behind: %s", self.id, failed)

    def eval(self, code: str, timeout: float | None = None) -> Any:
        """Evaluates in the warm interpreter, whose state lasts as long as the sandbox."""
        return value(self.run_code(code, timeout))

    def run_code(self, code: str, timeout: float | None = None) -> EvalResult:
        """The same, with what it printed, and the plots and tables it showed."""
        return eval_result(self._transport.carry_out(calls.evaluate(self.id, code, timeout)))

    def ping(self) -> dict[str, Any]:
        return self._transport.carry_out(calls.act(self.id, "ping"))

    def pause(self) -> None:
        self._transport.carry_out(calls.act(self.id, "pause"))

    def resume(self) -> None:
        self._transport.carry_out(calls.act(self.id, "resume"))

    def renew(self, ttl_secs: int | None) -> None:
        self.info = self._transport.carry_out(calls.renew_sandbox(self.id, ttl_secs))

    def branch(self, tag: str | None = None, mode: BranchMode | None = None, wait: bool = True) -> str:
        """Takes a snapshot as it is now, and runs on; the snapshot's tag."""
        taken = self._transport.carry_out(calls.branch(self.id, branch_fields(tag, False, False, mode, wait)))
        return str(taken["tag"])

    def fork(self, n: int = 1, **options: Any) -> Sequence[Sandbox]:
        """``n`` sandboxes that go on from where this one is: all of them, or there is an error and none.

        The snapshot between is removed when they are there.
        """
        tag = self.branch()
        try:
            spawned = self._transport.carry_out(calls.spawn(tag, n, options, None))
            self._transport.carry_out(calls.delete_snapshot(tag, False, False))
        except BaseException:
            self._take_back(tag)
            raise
        return [self._twin(info) for info in spawned]

    def _take_back(self, tag: str) -> None:
        """Removes a snapshot that was made to be forked once, and whatever was forked of it."""
        for one in self._transport.attempt(calls.list_sandboxes({"snapshot_tag": tag})) or []:
            self._transport.attempt(calls.kill_sandbox(one["id"]))
        self._transport.attempt(calls.delete_snapshot(tag, False, False))

    def _twin(self, info: dict[str, Any]) -> Sandbox:
        """One that is known to live, and need not be asked for."""
        twin = Sandbox.__new__(Sandbox)
        twin._be(info, Transport(*self._place, max(self.timeout, LEAST_SECS)), self._place, self.timeout)
        return twin

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
