"""What crosses the wire, without a daemon."""

from __future__ import annotations

import pytest
from forkd import ControllerError, Exit, ForkdError, Output, Started, calls
from forkd.commands import heard
from forkd.controller import branch_fields, spawn_fields
from forkd.errors import controller_error
from forkd.models import exec_event
from forkd.sandbox import eval_result, value
from forkd.transport import EventLines, authorization, place


def fed(text: str) -> list[tuple[str | None, str, dict[str, object]]]:
    """In pieces of every length it may come in."""
    raw = text.encode()
    cut = [[raw[at : at + size] for at in range(0, len(raw), size)] for size in range(1, len(raw) + 1)]
    heard = [[event for piece in pieces for event in lines.feed(piece)] for pieces in cut for lines in [EventLines()]]
    assert all(events == heard[0] for events in heard)
    return heard[0]


def test_events_are_whole_or_not_there() -> None:
    text = ': a comment\n\nid: 7\nevent: stdout\ndata: {"data":\ndata:  "x"}\n\ndata: {"n": 1}\n\ndata: {"half": 1}\n'
    assert fed(text)[:2] == [("7", "stdout", {"data": "x"}), ("7", "message", {"n": 1})]
    assert fed('event: exit\ndata: {"exit_code": 0}') == []
    assert fed('data: {"data": "é\u2028"}\r\n\r\n') == [(None, "message", {"data": "é\u2028"})]


def test_a_process_is_told_in_events() -> None:
    assert exec_event("started", {"process_id": 12}) == Started("12")
    assert exec_event("stdout", {"data": "hé", "encoding": "utf8"}) == Output("stdout", "hé".encode())
    assert exec_event("stderr", {"data": "/w==", "encoding": "base64"}) == Output("stderr", b"\xff")
    assert exec_event("exit", {"exit_code": -9, "signal": 9}) == Exit(-9, 9)
    assert exec_event("of a later version", {}) is None
    with pytest.raises(ForkdError, match="gone"):
        heard((None, "error", {"error": "the sandbox is gone", "code": "sandbox_gone"}))


def test_names_cannot_leave_their_place() -> None:
    assert calls.get_sandbox("../snapshots/x").path == "/v1/sandboxes/..%2Fsnapshots%2Fx"
    assert calls.delete_snapshot("a?force=true", False, False).path == "/v1/snapshots/a%3Fforce%3Dtrue"


def test_only_what_was_said_is_sent() -> None:
    assert calls.execute("sb-1", ["true"], 30, {"stdin": None, "cwd": "/"}).body == {
        "args": ["true"],
        "timeout_secs": 30,
        "cwd": "/",
    }
    query = calls.list_sandboxes({"label": ["a=1", "b=2"], "limit": None}).params()
    assert query == [("label", "a=1"), ("label", "b=2")]
    assert calls.delete_snapshot("t", True, False).params() == [("cascade", "true")]
    plain = spawn_fields(False, None, False, False, False, None, None, None, None)
    assert calls.spawn("t", 2, plain, None).body == {"snapshot_tag": "t", "n": 2}


def test_the_mode_of_a_branch_wins_over_older_flags() -> None:
    assert branch_fields(None, True, False, "live", False) == {"mode": "live", "wait": False}
    assert branch_fields("t", True, False, None, True) == {"tag": "t", "diff": True}


def test_a_text_is_for_the_shell() -> None:
    assert calls.argv("ls | wc") == ["/bin/sh", "-c", "ls | wc"]
    assert calls.argv(("ls", "-l")) == ["ls", "-l"]


def test_the_daemon_is_where_it_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORKD_URL", raising=False)
    monkeypatch.delenv("FORKD_TOKEN", raising=False)
    assert place(None) == ("http://127.0.0.1:8889", None)
    assert place("unix:///run/forkd.sock") == ("http://forkd", "/run/forkd.sock")
    for wrong in ("10.0.0.1:8889", "http://there:port"):
        with pytest.raises(ForkdError, match="no address"):
            place(wrong)
    assert authorization(None) == {}
    monkeypatch.setenv("FORKD_URL", "https://there:1/")
    monkeypatch.setenv("FORKD_TOKEN", "secret")
    assert place(None) == ("https://there:1", None)
    assert authorization(None) == {"Authorization": "Bearer secret"}


def test_errors_have_a_status_and_a_code() -> None:
    error = controller_error(404, b'{"error": "no sandbox sb-1", "code": "sandbox_not_found"}', "http://x/v1")
    assert isinstance(error, ControllerError)
    assert (error.status, error.code) == (404, "sandbox_not_found")
    assert "no sandbox sb-1" in str(error)
    assert controller_error(502, b"<html>", "http://x").code is None


def test_an_evaluation_is_its_value_or_its_error() -> None:
    assert value(eval_result({"result": "[0.0]", "stdout": "", "exit_code": 0})) == "[0.0]"
    assert value(eval_result({"result": None, "result_json": '{"a": 1}', "exit_code": 0})) == {"a": 1}
    assert value(eval_result({"result": "{ a: 1 }", "result_json": '{"a": 1}', "exit_code": 0})) == {"a": 1}
    with pytest.raises(ForkdError, match="Traceback"):
        eval_result({"error": "boom", "traceback": "Traceback ...", "exit_code": 1})


def test_what_was_shown_is_there_in_all_forms() -> None:
    shown = {"kind": "display", "data": {"image/png": "iVBORw0KGgo=", "text/html": "<b>"}}
    (output,) = eval_result({"result": None, "exit_code": 0, "outputs": [shown]}).outputs
    assert (output.kind, output.png, output.html) == ("display", b"\x89PNG\r\n\x1a\n", "<b>")
