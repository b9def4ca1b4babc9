"""A table and a plot out of a sandbox: `python3 example.py [TAG]`."""

import sys

from forkd import Sandbox

with Sandbox(sys.argv[1] if sys.argv[1:] else "jupyter-kernel", timeout=120) as sandbox:
    sandbox.run_code("sales = pd.DataFrame({'month': range(1, 7), 'sold': [3, 5, 4, 8, 9, 12]})")
    summary = sandbox.run_code("sales.sold.describe()[['mean', 'max']]")
    print(summary.result)

    table = sandbox.run_code("sales.head(2)").outputs[0]
    print(table.kind, sorted(table.data))

    plot = sandbox.run_code("sales.plot(x='month', y='sold'); None", timeout=120).outputs[0]
    assert plot.png is not None
    print(plot.kind, plot.png[1:4].decode(), "of more than 1 KiB" if len(plot.png) > 1024 else "too small")
