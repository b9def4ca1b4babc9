// The Node that stays: runs what the agent sends, in one global scope that lasts as long as this process.
//
//     agent ── work ───> {"modules": [...]}                    load these
//                        {"code": "..."}                       run this
//                   <─── {"show": {"output", "kind", "mime", "text"}}, any number: the value as JSON, or as a picture
//                   <─── {"value": text or null, "error": {"type", "message", "traceback"} or null, "truncated"}
//
// Standard output and error are pipes the agent reads. SIGINT means that the code's time is up.
//
// Code is read as a browser's console reads it, which V8 does for inspectors only: names can be declared again, and
// `await` stands anywhere.

if (isMainThread) serveWork();
else serveRenewals(workerData);

function serveWork() {
  const util = require('util');
  const { Session } = require('inspector');
  const { promiseHooks } = require('v8');
  const { Script } = require('vm');
  const PIECE_CHARS = 32 << 10;
  const FORM_CHARS = 4 << 20;

  followRenewals();
  process.argv.length = 1;
  process.execArgv = [];
  delete process._eval;

  const hide = (name, value) => Object.defineProperty(globalThis, name, { value, configurable: true });
  // `import()` wants to know who asks, and what an inspector evaluates is nobody.
  hide('__forkd_import__', load);

  const session = new Session();
  session.connect();
  const inspect = (method, argument) => {
    let answer;
    session.post(method, argument, (error, result) => (answer = { error, result }));
    if (answer.error) throw answer.error;
    return answer.result;
  };
  // How the objects that the inspector only names are got at.
  const box = {};
  hide('__forkd__', box);
  const boxId = inspect('Runtime.evaluate', { expression: '__forkd__', objectGroup: 'forkd' }).result.objectId;
  function take({ objectId, unserializableValue, value }) {
    const named = objectId ? { objectId } : unserializableValue ? { unserializableValue } : { value };
    const functionDeclaration = 'function (value) { this.value = value }';
    inspect('Runtime.callFunctionOn', { functionDeclaration, objectId: boxId, arguments: [named] });
    const taken = box.value;
    delete box.value;
    return taken;
  }

  let body;
  hide('__forkd__', () => body());
  const entry = new Script('__forkd__()', { filename: '<forkd>' });
  // Runs something that SIGINT can end.
  function interruptible(run) {
    body = run;
    entry.runInThisContext({ breakOnSigint: true });
  }

  const timeIsUp = () => ({ error: { type: 'Interrupted', message: 'its time was up', traceback: 'Interrupted' } });
  const idle = () => {};
  // Ends the waiting for what runs, if anything does.
  let interrupt = idle;
  const handlers = {
    SIGINT: () => interrupt(),
    uncaughtException: (thrown) => {
      const { type, traceback } = described(thrown).error;
      console.error(type === 'Uncaught' ? traceback : `Uncaught ${traceback}`);
    },
  };

  const socket = listen(workFd, (request) => {
    // Code may have taken these for itself.
    for (const [event, handler] of Object.entries(handlers)) {
      if (!process.listeners(event).includes(handler)) process.on(event, handler);
    }
    // Not at once: an interrupt of what ran before may have come together with the request.
    setImmediate(async () => {
      const { shown, value, error, truncated } = await perform(request);
      await written(process.stdout);
      await written(process.stderr);
      for (const show of shown ?? []) socket.write(frame({ show }));
      socket.write(frame({ value: value ?? null, error: error ?? null, truncated: truncated ?? false }));
    });
  });

  // What a pipe does not take at once is written later.
  function written(stream) {
    return stream.writableLength > 0 ? new Promise((resolve) => stream.write('', resolve)) : undefined;
  }

  // What comes of it; when it is interrupted it may go on, and nobody waits for it any more.
  async function perform({ modules, code }) {
    const interrupted = new Promise((resolve) => (interrupt = () => resolve(timeIsUp())));
    const done = await Promise.race([modules ? loadModules(modules) : evaluate(code), interrupted]);
    interrupt = idle;
    return done;
  }

  async function loadModules(modules) {
    try {
      for (const name of modules) globalThis[identifier(name)] = await requireOrLoad(name);
      return {};
    } catch (error) {
      return described(error);
    }
  }

  async function requireOrLoad(name) {
    try {
      return require(name);
    } catch (error) {
      if (error?.code === 'ERR_REQUIRE_ESM') return load(name);
      throw error;
    }
  }

  // What a module is known as: @scope/some-thing as someThing.
  function identifier(name) {
    const last = name.split('/').pop().replace(/^node:|\.[cm]?js$/g, '');
    return last.replace(/[^\w$]+(.?)/g, (_, next) => next.toUpperCase());
  }

  let count = 0;
  async function evaluate(code) {
    const name = `<eval-${(count += 1)}>`;
    try {
      const found = await run(`${withImports(code)}\n//# sourceURL=${name}`);
      if (!found) return timeIsUp();
      const { result, exceptionDetails: failed, atOnce } = found;
      const value = take(failed ? failed.exception : result);
      // What an inspector could still ask for.
      inspect('Runtime.releaseObjectGroup', { objectGroup: 'eval' });
      inspect('Runtime.discardConsoleEntries');
      // What can be read fails later: it is an asynchronous function.
      if (failed && atOnce) return unreadable(value, code, name, failed);
      return failed ? described(value) : shown(util.types.isPromise(value) ? await value : value);
    } catch (error) {
      return described(error);
    }
  }

  // What the inspector says, or nothing if it was interrupted.
  function run(expression) {
    return new Promise((resolve, reject) => {
      const stop = holdPromise();
      const evaluation = { expression, replMode: true, objectGroup: 'eval' };
      let atOnce = true;
      const answered = (error, found) => resolve(error ? null : { ...found, atOnce });
      try {
        interruptible(() => session.post('Runtime.evaluate', evaluation, answered));
      } catch (error) {
        if (error.code === 'ERR_SCRIPT_EXECUTION_INTERRUPTED') resolve(null);
        else reject(error);
      } finally {
        atOnce = false;
        stop();
      }
    });
  }

  // The next promise, which will be what the inspector waits for: Node 22 dies when that is collected.
  const awaited = new Set();
  function holdPromise() {
    const stop = promiseHooks.onInit((promise) => {
      stop();
      awaited.add(promise);
      const forget = () => awaited.delete(promise);
      promise.then(forget, forget);
    });
    return stop;
  }

  // With `import(...)` as a call of ours; text, comments and what others call import are left as they are.
  function withImports(code) {
    const other = /\/\/.*|\/\*[^]*?\*\/|'(?:\\[^]|[^'\\\n])*'|"(?:\\[^]|[^"\\\n])*"|`(?:\\[^]|[^`\\])*`/;
    const parts = new RegExp(`${other.source}|(?<![\\w$.#])import(?=\\s*\\()`, 'g');
    return code.replace(parts, (part) => (part === 'import' ? '__forkd_import__' : part));
  }

  // A value for a person and, where it has that, as JSON or as a picture.
  function shown(value) {
    if (value === undefined) return {};
    const [text, cut] = clip(util.inspect(value, { depth: 4 }), VALUE_BYTES);
    const form = picture(value) ?? json(value);
    if (!form) return { value: text, truncated: cut };
    if (form.text.length > FORM_CHARS) return { value: text, truncated: true };
    return { value: text, truncated: cut, shown: pieces(form) };
  }

  function picture(value) {
    if (!util.types.isUint8Array(value)) return undefined;
    const bytes = Buffer.from(value.buffer, value.byteOffset, value.byteLength);
    const mime = { '89504e47': 'image/png', ffd8ffe0: 'image/jpeg' }[bytes.subarray(0, 4).toString('hex')];
    return mime && { mime, text: bytes.toString('base64') };
  }

  function json(value) {
    try {
      const text = JSON.stringify(value);
      return text === undefined ? undefined : { mime: 'application/json', text: wellFormed(text) };
    } catch {
      // A circle or a BigInt.
      return undefined;
    }
  }

  function* pieces({ mime, text }) {
    for (let at = 0; at < text.length; ) {
      let end = Math.min(at + PIECE_CHARS, text.length);
      // Never between the halves of a character.
      if (end < text.length && /[\ud800-\udbff]/.test(text[end - 1])) end -= 1;
      yield { output: 0, kind: 'result', mime, text: text.slice(at, end) };
      at = end;
    }
  }

  function described(thrown) {
    const isError = util.types.isNativeError(thrown);
    if (isError) cutStacks(thrown);
    const whole = say(() => util.inspect(thrown));
    const type = (isError ? say(() => thrown.name) : 'Uncaught') || 'Error';
    const message = isError ? say(() => thrown.message) : whole;
    return clipped(type, message, isError ? whole || type : `Uncaught ${whole}`);
  }

  // Code that V8 cannot read; it says where.
  function unreadable(error, code, name, { lineNumber, columnNumber }) {
    const lines = code.split('\n');
    const at = Math.min(lineNumber, lines.length - 1);
    const column = at === lineNumber ? columnNumber : lines[at].length;
    const place = `${name}:${at + 1}\n${lines[at]}\n${' '.repeat(column)}^\n\n`;
    return clipped('SyntaxError', error.message, `${place}SyntaxError: ${error.message}`);
  }

  function clipped(type, message, traceback) {
    const [[name], [said, cut], [trace, cutTrace]] = [
      clip(type, MESSAGE_BYTES),
      clip(message, MESSAGE_BYTES),
      clipToEnd(traceback, TRACEBACK_BYTES),
    ];
    return { error: { type: name, message: said, traceback: trace }, truncated: cut || cutTrace };
  }

  // Whatever it is, text.
  function say(what) {
    try {
      return String(what());
    } catch {
      return '';
    }
  }

  // An error's stack, and those of its causes, without what is ours at their ends.
  function cutStacks(error) {
    for (let depth = 0; depth < 8 && util.types.isNativeError(error); depth += 1) {
      const stack = say(() => error.stack);
      const ours = stack.indexOf('\n    at Session.post (node:inspector');
      if (ours >= 0) Object.defineProperty(error, 'stack', { value: stack.slice(0, ours) });
      error = error.cause;
    }
  }
}
