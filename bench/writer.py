# Writes so many MiB of memory round and round, a page at a time, and appends to a file that it syncs now and then. Says
# so when all of it has been written once.
import os, sys, time

SYNC_EVERY = 0.05

pages = int(sys.argv[1]) * 256
memory = bytearray(pages * 4096)
log = os.open("/root/bench.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
synced, number = time.monotonic(), 0
while True:
    number += 1
    memory[::4096] = bytes([number % 255 + 1]) * pages
    if number == 1:
        print("written", flush=True)
    if time.monotonic() - synced > SYNC_EVERY:
        os.write(log, b"%d\n" % number)
        os.fsync(log)
        synced = time.monotonic()
