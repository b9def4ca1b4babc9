"""The SDK in front of real VMs."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from forkd import CommandError, Controller, ControllerError, EvalError, Exit, Output, Sandbox

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_commands(tag: str) -> None:
    with Sandbox(tag) as sandbox:
        ran = sandbox.commands.run("echo out; echo err >&2; exit 7")
        assert (ran.stdout, ran.stderr, ran.exit_code) == ("out\n", "err\n", 7)
        assert sandbox.commands.run(["printenv", "A"], env={"A": "b"}).stdout == "b\n"
        assert sandbox.commands.run("pwd", cwd="/usr").stdout == "/usr\n"
        assert sandbox.commands.run("id -un", user="nobody").stdout == "nobody\n"
        assert sandbox.commands.run("cat", stdin="in and out").stdout == "in and out"
        assert sandbox.commands.run("sleep 60", timeout=1).timed_out
        with pytest.raises(CommandError):
            sandbox.commands.run("false", check=True)


def test_output_comes_as_it_is_written(tag: str) -> None:
    with Sandbox(tag) as sandbox:
        heard: list[str] = []
        script = "for i in 1 2 3; do echo $i; sleep 0.3; done"
        ran = sandbox.commands.run(script, on_stdout=heard.append)
        assert ran.stdout == "1\n2\n3\n" and "".join(heard) == ran.stdout
        assert len(heard) > 1, "it came in one piece"
        # Whoever leaves a stream ends the command.
        for event in sandbox.commands.stream("echo here; exec sleep 1000"):
            if isinstance(event, Output):
                break
        until_gone = "for i in $(seq 100); do pidof sleep > /dev/null || exit 0; sleep 0.2; done; exit 1"
        assert sandbox.commands.run(until_gone, timeout=60).exit_code == 0


def test_processes_live_on(tag: str) -> None:
    with Sandbox(tag) as sandbox:
        process = sandbox.commands.start("echo begun; read line; echo got $line; exit 3")
        assert [one.id for one in sandbox.commands.list()] == [process.id]
        process.write("this\n")
        again = sandbox.commands.attach(process.id)
        events = list(again.output())
        assert "".join(one.text for one in events if isinstance(one, Output)) == "begun\ngot this\n"
        assert isinstance(events[-1], Exit) and events[-1].exit_code == 3
        endless = sandbox.commands.start(["sleep", "1000"])
        endless.signal("KILL")
        assert endless.wait().exit_code == -9
        endless.kill()
        process.kill()
        assert list(sandbox.commands.list()) == []


def test_files(tag: str, tmp_path: Path) -> None:
    with Sandbox(tag) as sandbox:
        files = sandbox.files
        assert files.write("/root/d/e/text", "a,b\n", parents=True, mode="0640").size == 4
        assert files.read_text("/root/d/e/text") == "a,b\n"
        assert files.stat("/root/d/e/text").mode == "0640"
        assert [one.name for one in files.list("/root/d")] == ["e"]
        files.mkdir("/root/f")
        files.move("/root/d/e/text", "/root/f/text")
        with pytest.raises(ControllerError) as missing:
            files.read("/root/d/e/text")
        assert (missing.value.status, missing.value.code) == (404, "file_not_found")
        big, back = tmp_path / "big", tmp_path / "back"
        big.write_bytes(os.urandom(8 << 20))
        files.upload(big, "/root/big")
        digest = hashlib.sha256(big.read_bytes()).hexdigest()
        assert sandbox.commands.run(["sha256sum", "/root/big"]).stdout.split()[0] == digest
        files.download("/root/big", back)
        assert hashlib.sha256(back.read_bytes()).hexdigest() == digest
        files.remove("/root/d", recursive=True)
        assert sandbox.commands.run("ls /root").stdout == "big\nf\n"


def test_the_interpreter_is_warm_and_remembers(tag: str) -> None:
    with Sandbox(tag) as sandbox:
        assert sandbox.eval("numpy.zeros(3).tolist()") == "[0.0, 0.0, 0.0]"
        assert sandbox.run_code("x = 6 * 7\nprint(x)").stdout == "42\n"
        assert sandbox.eval("x") == "42"
        with pytest.raises(EvalError, match="ZeroDivisionError"):
            sandbox.eval("1 / 0")


def test_forks_and_branches_go_on_from_here(tag: str) -> None:
    with Sandbox(tag) as sandbox:
        sandbox.eval("x = 1")
        twins = sandbox.fork(2)
        for n, twin in enumerate(twins):
            twin.eval(f"x += {n + 1}")
        assert [twin.eval("x") for twin in twins] == ["2", "3"]
        assert sandbox.eval("x") == "1"
        for twin in twins:
            twin.kill()
        branch = sandbox.branch()
        try:
            with Sandbox(branch) as later:
                assert later.eval("x") == "1"
        finally:
            with Controller() as controller:
                controller.delete_snapshot(branch)


def test_one_stands_still_while_it_is_paused(tag: str) -> None:
    with Sandbox(tag) as sandbox, Controller() as controller:
        sandbox.pause()
        assert controller.get_sandbox(sandbox.id)["status"] == "paused"
        with pytest.raises(ControllerError) as paused:
            sandbox.commands.run("true")
        assert (paused.value.status, paused.value.code) == (409, "sandbox_paused")
        sandbox.resume()
        assert sandbox.commands.run("true").exit_code == 0


def test_several_at_once(tag: str) -> None:
    with Controller() as controller, ThreadPoolExecutor(4) as pool:

        def work(n: int) -> str:
            with Sandbox(tag, ttl_secs=300, labels={"n": str(n)}) as sandbox:
                assert [one["id"] for one in controller.list_sandboxes(labels={"n": str(n)})] == [sandbox.id]
                return str(sandbox.eval(f"{n} * {n}"))

        assert list(pool.map(work, range(4))) == ["0", "1", "4", "9"]


def test_killed_twice_is_killed(tag: str) -> None:
    sandbox = Sandbox(tag)
    sandbox.kill()
    sandbox.kill()
    with pytest.raises(ControllerError):
        Sandbox.connect(sandbox.id)


@pytest.mark.parametrize("example", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_examples_run(tag: str, example: str) -> None:
    variables = {**os.environ, "FORKD_TAG": tag}
    ran = subprocess.run([sys.executable, str(EXAMPLES / example)], env=variables, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout, "it says nothing"
