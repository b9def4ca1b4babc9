// A renewal: the environment of the child, and randomness of its own.
//
//     agent ── control ─> {"id": n, "env": {...}}              renew, at once, whatever the code is doing
//                   <──── {"id": n, "error": text or null}
//
// It is served by a thread of its own, because code may never let go of the first one. Every renewal counts up, so that
// whoever keeps random numbers for later sees that they are those of the parent.

// The thread's only work.
function serveRenewals({ renewals }) {
  const { RTLD_NOW } = require('os').constants.dlopen;
  let renewed = renewedNames;
  const renew = (env) => {
    for (const name of renewed) if (!(name in env)) delete process.env[name];
    Object.assign(process.env, env);
    renewed = Object.keys(env);
    // OpenSSL notices a fork by the process id, which a fork of the whole machine does not change; and Node does not
    // let it be reseeded from JavaScript. This module does it when it is loaded, for all threads.
    process.dlopen({ exports: {} }, `/proc/self/fd/${reseedFd}`, RTLD_NOW);
    Atomics.add(renewals, 0, 1);
  };
  const socket = listen(controlFd, ({ id, env }) => {
    let error = null;
    try {
      renew(env);
    } catch (thrown) {
      error = clip(String(thrown), MESSAGE_BYTES)[0];
    }
    socket.write(frame({ id, error }));
  });
}

// Starts the thread, and has everything of the first one that keeps random numbers let go of them when it renews.
function followRenewals() {
  const renewals = new Int32Array(new SharedArrayBuffer(4));
  const run = "require('vm').compileFunction(d.text, ['require', 'load', 'text', 'given'], { filename: '<forkd>' })";
  const source = `const { workerData: d } = require('worker_threads'); ${run}(require, null, d.text, d.given)`;
  const data = { renewals, text, given };
  const worker = new Worker(source, { eval: true, env: SHARE_ENV, execArgv: [], workerData: data });
  worker.on('error', (error) => console.error('forkd: nothing renews this Node any more:', error));
  worker.unref();
  replaceRandomness(() => Atomics.load(renewals, 0));
}

function replaceRandomness(generation) {
  const crypto = require('crypto');
  const { randomFillSync, randomInt, randomUUID, webcrypto } = crypto;
  const put = (object, name, value) => Object.defineProperty(object, name, { value });

  // The state of V8's Math.random cannot be reached; this one draws from OpenSSL, some at a time.
  const drawn = new Uint32Array(512);
  let left = 0;
  let drawnIn = -1;
  const draw = () => {
    drawnIn = generation();
    randomFillSync(drawn);
    left = drawn.length;
  };
  const own = {
    random() {
      if (left === 0 || generation() !== drawnIn) draw();
      left -= 2;
      return ((drawn[left] >>> 5) * 67108864 + (drawn[left + 1] >>> 6)) / 9007199254740992;
    },
  };
  put(Math, 'random', own.random);

  // Both have some ready; one can do without, the other uses them up.
  let usedUpIn = generation();
  const fresh = {
    randomUUID(options) {
      return randomUUID({ ...options, disableEntropyCache: true });
    },
    randomInt(...bounds) {
      if (generation() !== usedUpIn) {
        usedUpIn = generation();
        for (let ready = 0; ready < 1024; ready += 1) randomInt(2 ** 48 - 1);
      }
      return randomInt(...bounds);
    },
  };
  put(crypto, 'randomUUID', fresh.randomUUID);
  put(crypto, 'randomInt', fresh.randomInt);
  const web = { randomUUID: () => fresh.randomUUID() };
  if (webcrypto?.randomUUID) put(Object.getPrototypeOf(webcrypto), 'randomUUID', web.randomUUID);
  require('module').syncBuiltinESMExports();
}
