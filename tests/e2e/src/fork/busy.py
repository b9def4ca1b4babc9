"""A program that is in the middle of everything when its VM is frozen: 200 threads, an open file, a watched directory,
a transaction, a listening socket. Whoever connects says one line and is told one answer.
"""

import ctypes
import os
import socket
import sqlite3
import struct
import threading
import time

THREADS = 200
COUNT_PAUSE = 2
TICK_PAUSE = 0.5
IN_CREATE = 0x100

counts = [0] * THREADS
ticks = []


def count(index):
    while True:
        counts[index] += 1
        time.sleep(COUNT_PAUSE)


def tick():
    while True:
        ticks.append(time.monotonic())
        time.sleep(TICK_PAUSE)


for index in range(THREADS):
    threading.Thread(target=count, args=(index,), daemon=True).start()
threading.Thread(target=tick, daemon=True).start()

file = open("/root/file", "w+")
file.write("parent ")
file.flush()

os.mkdir("/root/watched")
libc = ctypes.CDLL(None)
watch = libc.inotify_init1(os.O_NONBLOCK)
libc.inotify_add_watch(watch, b"/root/watched", IN_CREATE)

database = sqlite3.connect("/root/rows", isolation_level=None)
database.execute("CREATE TABLE rows (word TEXT)")
database.execute("BEGIN")
database.execute("INSERT INTO rows VALUES ('parent')")


def rows():
    return [word for (word,) in sqlite3.connect("/root/rows").execute("SELECT word FROM rows")]


def write(word):
    file.write(word)
    file.flush()
    return open("/root/file").read()


def created():
    events, names = os.read(watch, 4096), []
    while events:
        length = struct.unpack_from("iIII", events)[3]
        names.append(events[16 : 16 + length].rstrip(b"\0").decode())
        events = events[16 + length :]
    return names


def commit(word):
    before = rows()
    database.execute("INSERT INTO rows VALUES (?)", (word,))
    database.execute("COMMIT")
    return before, rows()


def gaps():
    gaps = [after - before for before, after in zip(ticks, ticks[1:])]
    return len(ticks), min(gaps), max(gaps)


answers = {"write": write, "created": created, "commit": commit, "gaps": gaps}
answers["counted"] = lambda: (min(counts), sum(thread.is_alive() for thread in threading.enumerate()))

server = socket.create_server(("127.0.0.1", 7000))
while min(counts) == 0 or len(ticks) < 2:
    time.sleep(0.1)
open("/run/busy", "w").close()
while True:
    client, _ = server.accept()
    name, *words = client.recv(100).decode().split()
    client.sendall(repr(answers[name](*words)).encode())
    client.close()
