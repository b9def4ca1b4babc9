"""Tree search: prepare once, fork into several attempts, keep the one that works."""

from forkd import Sandbox

ATTEMPTS = {"add": "a + b", "multiply": "a * b", "power": "a ** b"}

with Sandbox(ttl_secs=600) as root:
    root.eval("a, b, wanted = 3, 4, 81")  # in real life: clone, install, reproduce the bug
    for (name, code), attempt in zip(ATTEMPTS.items(), root.fork(len(ATTEMPTS))):
        with attempt:
            result = attempt.eval(f"({code}) == wanted")
            print(f"{name}: {'works' if result == 'True' else 'does not work'}")
