"""`forkd.Sandbox` as it is published: it runs `forkd fork` and asks 10.42.0.2:8888 in the network that it is in."""

import socket
import subprocess

import pytest
from forkd import Sandbox

FORK = ["forkd", "fork", "-n", "1", "--settle-secs", "3600", "--tag"]


def nobody_answers() -> bool:
    try:
        socket.create_connection(("10.42.0.2", 8888), timeout=2).close()
    except OSError:
        return True
    return False


def test_a_sandbox_is_there_and_then_gone(tag):
    assert nobody_answers()
    with Sandbox(tag) as sandbox:
        pong = sandbox.ping()
        assert pong["pong"] is True and pong["pid"] == 1
        assert {"numpy_version", "agent_lang", "warmup_ready"} <= pong.keys()
        ran = sandbox.commands.run("echo out; echo err >&2; exit 7")
        assert (ran.stdout, ran.stderr, ran.exit_code) == ("out\n", "err\n", 7)
        assert sandbox.commands.run(["cat", "/run/forkd/sandbox-id"]).stdout.startswith("sb-")
        assert sandbox.commands.run(("sh", "-c", "kill -9 $$")).exit_code == -9
        late = sandbox.commands.run("sleep 60", timeout=1)
        assert late.exit_code == 1 and "1000 ms" in late.stderr
        missing = sandbox.commands.run(["/nowhere"])
        assert missing.exit_code == 1 and missing.stderr
        assert sandbox.eval("numpy.zeros(5).tolist()") == "[0.0, 0.0, 0.0, 0.0, 0.0]"
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            sandbox.eval("1 / 0")
        # The address is one sandbox's at a time, and who comes second is told so before anything is made.
        second = subprocess.run([*FORK, tag], capture_output=True, text=True, timeout=60, check=False)
        assert second.returncode == 1 and "10.42.0.2" in second.stderr and "--target" in second.stderr
        with Sandbox(tag, spawn=False) as same:
            assert same.commands.run("cat /run/forkd/sandbox-id").stdout.startswith("sb-")
    assert nobody_answers()


def test_another_comes_after_it(tag):
    sandbox = Sandbox.create(tag)
    try:
        assert sandbox.commands.run("uname -s").stdout == "Linux\n"
    finally:
        sandbox.kill()
    sandbox.kill()
    assert nobody_answers()


def test_what_cannot_be_forked_is_said():
    with pytest.raises(RuntimeError, match="there-is-none"):
        Sandbox("there-is-none")
    assert nobody_answers()
