"""Search from one state in several directions: `python3 example.py [TAG]`."""

import sys

from forkd import Sandbox

with Sandbox(sys.argv[1] if sys.argv[1:] else "python-numpy") as sandbox:
    sandbox.run_code("x = np.arange(6).reshape(2, 3)")
    print(sandbox.eval("x"))

    children = sandbox.fork(3)
    for power, child in enumerate(children, start=1):
        with child:
            child.run_code(f"x = x ** {power}")
            print(child.eval("int(x.sum())"))
    print(sandbox.eval("int(x.sum())"))
