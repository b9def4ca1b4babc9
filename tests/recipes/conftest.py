"""What the tests of recipes need: a daemon that is already there, and a snapshot of the recipe to fork.

Who runs them says where: FORKD_URL, FORKD_TOKEN, RECIPE and RECIPE_TAG.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forkd import Controller, Sandbox

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
# An emulated host takes its time.
PATIENCE_SECS = 300.0


def wanted(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        pytest.fail(f"{name} is not set; `e2e recipes` sets it")
    return value


@pytest.fixture(scope="session")
def tag() -> str:
    wanted("FORKD_URL")
    return wanted("RECIPE_TAG")


@pytest.fixture(scope="session")
def controller() -> Iterator[Controller]:
    with Controller(timeout=PATIENCE_SECS) as controller:
        yield controller


@pytest.fixture(scope="session")
def pair(controller: Controller, tag: str) -> Iterator[tuple[Sandbox, Sandbox]]:
    """Two forks of the recipe, which live for all tests."""
    infos = controller.spawn_sandboxes(tag, n=2)
    one, other = (Sandbox.connect(info["id"], timeout=PATIENCE_SECS) for info in infos)
    with one, other:
        yield one, other


@pytest.fixture
def example(tag: str) -> Callable[[], None]:
    """Runs the recipe's example, which must say what its README says."""
    return lambda: run_example(wanted("RECIPE"), tag)


def run_example(recipe: str, tag: str) -> None:
    command = f"$ python3 recipes/{recipe}/example.py\n"
    blocks = re.findall(r"```console\n(.*?)```", (RECIPES / recipe / "README.md").read_text(), re.DOTALL)
    shown = [block.removeprefix(command) for block in blocks if block.startswith(command)]
    assert len(shown) == 1, f"the README of {recipe} does not show what its example says"
    program = [sys.executable, str(RECIPES / recipe / "example.py"), tag]
    done = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE_SECS, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == shown[0]


START = r"""awk '{ sub(/.*\) /, ""); print $20 }' /proc/%s/stat"""
"""When a process was started, in ticks since the guest was."""


def started(sandbox: Sandbox, pid: object) -> int:
    return int(sandbox.commands.run(START % pid, timeout=PATIENCE_SECS).stdout)


def assert_warm(pair: tuple[Sandbox, Sandbox], pids: list[object]) -> None:
    """Both have the process of their parent: the same number, the same birth."""
    assert pids[0] == pids[1], pids
    births = [started(sandbox, pid) for sandbox, pid in zip(pair, pids, strict=True)]
    assert births[0] == births[1], f"process {pids[0]} was started in the children: {births}"
