"""A renewal: the environment of the child, and randomness of its own.

    agent ── control ─> {"id": n, "env": {...}}              renew, at once, whatever the code is doing
                  <──── {"id": n, "error": text or null}
"""

# What the last renewal put into the environment; the names are given by whoever starts this.
renewed = dict.fromkeys(filter(None, sys.argv[3].split(",")), "")


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


def follow_renewals(control):
    threading.Thread(target=serve_control, args=(control,), name="forkd-control", daemon=True).start()
