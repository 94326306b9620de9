// A Scaler client that calls Python functions by name, with JSON arguments and results. See docs/protocol.md.

import { randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { blake2b } from "@noble/hashes/blake2.js";
import { Body_Which, Outcome, Role, Spec, StorageResult } from "./scaler.js";
import { RefusedError, Session, column } from "./session.mjs";

export { RefusedError };

const NAMED = 5;
const JSON_TAG = 6;
const STORED = 3;
const EXCEPTION = 4;
const TASK_KIND = 0;
const OBJECT_KIND = 0xffff;
const INLINE_BYTES = 32 * 1024;
const PIECE_BYTES = 1024 * 1024;
const BATCH_TASKS = 1_000;
const BATCH_BYTES = 1024 * 1024;
const ACKNOWLEDGE_MS = 1_000;
const OUTCOMES = Object.fromEntries(Object.entries(Outcome).map(([name, number]) => [number, name]));

/** A task's failure. type, traceback: of its Python exception; outcome: such as EXCEPTION or CANCELLED. */
export class TaskError extends Error {
  constructor(outcome, type, text, traceback) {
    super(type ? `${type}: ${text}` : text);
    Object.assign(this, { outcome, type, traceback });
  }
}

/** A call. Await it to get its value, or pass it to another call as an argument. */
class Task {
  constructor(id, call) {
    this.id = id;
    this.call = call;
    this.wasSent = false;
    this.result = new Promise((resolve, reject) => Object.assign(this, { resolve, reject }));
    this.result.catch(() => {}); // the caller that awaits the task gets the error
  }

  then(...handlers) {
    return this.result.then(...handlers);
  }
}

export class Client {
  /**
   * Connect to a scheduler. credentials: path of a credential file from `scaler keys add`; without one, the cluster
   * must run with insecure_no_auth. Rejects with RefusedError, or if the scheduler does not answer within timeoutMs.
   */
  static async connect(address, { credentials, name = "node", timeoutMs = 30_000 } = {}) {
    const client = new Client(address, credentials && readCredential(credentials), name);
    const timer = setTimeout(() => {
      client.#end(new Error(`no scheduler answers at ${address}: ${client.scheduler.lastError}`));
    }, timeoutMs);
    try {
      await client.isWelcome;
    } finally {
      clearTimeout(timer);
    }
    return client;
  }

  constructor(address, credential, name) {
    this.peer = randomBytes(8);
    this.address = address;
    this.credential = credential;
    this.count = 0;
    this.unfinished = new Map(); // by hexadecimal id
    this.objects = new Map(); // stored bytes of unfinished tasks, by hexadecimal id
    this.announced = new Set();
    this.ready = []; // tasks to send together
    this.uploads = 0;
    this.restarts = 0;
    this.resolved = this.acknowledged = 0n; // numbers of Finished
    this.isWelcome = new Promise((resolve, reject) => (this.answered = { resolve, reject }));
    this.scheduler = new Session(address, this.peer, this.#keys("scheduler_key"), (hello) => {
      hello.role = Role.CLIENT;
      hello._initClientDetails().name = name;
    }, {
      opened: (welcome, isFirst, isResumed) => this.#opened(welcome, isFirst, isResumed),
      received: (which, body) => this.#received(which, body),
      ended: (error) => this.#end(error),
    });
  }

  /** Call a function by name, module:function. options: fields of Spec in the schema, such as priority or retries. */
  submit(name, args = [], kwargs = {}, options = {}) {
    if (this.error) throw this.error;
    const unknown = Object.keys(options).find((key) => !(key in Spec.prototype));
    if (unknown) throw new Error(`there is no option ${unknown}: see Spec in the schema`);
    const task = new Task(this.#newId(TASK_KIND), { name, args, kwargs, options });
    this.unfinished.set(task.id.toString("hex"), task);
    this.#send(task);
    return task;
  }

  /** Call a function once for each item, and return the values in the order of the items. */
  map(name, items, options = {}) {
    return Promise.all(items.map((item) => this.submit(name, [item], {}, options)));
  }

  /** Request cancellation of a task, which then fails with the outcome CANCELLED unless it ends first. */
  cancel(task) {
    if (!this.unfinished.has(task.id.toString("hex"))) return;
    this.#flush(); // the scheduler can cancel only submitted tasks
    task.isCancelled = true;
    if (task.wasSent) this.scheduler.send((body) => setData(body._initCancel(), "Ids", task.id));
    else this.#fail(task, cancelled());
  }

  async close() {
    await Promise.all([this.scheduler.close(), this.storage?.close()]);
    this.#end(new Error("the client was closed"));
  }

  #keys(server) {
    const own = this.credential;
    return own && { server: own[server], own };
  }

  #newId(kind) {
    const id = Buffer.concat([this.peer, Buffer.alloc(8)]);
    id.writeUInt16BE(kind, 8);
    id.writeUIntBE(++this.count, 10, 6);
    return id;
  }

  #end(error) {
    if (this.error) return;
    this.error = error;
    this.answered.reject(error);
    this.isWelcome.catch(() => {});
    clearTimeout(this.acknowledging);
    for (const task of this.unfinished.values()) task.reject(error);
    this.unfinished.clear();
    this.scheduler.close();
    this.storage?.close();
  }

  // -- tasks

  /** Send a task, after storing its arguments if they are large. The task fails if its arguments cannot be stored. */
  #send(task) {
    try {
      this.#prepare(task);
    } catch (error) {
      this.#fail(task, error);
    }
  }

  #prepare(task) {
    const { name, args, kwargs } = task.call;
    const code = Buffer.concat([Buffer.from([NAMED, JSON_TAG]), Buffer.from(name)]);
    const references = [];
    const argument = (value) => {
      // Embed the value of an ended task, because the scheduler may have dropped its result.
      if (!(value instanceof Task)) return value;
      if (value.failure) throw value.failure;
      if (!this.unfinished.has(value.id.toString("hex"))) return value.value;
      references.push(value.id);
      return { $input: references.length - 1 };
    };
    const named = Object.entries(kwargs).map(([key, value]) => [key, argument(value)]);
    const given = { args: args.map(argument), kwargs: Object.fromEntries(named) };
    const document = Buffer.concat([Buffer.from([JSON_TAG]), Buffer.from(JSON.stringify(given))]);
    task.wire = { code, functionId: Buffer.from(blake2b(code, { dkLen: 16 })), references, payload: document };
    if (document.length <= INLINE_BYTES) return this.#queue(task);
    const restarts = this.restarts;
    const id = this.#newId(OBJECT_KIND);
    task.object = id;
    task.wire.payload = storedReference(id, document.length);
    references.push(id);
    this.objects.set(id.toString("hex"), document);
    this.uploads += 1; // until the upload ends, results to which the task may refer are not acknowledged
    this.#put(id, document)
      .then(() => restarts === this.restarts && this.#queue(task), (error) => this.#fail(task, error))
      .finally(() => (this.uploads -= 1));
  }

  #queue(task) {
    if (!this.unfinished.has(task.id.toString("hex"))) return; // it was cancelled during the upload
    this.ready.push(task);
    if (this.ready.length === 1) queueMicrotask(() => this.#flush());
  }

  #flush() {
    while (this.ready.length) {
      const groups = new Map();
      const isAgain = this.ready[0].wasSent; // a Submit has only new tasks, or only tasks from an earlier session
      let size = 0;
      let count = 0;
      while (this.ready[0]?.wasSent === isAgain && count < BATCH_TASKS && size < BATCH_BYTES) {
        const task = this.ready.shift();
        const key = JSON.stringify([task.call.name, task.call.options]);
        if (!groups.has(key)) groups.set(key, []);
        groups.get(key).push(task);
        task.wasSent = true;
        size += task.wire.payload.length;
        count += 1;
      }
      this.scheduler.send((body) => this.#submit(body._initSubmit(), [...groups.values()], isAgain));
    }
  }

  #submit(submit, groups, isAgain) {
    const unknown = groups.map(([first]) => first.wire).filter(({ functionId }) => this.#announce(functionId));
    const functions = submit._initFunctions(unknown.length);
    unknown.forEach(({ functionId, code }, index) => {
      setData(functions.get(index), "Id", functionId);
      setData(functions.get(index), "Payload", code);
    });
    const list = submit._initGroups(groups.length);
    groups.forEach((tasks, index) => {
      const group = list.get(index);
      const wires = tasks.map((task) => task.wire);
      setData(group, "Ids", Buffer.concat(tasks.map((task) => task.id)));
      column((length) => group._initPayloadSizes(length), wires.map(({ payload }) => payload.length));
      setData(group, "Payloads", Buffer.concat(wires.map(({ payload }) => payload)));
      if (wires.some(({ references }) => references.length)) {
        column((length) => group._initReferenceCounts(length), wires.map(({ references }) => references.length));
        setData(group, "References", Buffer.concat(wires.flatMap(({ references }) => references)));
      }
      const spec = group._initSpec();
      setData(spec, "Function", wires[0].functionId);
      Object.assign(spec, { name: tasks[0].call.name, deliver: true, retries: 3, ...tasks[0].call.options });
    });
    submit.acknowledged = this.#acknowledge();
    submit.again = BigInt(isAgain ? this.restarts : 0);
  }

  #announce(id) {
    const known = this.announced.size;
    return this.announced.add(id.toString("hex")).size > known;
  }

  /** Return the last Finished that the scheduler can drop, because all tasks that may refer to its tasks were sent. */
  #acknowledge() {
    clearTimeout(this.acknowledging);
    this.acknowledging = undefined;
    if (this.uploads === 0) this.acknowledged = this.resolved;
    return this.acknowledged;
  }

  #fail(task, error) {
    if (this.unfinished.delete(task.id.toString("hex"))) {
      task.failure = error;
      task.reject(error);
    }
    this.#release(task);
  }

  /** Release the object that contains a task's arguments. */
  #release(task) {
    if (!task.object || !this.objects.delete(task.object.toString("hex"))) return;
    this.scheduler.send((body) => setData(body._initRelease(), "Ids", task.object));
  }

  // -- messages from the scheduler

  #opened(welcome, isFirst, isResumed) {
    // Replace a wildcard with the host at which this program reached the scheduler.
    const host = this.address.replace(/^tcp:\/\/|:\d+$/g, "");
    this.storageAddress = welcome.objectStorageAddress.replace(/^tcp:\/\/(0\.0\.0\.0|\[::\]|\*):/, `tcp://${host}:`);
    this.ownerToken = dataOf(welcome.ownerToken);
    if (!isFirst && !isResumed) this.#restart();
    this.answered.resolve();
  }

  /** Resend all unfinished tasks, oldest first, after the scheduler has lost the session. */
  #restart() {
    this.restarts += 1;
    this.announced.clear();
    this.ready = [];
    this.resolved = this.acknowledged = 0n;
    const isOver = [...this.unfinished.values()].filter((task) => task.isCancelled);
    const ids = Buffer.concat(isOver.map(({ id }) => id));
    if (ids.length) this.scheduler.send((body) => setData(body._initCancel(), "Ids", ids)); // workers may have them
    for (const task of isOver) this.#fail(task, cancelled());
    for (const task of this.unfinished.values()) this.#send(task);
  }

  #received(which, body) {
    if (which === Body_Which.FINISHED) this.#finished(body.finished);
    else if (which === Body_Which.OBJECTS_MISSING) this.#restore(dataOf(body.objectsMissing.ids));
    else if (which === Body_Which.NOTICE) console.warn(body.notice.text);
  }

  #finished(finished) {
    const ids = dataOf(finished.ids);
    const payloads = dataOf(finished.payloads);
    let at = 0;
    for (let row = 0; row < ids.length / 16; row += 1) {
      const size = finished.payloadSizes.get(row);
      const task = this.unfinished.get(ids.toString("hex", 16 * row, 16 * row + 16));
      if (task) this.#settle(task, finished.outcomes.get(row), Buffer.from(payloads.subarray(at, at + size)));
      at += size;
    }
    if (finished.number > 0n) this.resolved = finished.number;
    this.acknowledging ??= setTimeout(() => {
      if (this.resolved === this.acknowledged || this.error) return;
      const number = this.#acknowledge();
      this.scheduler.send((body) => (body._initAcknowledgeResults().acknowledged = number));
    }, ACKNOWLEDGE_MS);
  }

  async #settle(task, outcome, payload) {
    try {
      if (outcome !== Outcome.SUCCESS) throw failureOf(outcome, payload);
      let document = payload;
      if (payload[0] === STORED) {
        const id = payload.subarray(1, 17);
        document = await this.#get(id);
        this.scheduler.send((body) => setData(body._initRelease(), "Ids", id));
      }
      task.value = JSON.parse(document.subarray(1));
      this.unfinished.delete(task.id.toString("hex"));
      task.resolve(task.value);
      this.#release(task);
    } catch (error) {
      this.#fail(task, error);
    }
  }

  /** Upload objects that the storage has lost. */
  async #restore(ids) {
    const restored = [];
    const lost = [];
    for (let at = 0; at < ids.length; at += 16) {
      const id = ids.subarray(at, at + 16);
      const data = this.objects.get(id.toString("hex"));
      const isThere = data && (await this.#put(id, data).then(() => true, () => false));
      (isThere ? restored : lost).push(id);
    }
    this.scheduler.send((body) => {
      const answer = body._initObjectsRestored();
      setData(answer, "Ids", Buffer.concat(restored));
      setData(answer, "Lost", Buffer.concat(lost));
      answer.text = "its client does not have it any more";
    });
  }

  // -- the object storage

  #ask(send) {
    if (!this.storage) {
      this.requests = new Map();
      this.storage = new Session(this.storageAddress, this.peer, this.#keys("object_storage_key"), (hello) => {
        hello.role = Role.CLIENT;
        setData(hello, "OwnerToken", this.ownerToken);
      }, {
        opened: (_, isFirst, isResumed) => {
          if (isFirst || isResumed) return;
          for (const request of this.requests.values()) Object.assign(request, { pieces: [] }).send();
        },
        received: (which, body, attachments) => {
          if (which === Body_Which.STORAGE_REPLY) this.#replied(body.storageReply, attachments);
        },
        ended: (error) => this.#end(error),
      });
    }
    const number = BigInt(++this.count);
    return new Promise((resolve, reject) => {
      this.requests.set(number, { resolve, reject, pieces: [], answers: 0, send: () => send(number) });
      send(number);
    });
  }

  /** Store an object with one part. */
  #put(id, data) {
    const pieces = Math.ceil(data.length / PIECE_BYTES);
    const one = (index) => this.#ask((number) => {
      const piece = data.subarray(index * PIECE_BYTES, (index + 1) * PIECE_BYTES);
      this.storage.send((body) => {
        const put = body._initPutObject();
        put.request = number;
        setData(put, "Id", id);
        column((length) => put._initParts(length), [BigInt(data.length)]);
        put.offset = BigInt(index * PIECE_BYTES);
      }, [piece]);
    });
    return Promise.all(Array.from({ length: pieces }, (_, index) => one(index)));
  }

  #get(id) {
    return this.#ask((number) => {
      this.storage.send((body) => {
        const get = body._initGetObject();
        get.request = number;
        setData(get, "Id", id);
      });
    });
  }

  #replied(reply, attachments) {
    const request = this.requests.get(reply.request);
    if (!request) return;
    if (reply.result !== StorageResult.OK) {
      this.requests.delete(reply.request);
      request.reject(new Error(`the object storage says: ${reply.text || "the object is not there"}`));
      return;
    }
    request.pieces.push(...attachments.map((piece) => Buffer.from(piece)));
    let size = 0n;
    for (let index = 0; index < reply.parts.length; index += 1) size += reply.parts.get(index);
    const got = request.pieces.reduce((sum, piece) => sum + piece.length, 0);
    if (BigInt(got) < size) return; // more replies follow
    this.requests.delete(reply.request);
    request.resolve(Buffer.concat(request.pieces));
  }
}

function readCredential(path) {
  const lines = readFileSync(path, "utf8").matchAll(/^(\w+) = "(.*)"$/gm);
  return Object.fromEntries([...lines].map(([, name, value]) => [name, value]));
}

function cancelled() {
  return new TaskError("CANCELLED", "", "the task was cancelled");
}

function storedReference(id, size) {
  const payload = Buffer.concat([Buffer.from([STORED]), id, Buffer.alloc(8)]);
  payload.writeUIntLE(size, 17, 6);
  return payload;
}

function failureOf(outcome, payload) {
  const name = OUTCOMES[outcome] ?? String(outcome);
  if (outcome !== Outcome.EXCEPTION || payload[0] !== EXCEPTION) return new TaskError(name, "", payload.toString());
  let at = 14;
  const [type, text, traceback] = [2, 6, 10].map((offset) => {
    const size = payload.readUInt32LE(offset);
    at += size;
    return payload.toString("utf8", at - size, at);
  });
  return new TaskError(name, type, text, traceback);
}

/** Return a copy of a Data field, because its message is freed. */
function dataOf(data) {
  return Buffer.from(data.toUint8Array());
}

/** Set a Data field. name: capitalized, such as Ids. */
function setData(struct, name, bytes) {
  if (bytes.length) struct[`_init${name}`](bytes.length).copyBuffer(bytes);
}
