"""Three attempts at the same bug from the same state, and the one whose tests pass: `python3 example.py [TAG]`."""

import sys

from forkd import Sandbox

PROGRAM = "def median(xs):\n    return xs[len(xs) // 2]\n"
TESTS = "from m import median\n\ndef test_median():\n    assert [median([3, 1, 2]), median([9, 1, 3, 2])] == [2, 2.5]\n"
IDEAS = {
    "sort": "def median(xs):\n    return sorted(xs)[len(xs) // 2]\n",
    "mean": "def median(xs):\n    return sum(xs) / len(xs)\n",
    "both": "def median(xs):\n    xs, n = sorted(xs), len(xs)\n    return (xs[(n - 1) // 2] + xs[n // 2]) / 2\n",
}

with Sandbox(sys.argv[1] if sys.argv[1:] else "coding-agent", timeout=300) as sandbox:
    sandbox.files.write("/root/work/m.py", PROGRAM)
    sandbox.files.write("/root/work/test_m.py", TESTS)
    sandbox.commands.run("cd work && git init -q && git add . && git -c user.name=a -c user.email=a@b commit -qm bug")

    attempts = sandbox.fork(len(IDEAS))
    for attempt, (name, text) in zip(attempts, IDEAS.items()):
        with attempt:
            attempt.files.write("/root/work/m.py", text)
            tested = attempt.commands.run("cd work && python3 -m pytest -q", timeout=300)
            changed = attempt.commands.run("cd work && git diff --numstat").stdout.split()
            print(f"{name}: {'passes' if tested.exit_code == 0 else 'fails'}, {changed[0]} lines")
    print(sandbox.commands.run("cd work && git status --short -uno").stdout or "the source is as it was")
