"""The interpreter that stays: runs what the agent sends, in one namespace that lasts as long as this process."""

import ast
import collections
import linecache
import signal
import traceback
import types

try:
    import ctypes

    flush_c = ctypes.CDLL(None).fflush
except (ImportError, OSError, AttributeError):
    flush_c = None

OWN_CODE = "<forkd>"
# For how many pieces of code the lines are kept, so that tracebacks can show them.
REMEMBERED = 64

main = types.ModuleType("__main__")
sources = collections.deque()
interruptible = False


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
    return failure(name, message, text)


def import_modules(modules):
    for name in modules:
        exec(f"import {name}", main.__dict__)
        if name == "numpy":
            main.np = main.numpy
    keep_what_is_loaded()
    return answer()


def evaluate(code):
    try:
        value = run(code, remember(code))
        text, cut = (None, False) if value is None else clip(repr(value), VALUE_BYTES)
        return answer(text, truncated=cut)
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
    follow_renewals(control)
    while True:
        request = receive(work)
        # Code may have taken the signal for itself.
        signal.signal(signal.SIGINT, on_interrupt)
        if "modules" in request:
            done = guarded(import_modules, request["modules"])
        else:
            done = guarded(evaluate, request["code"])
        if os.getpid() != pid:
            # The code forked and this is the copy; only one may answer.
            os._exit(0)
        send(work, done)


serve(int(sys.argv[1]), int(sys.argv[2]))
