"""The interpreter that stays: runs what the agent sends, in one namespace that lasts as long as this process.

    agent ── work ───> {"modules": [...]}                    import these
                       {"code": "..."}                       run this
                  <─── {"value": repr or null, "error": {"type", "message", "traceback"} or null, "truncated": bool}
    agent ── control ─> {"id": n, "env": {...}}              renew, at once, whatever the code is doing
                  <──── {"id": n, "error": text or null}

Frames are those of the guest protocol: length (u32, little endian), a zero byte, JSON. Standard output and error are
pipes the agent reads. SIGINT means that the code's time is up. When the agent is gone, so is this.
"""

import ast
import collections
import gc
import json
import linecache
import os
import signal
import struct
import sys
import threading
import traceback
import types

try:
    import ctypes

    flush_c = ctypes.CDLL(None).fflush
except (ImportError, OSError, AttributeError):
    flush_c = None

OWN_CODE = "<forkd>"
# An answer must fit into a frame. A character takes at most six bytes in JSON.
VALUE_BYTES = 160 << 10
TRACEBACK_BYTES = 48 << 10
MESSAGE_BYTES = 12 << 10
# For how many pieces of code the lines are kept, so that tracebacks can show them.
REMEMBERED = 64

main = types.ModuleType("__main__")
sources = collections.deque()
interruptible = False
# What the last renewal put into the environment; the names are given by whoever starts this.
renewed = dict.fromkeys(filter(None, sys.argv[3].split(",")), "")


def encoded(value):
    # A lone surrogate is no text anywhere but in Python.
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def clip(text, limit, keep_end=False):
    """The text, or as much of it as surely fits; and whether it was cut."""
    if len(text) <= limit and len(encoded(text)) <= limit:
        return text, False
    return (text[-(limit // 6):] if keep_end else text[: limit // 6]), True


def read_exactly(fd, count):
    data = b""
    while len(data) < count:
        piece = os.read(fd, count - len(data))
        if not piece:
            os._exit(0)
        data += piece
    return data


def receive(fd):
    (length,) = struct.unpack("<Ix", read_exactly(fd, 5))
    return json.loads(read_exactly(fd, length))


def send(fd, answer):
    data = encoded(answer)
    data = struct.pack("<Ix", len(data)) + data
    while data:
        data = data[os.write(fd, data):]


def on_interrupt(signum, frame):
    # Once per piece of code, and never outside of it.
    global interruptible
    if interruptible:
        interruptible = False
        raise KeyboardInterrupt


def guarded(work, argument):
    """Runs the work so that an interrupt can end it, and nothing else."""
    global interruptible
    try:
        interruptible = True
        try:
            try:
                return work(argument)
            except BaseException as error:
                return describe(error)
        finally:
            interruptible = False
    except BaseException as error:
        interruptible = False
        return describe(error)


def is_own(trace):
    return trace is not None and trace.tb_frame.f_code.co_filename == OWN_CODE


def their_part(trace):
    """The traceback without what is ours at its beginning and, after an interrupt, at its end."""
    while is_own(trace):
        trace = trace.tb_next
    last = trace
    while last is not None:
        if is_own(last.tb_next):
            last.tb_next = None
        last = last.tb_next
    return trace


def describe(error):
    trace = their_part(error.__traceback__)
    text = "".join(traceback.format_exception(type(error), error, trace))
    try:
        message = str(error)
    except Exception:
        message = ""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    text, cut_text = clip(text, TRACEBACK_BYTES, keep_end=True)
    message, cut_message = clip(message, MESSAGE_BYTES)
    error = {"type": clip(name, MESSAGE_BYTES)[0], "message": message, "traceback": text}
    return {"value": None, "error": error, "truncated": cut_text or cut_message}


def import_modules(modules):
    for name in modules:
        exec(f"import {name}", main.__dict__)
        if name == "numpy":
            main.np = main.numpy
    # What was imported stays: a collector that no longer looks at it leaves the pages shared with other children.
    gc.collect()
    gc.freeze()
    return {"value": None, "error": None, "truncated": False}


def evaluate(code):
    try:
        value = run(code, remember(code))
        text, cut = (None, False) if value is None else clip(repr(value), VALUE_BYTES)
        return {"value": text, "error": None, "truncated": cut}
    finally:
        flush()


def remember(code):
    name = f"<eval {remember.count}>"
    remember.count += 1
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    sources.append(name)
    if len(sources) > REMEMBERED:
        linecache.cache.pop(sources.popleft(), None)
    return name


remember.count = 1


def run(code, name):
    tree = ast.parse(code, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec", dont_inherit=True), main.__dict__)
    if last is None:
        return None
    return eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), main.__dict__)


def flush():
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            # Closed or replaced by the code; what it wrote is its own business then.
            pass
    if flush_c is not None:
        flush_c(None)


def renew(env):
    """Takes over the new environment and gives every generator a seed of its own."""
    global renewed
    for name in renewed.keys() - env.keys():
        os.environ.pop(name, None)
    os.environ.update(env)
    renewed = env
    if "random" in sys.modules:
        sys.modules["random"].seed()
    if "numpy.random" in sys.modules:
        reseed_numpy(sys.modules["numpy.random"])
    if "_ssl" in sys.modules:
        # OpenSSL notices a fork by the process id, which a fork of the whole machine does not change.
        sys.modules["_ssl"].RAND_add(os.urandom(64), 64.0)


def reseed_numpy(random):
    try:
        random.seed()
    except TypeError:
        # Somebody set another bit generator, which only takes a state.
        generator = random.get_bit_generator()
        generator.state = type(generator)().state


def serve_control(fd):
    while True:
        request = receive(fd)
        error = None
        try:
            renew(request["env"])
        except BaseException as raised:
            error = clip(repr(raised), MESSAGE_BYTES)[0]
        send(fd, {"id": request["id"], "error": error})


def serve(work, control):
    pid = os.getpid()
    for fd in (work, control):
        os.set_inheritable(fd, False)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    main.__builtins__ = __builtins__
    sys.modules["__main__"] = main
    sys.argv = [""]
    signal.signal(signal.SIGINT, on_interrupt)
    threading.Thread(target=serve_control, args=(control,), name="forkd-control", daemon=True).start()
    while True:
        request = receive(work)
        # Code may have taken the signal for itself.
        signal.signal(signal.SIGINT, on_interrupt)
        if "modules" in request:
            answer = guarded(import_modules, request["modules"])
        else:
            answer = guarded(evaluate, request["code"])
        if os.getpid() != pid:
            # The code forked and this is the copy; only one may answer.
            os._exit(0)
        send(work, answer)


serve(int(sys.argv[1]), int(sys.argv[2]))
