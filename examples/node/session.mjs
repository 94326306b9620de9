// A session with a Scaler server over ZeroMQ. See "The session" in docs/protocol.md.

import { randomBytes } from "node:crypto";
import { hostname } from "node:os";
import * as capnp from "capnp-es";
import * as zmq from "zeromq";
import { Body, Body_Which } from "./scaler.js";

const PROTOCOL = 4;
const HEADER_BYTES = 40;
const HANDSHAKE_MS = 5_000;
const FIRST_PAUSE_MS = 20;
const LONGEST_PAUSE_MS = 1_000;

const NO_HANDSHAKE = "the handshake failed: check that the server uses keys, and that the credential is for its cluster";

/** Thrown when a server rejects this peer. Retrying does not help. */
export class RefusedError extends Error {}

export class Session {
  /**
   * address: such as tcp://127.0.0.1:8516. peer: 8 bytes that name this client. keys: {server, own: {public, secret}}
   * in Z85, or undefined for a cluster without authentication. fill(hello): completes the Hello.
   * The events: opened(welcome, isResumed), received(which, body, attachments), ended(error).
   */
  constructor(address, peer, keys, fill, events) {
    Object.assign(this, { address, peer, keys, fill, events });
    this.id = Buffer.concat([peer, randomBytes(8)]);
    this.sent = 0n; // number of the last sent message
    this.received = 0n;
    this.unacknowledged = []; // messages that the server may not have received: {sequence, frames}
    this.wasWelcomed = false;
    this.isOpen = false;
    this.isClosed = false;
    this.pauseMs = FIRST_PAUSE_MS;
    this.lastError = "there is no answer yet";
    this.#dial();
  }

  /** Send a message in the sequence. It is kept until acknowledged, and resent if the connection breaks. */
  send(build, attachments = []) {
    const message = { sequence: ++this.sent, frames: [encode(build), ...attachments] };
    this.unacknowledged.push(message);
    if (this.isOpen) this.#transmit(message);
  }

  async close() {
    if (this.isClosed) return;
    this.isClosed = true;
    clearTimeout(this.timer);
    clearInterval(this.heartbeats);
    if (this.isOpen) await this.#post((body) => (body._initGoodbye().text = "the client was closed"));
    this.socket?.close();
  }

  #dial() {
    const curve = this.keys && {
      curveServerKey: this.keys.server,
      curvePublicKey: this.keys.own.public,
      curveSecretKey: this.keys.own.secret,
    };
    // A broken connection is not reused. The session continues on a new connection, after another Hello.
    const socket = new zmq.Dealer({ linger: 1_000, reconnectInterval: -1, ...curve });
    this.socket = socket;
    this.queue = Promise.resolve(); // zeromq sends one message at a time
    this.lastHeard = Date.now();
    this.#watch(socket);
    socket.connect(this.address);
    this.#read(socket);
    this.timer = setTimeout(() => this.#lost(socket, this.lastError), HANDSHAKE_MS);
    this.#post((body) => {
      const hello = body._initHello();
      hello.resume = this.wasWelcomed;
      hello.protocolVersion = PROTOCOL;
      hello.scalerVersion = "node";
      hello.hostname = hostname();
      hello.pid = process.pid;
      this.fill(hello);
    });
  }

  #watch(socket) {
    const end = (text) => this.#lost(socket, text);
    socket.events.on("disconnect", () => end(this.isOpen ? "the connection was lost" : NO_HANDSHAKE));
    socket.events.on("close", () => end("nothing listens there"));
    socket.events.on("connect:retry", () => end("nothing listens there"));
    socket.events.on("handshake:error:auth", ({ error }) => {
      this.#refuse(socket, `the server refuses this key (${error.message})`);
    });
    socket.events.on("handshake:error:protocol", () => end(NO_HANDSHAKE));
  }

  async #read(socket) {
    try {
      for await (const frames of socket) {
        if (socket !== this.socket || this.isClosed) return;
        this.#take(socket, frames);
      }
    } catch (error) {
      this.#lost(socket, error.message);
    }
  }

  /** Process a message. An exception here is a bug, not a connection error, so it ends the client. */
  #take(socket, frames) {
    try {
      this.#receive(socket, frames);
    } catch (error) {
      this.close();
      this.events.ended(error);
    }
  }

  #receive(socket, [header, data, ...attachments]) {
    this.lastHeard = Date.now();
    const body = new capnp.Message(data, false).getRoot(Body);
    const which = body.which();
    if (which === Body_Which.REFUSED) return this.#refuse(socket, body.refused.text);
    if (which === Body_Which.WELCOME) return this.#welcomed(header, body.welcome);
    if (which === Body_Which.GOODBYE) return this.#lost(socket, `the server said goodbye: ${body.goodbye.text}`);
    const sequence = header.readBigUInt64LE(24);
    this.#acknowledged(header.readBigUInt64LE(32));
    if (sequence > 0n) {
      if (sequence <= this.received) return; // received before the connection broke
      if (sequence !== this.received + 1n) return this.#lost(socket, "messages were lost on the way");
      this.received = sequence;
      this.acknowledging ??= setTimeout(() => this.#acknowledge(), 20);
    }
    this.events.received(which, body, attachments);
  }

  #welcomed(header, welcome) {
    clearTimeout(this.timer);
    const isResumed = welcome.resumed;
    if (isResumed) {
      this.#acknowledged(header.readBigUInt64LE(32));
    } else if (this.wasWelcomed) {
      this.sent = this.received = 0n; // the server has lost the session, so both sides restart their numbers at 1
      this.unacknowledged = [];
    }
    this.id = Buffer.from(header.subarray(8, 24));
    const isFirst = !this.wasWelcomed;
    this.wasWelcomed = this.isOpen = true;
    this.pauseMs = FIRST_PAUSE_MS;
    const waiting = this.unacknowledged;
    for (const message of waiting) this.#transmit(message);
    const leaseMs = welcome.leaseSeconds * 1_000;
    this.heartbeats = setInterval(() => this.#beat(leaseMs), welcome.heartbeatSeconds * 1_000);
    if (!waiting.length) this.#acknowledge(); // any message confirms the session
    this.events.opened(welcome, isFirst, isResumed);
  }

  #beat(leaseMs) {
    if (Date.now() - this.lastHeard > leaseMs / 2) return this.#lost(this.socket, "the server has been silent");
    this.#post((body) => (body._initHeartbeat().sentAt = performance.now() / 1_000));
  }

  #acknowledged(number) {
    while (this.unacknowledged.length && this.unacknowledged[0].sequence <= number) this.unacknowledged.shift();
  }

  #acknowledge() {
    this.acknowledging = undefined;
    if (this.isOpen) this.#post((body) => body._initAcknowledge());
  }

  #transmit({ sequence, frames }) {
    const socket = this.socket;
    const header = () => {
      const bytes = Buffer.alloc(HEADER_BYTES); // the checksum can be 0
      bytes.writeUInt32LE(PROTOCOL, 0);
      this.id.copy(bytes, 8);
      bytes.writeBigUInt64LE(sequence, 24);
      bytes.writeBigUInt64LE(this.received, 32);
      return bytes;
    };
    // A message that cannot be sent is resent on the next connection.
    this.queue = this.queue.then(() => socket === this.socket && socket.send([header(), ...frames])).catch(() => {});
    return this.queue;
  }

  /** Send a message outside the sequence: at most once. */
  #post(build) {
    return this.#transmit({ sequence: 0n, frames: [encode(build)] });
  }

  #lost(socket, text) {
    if (socket !== this.socket || this.isClosed) return;
    this.lastError = text;
    this.isOpen = false;
    this.socket = undefined;
    clearTimeout(this.timer);
    clearInterval(this.heartbeats);
    socket.close();
    this.timer = setTimeout(() => this.#dial(), this.pauseMs);
    this.pauseMs = Math.min(2 * this.pauseMs, LONGEST_PAUSE_MS);
  }

  #refuse(socket, text) {
    if (socket !== this.socket || this.isClosed) return;
    this.isOpen = false;
    this.close();
    this.events.ended(new RefusedError(text));
  }
}

/** Return the bytes of a Body. build(body): fills the body. */
export function encode(build) {
  const message = new capnp.Message();
  build(message.initRoot(Body));
  return Buffer.from(message.toArrayBuffer());
}

/** Fill a column of small numbers. initList: such as (n) => group._initPayloadSizes(n). */
export function column(initList, numbers) {
  const list = initList(numbers.length);
  numbers.forEach((number, index) => list.set(index, number));
}
