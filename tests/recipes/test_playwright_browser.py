"""Chromium and its page were there before the fork; a child says a page's title and takes its picture."""

from collections.abc import Callable

from conftest import PATIENCE_SECS, assert_warm
from forkd import Sandbox

Pair = tuple[Sandbox, Sandbox]

PAGE = "data:text/html,<title>a page</title><body style='background:rgb(200,30,60)'><h1>forkd</h1>"


def test_both_have_the_browser_of_their_parent(pair: Pair) -> None:
    oldest = "pgrep -o -f chromium-headless-shell"
    assert_warm(pair, [sandbox.commands.run(oldest, timeout=PATIENCE_SECS).stdout.strip() for sandbox in pair])
    for sandbox in pair:
        assert sandbox.eval("await page.title()", timeout=PATIENCE_SECS) == "warm"


def test_a_page_has_a_title_and_a_picture(pair: Pair) -> None:
    one, other = pair
    one.run_code(f"await page.goto({PAGE!r}); undefined", timeout=PATIENCE_SECS)
    assert one.eval("await page.title()", timeout=PATIENCE_SECS) == "a page"
    (shown,) = one.run_code("await page.screenshot()", timeout=PATIENCE_SECS).outputs
    assert shown.png is not None and shown.png.startswith(b"\x89PNG")
    width, height = (int.from_bytes(shown.png[at : at + 4], "big") for at in (16, 20))
    assert (width, height) == (800, 600)
    assert other.eval("await page.title()", timeout=PATIENCE_SECS) == "warm"


def test_nothing_random_is_drawn_twice(pair: Pair) -> None:
    draw = "await page.evaluate(() => [Math.random(), crypto.getRandomValues(new Uint32Array(4)).join()])"
    one, other = (sandbox.eval(draw, timeout=PATIENCE_SECS) for sandbox in pair)
    assert one[0] != other[0] and one[1] != other[1], (one, other)


def test_the_example(example: Callable[[], None]) -> None:
    example()
