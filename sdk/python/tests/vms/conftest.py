"""A daemon that is already there, and a snapshot with Python and numpy warm: FORKD_URL, FORKD_TOKEN and CLIENTS_TAG."""

import os
from collections.abc import Iterator

import pytest
from forkd import Controller


@pytest.fixture(scope="session")
def tag() -> str:
    for name in ("FORKD_URL", "CLIENTS_TAG"):
        if not os.environ.get(name):
            pytest.fail(f"{name} is not set; `e2e clients` sets it")
    return os.environ["CLIENTS_TAG"]


@pytest.fixture(autouse=True)
def nothing_is_left(tag: str) -> Iterator[None]:
    """Whatever a test makes, it removes."""
    with Controller(timeout=120) as controller:

        def all_there_is() -> tuple[set[str], set[str]]:
            sandboxes = {one["id"] for one in controller.list_sandboxes()}
            return sandboxes, {one["tag"] for one in controller.list_snapshots()}

        before = all_there_is()
        yield
        assert all_there_is() == before
