"""The kernel was warm before the fork; plots and tables come back as Jupyter shows them."""

from collections.abc import Callable

import pytest
from conftest import PATIENCE_SECS, assert_warm
from forkd import EvalError, Sandbox

Pair = tuple[Sandbox, Sandbox]


def test_both_have_the_kernel_of_their_parent(pair: Pair) -> None:
    assert_warm(pair, [int(sandbox.eval("import os; os.getpid()")) for sandbox in pair])
    assert pair[0].eval("type(get_ipython()).__name__, np is numpy") == "('ZMQInteractiveShell', True)"


def test_a_plot_is_a_picture_and_a_table_is_html(pair: Pair) -> None:
    sandbox, _ = pair
    table = sandbox.run_code("frame = pd.DataFrame({'n': [1, 2], 'square': [1, 4]}); frame", timeout=PATIENCE_SECS)
    (shown,) = table.outputs
    assert shown.kind == "result" and shown.html is not None and "<th>square</th>" in shown.html
    assert table.result is not None and table.result.split() == ["n", "square", "0", "1", "1", "1", "2", "4"]
    plot = sandbox.run_code("print('drawn'); _ = plt.plot(frame.n, frame.square)", timeout=PATIENCE_SECS)
    (shown,) = plot.outputs
    assert shown.kind == "display" and shown.png is not None and shown.png.startswith(b"\x89PNG")
    assert plot.stdout == "drawn\n"


def test_it_is_a_notebook(pair: Pair) -> None:
    sandbox, other = pair
    assert sandbox.eval("import asyncio; await asyncio.sleep(0.01); _i") is not None
    # IPython gives a shell a terminal, which ends lines as terminals do.
    assert sandbox.run_code("!echo from the shell").stdout.split() == ["from", "the", "shell"]
    with pytest.raises(EvalError, match="ZeroDivisionError"):
        sandbox.run_code("mine = 1; 1 / 0")
    assert sandbox.eval("mine") == "1"
    with pytest.raises(EvalError, match="NameError"):
        other.run_code("mine")
    with pytest.raises(EvalError, match="in time"):
        sandbox.run_code("while True: pass", timeout=2)
    assert sandbox.eval("mine") == "1"


def test_nothing_random_is_drawn_twice(pair: Pair) -> None:
    draw = "import random, uuid; (random.random(), np.random.random(), str(uuid.uuid4()))"
    one, other = (eval(sandbox.eval(draw)) for sandbox in pair)
    assert all(mine != theirs for mine, theirs in zip(one, other, strict=True)), (one, other)


def test_the_example(example: Callable[[], None]) -> None:
    example()
