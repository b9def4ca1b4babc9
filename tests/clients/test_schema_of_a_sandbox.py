"""The same about a sandbox that lives. Commands are run and files written that nobody thought up: only in a real VM."""

import pytest
from forkd import ControllerError
from openapi import ask, schema, some

# A few requests each: all that could be thought of would take long in a VM.
schema.config.phases.update(phases=["examples", "fuzzing"])
of_sandboxes = schema.include(path_regex=r"^/v1/sandboxes/\{id\}").exclude(method="DELETE")


@pytest.fixture(scope="module")
def sandbox(controller, tag):
    """One to try things on; whatever is made of it goes with it."""
    before = {one["tag"] for one in controller.list_snapshots()}
    made = controller.spawn_sandboxes(tag)[0]["id"]
    yield made
    controller.kill_sandbox(made)
    for one in {one["tag"] for one in controller.list_snapshots()} - before:
        try:
            controller.delete_snapshot(one)
        except ControllerError as error:
            assert error.status == 404, error


@of_sandboxes.parametrize()
@some(8)
def test_every_answer_is_documented(case, sandbox):
    case.path_parameters["id"] = sandbox
    ask(case)
