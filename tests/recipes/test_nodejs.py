"""Node was warm before the fork, and each fork is somebody of its own."""

from collections.abc import Callable

import pytest
from conftest import assert_warm
from forkd import EvalError, Sandbox

Pair = tuple[Sandbox, Sandbox]

DRAW = """
const c = require('crypto');
const later = await new Promise((done) => c.randomBytes(16, (_, bytes) => done(bytes.toString('hex'))));
const { publicKey } = c.generateKeyPairSync('ec', { namedCurve: 'P-256' });
({
  random: Math.random(), randomUUID: c.randomUUID(), webUUID: c.webcrypto.randomUUID(), randomInt: c.randomInt(2 ** 40),
  randomBytes: c.randomBytes(16).toString('hex'), later, key: publicKey.export({ type: 'spki', format: 'pem' }),
})
"""


def test_both_have_the_node_of_their_parent(pair: Pair) -> None:
    assert_warm(pair, [sandbox.eval("process.pid") for sandbox in pair])
    assert [sandbox.eval("typeof fs.readFileSync") for sandbox in pair] == ["function", "function"]


def test_values_are_json_and_state_is_each_ones_own(pair: Pair) -> None:
    one, other = pair
    assert one.eval("const seen = [1, { two: null }]; seen") == [1, {"two": None}]
    assert other.eval("typeof seen") == "undefined"
    assert one.eval("const seen = 2; await Promise.resolve(seen + 1)") == 3
    assert one.run_code("new Map([[1, 2]])").result == "Map(1) { 1 => 2 }"
    with pytest.raises(EvalError, match="Cannot read properties of undefined") as failed:
        one.run_code("console.log('so far')\nlet gone;\ngone.x")
    assert "<eval-" in str(failed.value.traceback) and failed.value.stdout == "so far\n"
    assert one.eval("seen") == 2


def test_nothing_random_is_drawn_twice(pair: Pair) -> None:
    one, other = (sandbox.eval(DRAW, timeout=120) for sandbox in pair)
    for source, drawn in one.items():
        assert drawn != other[source], f"{source} is the same in both: {drawn}"


def test_a_branch_goes_on_from_the_middle(pair: Pair) -> None:
    one, _ = pair
    one.run_code("let ticks = 0; setInterval(() => { ticks += 1 }, 50); const deep = { list: [1, 2, 3] }; undefined")
    (child,) = one.fork(1)
    with child:
        assert child.eval("deep.list.map((n) => 2 * n)") == [2, 4, 6]
        ticking = "const before = ticks; while (ticks === before) await new Promise((r) => setTimeout(r, 20)); true"
        assert child.eval(ticking, timeout=60) is True and one.eval(ticking, timeout=60) is True


def test_the_example(example: Callable[[], None]) -> None:
    example()
