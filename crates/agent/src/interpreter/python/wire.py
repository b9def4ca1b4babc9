"""What every Python that stays needs to talk to the agent. The files of this directory are put together to one script:
this one, then ``renew`` and then who does the work, ``main`` or ``jupyter``.

    agent ── work ───> {"modules": [...]}                    import these
                       {"code": "..."}                       run this
                  <─── {"show": {"output", "kind", "mime", "text"}}, any number: what the code shows, in pieces
                  <─── {"value": text or null, "error": {"type", "message", "traceback"} or null, "truncated": bool}

Frames are those of the guest protocol: length (u32, little endian), a zero byte, JSON. Standard output and error are
pipes the agent reads. SIGINT means that the code's time is up. When the agent is gone, so is this.
"""

import gc
import json
import os
import struct
import sys
import threading

# An answer must fit into a frame. A character takes at most six bytes in JSON.
VALUE_BYTES = 160 << 10
TRACEBACK_BYTES = 48 << 10
MESSAGE_BYTES = 12 << 10


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


def answer(value=None, error=None, truncated=False):
    return {"value": value, "error": error, "truncated": truncated}


def failure(kind, message, trace):
    """The answer of code that raised something."""
    trace, cut_trace = clip(trace, TRACEBACK_BYTES, keep_end=True)
    message, cut_message = clip(message, MESSAGE_BYTES)
    error = {"type": clip(kind, MESSAGE_BYTES)[0], "message": message, "traceback": trace}
    return answer(error=error, truncated=cut_trace or cut_message)


def keep_what_is_loaded():
    """What was imported stays: a collector that no longer looks at it leaves the pages shared with other children."""
    gc.collect()
    gc.freeze()
