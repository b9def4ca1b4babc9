"""The OpenAPI document, in the hands of a program that makes requests up: whatever is sent, the answer is one of those
documented, and never an error of the daemon's."""

import os

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from forkd import ControllerError

URL = os.environ.get("FORKD_URL", "http://127.0.0.1:8889")
TOKEN = os.environ.get("FORKD_TOKEN")
HEADERS = {"authorization": f"Bearer {TOKEN}"} if TOKEN else {}
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
# A stream without an end is left out.
schema = schemathesis.openapi.from_url(f"{URL}/v1/openapi.json", headers=HEADERS).exclude(path="/v1/events")
of_sandboxes = schema.include(path_regex=r"^/v1/sandboxes/\{id\}").exclude(method="DELETE")
some = settings(
    max_examples=int(os.environ.get("CLIENTS_EXAMPLES", "30")),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


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


def ask(case):
    if case.query and "follow" in case.query:
        case.query["follow"] = "false"
    case.call_and_validate(headers=HEADERS, timeout=60, checks=CHECKS)


@schema.parametrize()
@some
def test_every_answer_is_documented(case):
    ask(case)


@of_sandboxes.parametrize()
@some
def test_every_answer_about_a_sandbox_that_lives_is_documented(case, sandbox):
    case.path_parameters["id"] = sandbox
    ask(case)
