"""The tools are there, and 50 MiB of state travel through a branch while the source goes on."""

from collections.abc import Callable

from conftest import PATIENCE_SECS, assert_warm
from forkd import Sandbox

Pair = tuple[Sandbox, Sandbox]

# Every page is different, so that nothing is stored once for many.
BUILD = """
import pathlib, zlib, threading, time
MIB = 1 << 20
notes = b"".join(n.to_bytes(8, "little") * 512 for n in range(25 * MIB // 4096))
files = b"".join(n.to_bytes(8, "big") * 512 for n in range(25 * MIB // 4096))
pathlib.Path("/root/state").write_bytes(files)
ticks = 0
def tick():
    global ticks
    while True:
        ticks += 1
        time.sleep(0.05)
threading.Thread(target=tick, daemon=True).start()
sums = zlib.crc32(notes), zlib.crc32(files)
"""
CHECK = "(zlib.crc32(notes), zlib.crc32(pathlib.Path('/root/state').read_bytes())) == sums, len(notes)"
TICKING = "before = ticks\nwhile ticks == before: time.sleep(0.02)\nticks > before"


def test_both_have_the_python_of_their_parent(pair: Pair) -> None:
    assert_warm(pair, [int(sandbox.eval("import os; os.getpid()")) for sandbox in pair])


def test_tools_work(pair: Pair) -> None:
    script = """set -e
mkdir work; cd work; git init -q .; git config user.email a@b; git config user.name a
printf '#include <stdio.h>\\nint main(void) { puts("compiled"); }\\n' > a.c
printf 'a: a.c\\n\\tcc -o a a.c\\n' > Makefile
printf 'def test_a():\\n    assert 1 + 1 == 2\\n' > test_a.py
make -s a; ./a; git add a.c; git commit -qm first; git log --format=%s; rg -l puts
python3 -m pytest -q -p no:cacheprovider test_a.py | tail -n 1
"""
    done = pair[0].commands.run(script, timeout=PATIENCE_SECS)
    lines = done.stdout.splitlines()
    assert (done.exit_code, lines[:3]) == (0, ["compiled", "first", "a.c"]), done
    assert lines[3].startswith("1 passed"), done


def test_fifty_mib_travel_through_a_branch(pair: Pair) -> None:
    source, _ = pair
    source.run_code(BUILD, timeout=PATIENCE_SECS)
    (child,) = source.fork(1)
    with child:
        assert child.eval(CHECK, timeout=PATIENCE_SECS) == f"(True, {25 << 20})"
        # Both go on, each by itself.
        child.run_code("notes = b''; pathlib.Path('/root/state').unlink()")
        assert child.eval(TICKING) == "True"
    assert source.eval(TICKING) == "True"
    assert source.eval(CHECK, timeout=PATIENCE_SECS) == f"(True, {25 << 20})"


def test_the_example(example: Callable[[], None]) -> None:
    example()
