"""What tests of the OpenAPI document share."""

import os

import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

URL = os.environ.get("FORKD_URL", "http://127.0.0.1:8889")
TOKEN = os.environ.get("FORKD_TOKEN")
HEADERS = {"authorization": f"Bearer {TOKEN}"} if TOKEN else {}
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
# A stream without an end is left out, and so is what a server in a sandbox answers, who says what he likes.
document = schemathesis.openapi.from_url(f"{URL}/v1/openapi.json", headers=HEADERS)
schema = document.exclude(path=["/v1/events", "/v1/packs/progress"]).exclude(path_regex=r"/ports/\{port\}/\{path\}$")


def some(count):
    """So many examples of each operation, the same ones each time."""
    return settings(
        max_examples=int(os.environ.get("CLIENTS_EXAMPLES", count)),
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def ask(case):
    if case.query and "follow" in case.query:
        case.query["follow"] = "false"
    if isinstance(case.body, dict) and case.body.get("attached"):
        case.body["attached"] = False
    case.call_and_validate(headers=HEADERS, timeout=60, checks=CHECKS)
