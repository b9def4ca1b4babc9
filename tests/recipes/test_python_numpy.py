"""Python and numpy were warm before the fork."""

from collections.abc import Callable

from conftest import assert_warm
from forkd import Sandbox

Pair = tuple[Sandbox, Sandbox]


def test_both_have_the_python_of_their_parent(pair: Pair) -> None:
    assert_warm(pair, [int(sandbox.eval("import os; os.getpid()")) for sandbox in pair])
    assert pair[0].eval("numpy.arange(6).reshape(2, 3).tolist()") == "[[0, 1, 2], [3, 4, 5]]"


def test_nothing_random_is_drawn_twice(pair: Pair) -> None:
    draw = "import random, uuid, ssl; (random.random(), np.random.random(), str(uuid.uuid4()), ssl.RAND_bytes(8))"
    one, other = (eval(sandbox.eval(draw)) for sandbox in pair)
    assert all(mine != theirs for mine, theirs in zip(one, other, strict=True)), (one, other)


def test_the_example(example: Callable[[], None]) -> None:
    example()
