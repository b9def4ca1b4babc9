"""What the tests of published clients need: a daemon that is already there, and a snapshot to fork.

Who runs them says where: FORKD_URL, FORKD_TOKEN, CLIENTS_TAG (a snapshot with Python and numpy warm), and
CLIENTS_KERNEL and CLIENTS_ROOTFS (files on the daemon's host, to boot another from).
"""

import os
import uuid
from collections.abc import Callable, Iterator

import pytest
from forkd import Controller, ControllerError


def wanted(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        pytest.fail(f"{name} is not set; `e2e clients` sets it")
    return value


@pytest.fixture(scope="session")
def tag() -> str:
    return wanted("CLIENTS_TAG")


@pytest.fixture(scope="session")
def kernel() -> str:
    return wanted("CLIENTS_KERNEL")


@pytest.fixture(scope="session")
def rootfs() -> str:
    return wanted("CLIENTS_ROOTFS")


@pytest.fixture(scope="session")
def controller() -> Controller:
    wanted("FORKD_URL")
    # An emulated host takes its time.
    return Controller(timeout=120.0)


@pytest.fixture
def fresh_tag(controller: Controller) -> Iterator[Callable[[], str]]:
    """Makes tags; the snapshots that got one are removed, the last first."""
    made: list[str] = []

    def make() -> str:
        made.append(f"clients-{uuid.uuid4().hex[:8]}")
        return made[-1]

    yield make
    for name in reversed(made):
        try:
            controller.delete_snapshot(name)
        except ControllerError as error:
            assert error.status == 404, error


@pytest.fixture
def sandboxes(controller: Controller) -> Iterator[Callable[..., list[str]]]:
    """Forks; whatever is left at the end is killed."""
    made: list[str] = []

    def spawn(snapshot: str, n: int = 1) -> list[str]:
        ids = [one["id"] for one in controller.spawn_sandboxes(snapshot, n=n)]
        made.extend(ids)
        return ids

    yield spawn
    alive = {one["id"] for one in controller.list_sandboxes()}
    for one in made:
        if one in alive:
            controller.kill_sandbox(one)
