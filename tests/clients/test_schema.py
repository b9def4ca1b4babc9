"""The OpenAPI document, in the hands of a program that makes requests up: whatever is sent, the answer is one of those
documented, and never an error of the daemon's."""

from openapi import ask, schema, some


@schema.parametrize()
@some(30)
def test_every_answer_is_documented(case):
    ask(case)
