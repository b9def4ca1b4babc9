"""Untrusted CI: run a build in a VM of its own, and watch it."""

from forkd import Sandbox

SCRIPT = 'set -e; for step in fetch compile test; do echo "$step ..."; sleep 0.2; done; echo done'

with Sandbox(ttl_secs=600) as builder:
    result = builder.commands.run(SCRIPT, timeout=60, on_stdout=lambda text: print(text, end=""))
    print("exit code", result.exit_code)
