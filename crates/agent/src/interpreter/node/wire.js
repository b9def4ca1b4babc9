// What both threads of the Node that stays need to talk to the agent. The files of this directory are the body of one
// function of `require`, `load`, `text` and `given`, in the order wire, renew, main; each thread runs all of it.
//
// Frames are those of the guest protocol: length (u32, little endian), a zero byte, JSON.
'use strict';
const { isMainThread, workerData, SHARE_ENV, Worker } = require('worker_threads');
const { Socket } = require('net');
// What the agent says on the command line: descriptors, and the names in the environment that a renewal replaces.
const [workFd, controlFd, reseedFd] = given.slice(1, 4).map(Number);
const renewedNames = given[4].split(',').filter(Boolean);

const HEAD_BYTES = 5;
// An answer must fit into a frame. A character takes at most six bytes in JSON.
const VALUE_BYTES = 160 << 10;
const TRACEBACK_BYTES = 48 << 10;
const MESSAGE_BYTES = 12 << 10;

function frame(message) {
  const data = Buffer.from(JSON.stringify(message));
  const head = Buffer.alloc(HEAD_BYTES);
  head.writeUInt32LE(data.length);
  return Buffer.concat([head, data]);
}

// Hands over every message that comes. When the agent is gone, so is this.
function listen(fd, onMessage) {
  const socket = new Socket({ fd, readable: true, writable: true });
  let held = Buffer.alloc(0);
  socket.on('data', (data) => {
    held = Buffer.concat([held, data]);
    while (held.length >= HEAD_BYTES && held.length >= HEAD_BYTES + held.readUInt32LE()) {
      const end = HEAD_BYTES + held.readUInt32LE();
      const message = JSON.parse(held.subarray(HEAD_BYTES, end));
      held = held.subarray(end);
      onMessage(message);
    }
  });
  for (const over of ['end', 'error', 'close']) socket.on(over, () => process.exit(0));
  return socket;
}

// A lone surrogate is no text anywhere but in JavaScript.
function wellFormed(text) {
  return /[\ud800-\udfff]/.test(text) ? Buffer.from(text).toString() : text;
}

// The text, or as much of its beginning as surely fits; and whether it was cut.
function clip(text, limit) {
  return fits(text, limit) ? [wellFormed(text), false] : [wellFormed(text.slice(0, Math.floor(limit / 6))), true];
}

// The same with its end.
function clipToEnd(text, limit) {
  return fits(text, limit) ? [wellFormed(text), false] : [wellFormed(text.slice(-Math.floor(limit / 6))), true];
}

function fits(text, limit) {
  return text.length <= limit && Buffer.byteLength(JSON.stringify(wellFormed(text))) <= limit;
}
