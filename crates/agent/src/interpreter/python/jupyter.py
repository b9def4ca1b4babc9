"""A kernel of Jupyter's that stays, and a client of it that does what the agent sends.

The first thread is the kernel, as ``python3 -m ipykernel`` is: signals reach it as Jupyter's do, and whoever reads its
connection file can speak with it, too. Another thread of the same process asks it, over Jupyter's own protocol; so a
renewal reaches what the kernel has in its memory whatever it is doing.
"""

import signal
import tempfile

from ipykernel.kernelapp import IPKernelApp
from jupyter_client.blocking import BlockingKernelClient
from tornado.ioloop import IOLoop
from traitlets.config import Config

# A piece of what is shown must fit into a frame.
PIECE_CHARS = 32 << 10
# What people call these.
ALIASES = {"numpy": "np", "pandas": "pd", "matplotlib.pyplot": "plt"}


class Worker:
    """Does what the agent sends, one thing after another."""

    def __init__(self, fd, client, streams):
        self.fd = fd
        self.client = client
        self.streams = streams

    def serve(self):
        self.client.start_channels()
        self.client.wait_for_ready()
        while True:
            request = receive(self.fd)
            done = self.load(request["modules"]) if "modules" in request else self.run(request["code"])
            send(self.fd, done)

    def load(self, modules):
        for name in modules:
            alias = f"; import {name} as {ALIASES[name]}" if name in ALIASES else ""
            done = self.run(f"import {name}{alias}", store_history=False)
            if done["error"]:
                return done
        keep_what_is_loaded()
        return answer()

    def run(self, code, **how):
        """Has the kernel run code, and passes on what it says meanwhile."""
        asked = self.client.execute(code, allow_stdin=False, **how)
        said = Said(self.fd, self.streams)
        while True:
            message = self.client.get_iopub_msg()
            if message["parent_header"].get("msg_id") == asked:
                kind, content = message["msg_type"], message["content"]
                if kind == "status" and content["execution_state"] == "idle":
                    break
                said.hear(kind, content)
        # Its reply says nothing more.
        while self.client.get_shell_msg()["parent_header"].get("msg_id") != asked:
            pass
        return said.answer()


class Said:
    """What a kernel says of one piece of code."""

    def __init__(self, fd, streams):
        self.fd = fd
        self.streams = streams
        self.outputs = 0
        self.value = None
        self.error = None

    def hear(self, kind, content):
        if kind == "stream":
            write_all(self.streams[content["name"]], content["text"].encode("utf-8", "backslashreplace"))
        elif kind in ("display_data", "update_display_data"):
            self.show("display", content["data"])
        elif kind == "execute_result":
            self.value = content["data"].get("text/plain")
            self.show("result", content["data"])
        elif kind == "error":
            self.error = content

    def show(self, kind, data):
        for mime, form in data.items():
            text = form if isinstance(form, str) else json.dumps(form)
            for at in range(0, max(len(text), 1), PIECE_CHARS):
                piece = {"output": self.outputs, "kind": kind, "mime": mime, "text": text[at : at + PIECE_CHARS]}
                send(self.fd, {"show": piece})
        self.outputs += 1 if data else 0

    def answer(self):
        if self.error is not None:
            return failure(self.error["ename"], self.error["evalue"], "\n".join(self.error["traceback"]))
        text, cut = (None, False) if self.value is None else clip(self.value, VALUE_BYTES)
        return answer(text, truncated=cut)


def write_all(fd, data):
    while data:
        data = data[os.write(fd, data) :]


def wake_by_signals(loop):
    """Code that awaits something sleeps in the loop, which would not notice that it was interrupted."""
    ours, theirs = os.pipe()
    for end in (ours, theirs):
        os.set_blocking(end, False)
    loop.add_reader(ours, os.read, ours, 4096)
    signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)


def serve(work, control):
    for fd in (work, control):
        os.set_inheritable(fd, False)
    # Those the agent reads; the kernel has its own idea of where sys.stdout leads to.
    streams = {"stdout": os.dup(1), "stderr": os.dup(2)}
    follow_renewals(control)
    home = tempfile.mkdtemp(prefix="forkd-kernel-")
    sys.argv = [""]
    place = {"connection_file": f"{home}/kernel.json", "transport": "ipc", "ip": f"{home}/socket"}
    # What other processes and C code write goes straight to the agent.
    kernel = {"capture_fd_output": False, **place}
    app = IPKernelApp.instance(config=Config(IPKernelApp=kernel, InteractiveShell={"colors": "NoColor"}))
    app.initialize([])
    wake_by_signals(IOLoop.current().asyncio_loop)
    client = BlockingKernelClient(connection_file=app.abs_connection_file)
    client.load_connection_file()
    worker = Worker(work, client, streams)
    threading.Thread(target=worker.serve, name="forkd-work", daemon=True).start()
    app.start()


serve(int(sys.argv[1]), int(sys.argv[2]))
