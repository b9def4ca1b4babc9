"""JavaScript in forks of one warm Node: `python3 example.py [TAG]`."""

import sys

from forkd import Sandbox

with Sandbox(sys.argv[1] if sys.argv[1:] else "nodejs") as sandbox:
    # State lasts, promises are awaited, and values come back as JSON.
    sandbox.eval("const prices = { apple: 3, pear: 5 }")
    print(sandbox.eval("Object.values(prices).reduce((a, b) => a + b)"))
    print(sandbox.eval("await Promise.all([1, 2, 3].map(async (n) => n ** 2))"))

    # Two futures of the same program.
    left, right = sandbox.fork(2)
    with left, right:
        left.eval("prices.apple = 4")
        right.eval("delete prices.pear")
        print(left.eval("prices"), right.eval("prices"), sandbox.eval("prices"))
