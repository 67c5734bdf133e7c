// Perfetto's own trace processor (the worker of its page) under Node:
// node --liftoff-only trace_processor.mjs FOLDER TRACE SQL...   (without that, compiling takes longer than all queries)
// FOLDER holds engine_bundle.js and trace_processor.wasm. Prints a JSON list of the rows of each query.
import fs from 'node:fs';
import path from 'node:path';
import vm from 'node:vm';

const [folder, trace, ...queries] = process.argv.slice(2);

// -- what the worker asks of a browser ---------------------------------------------------------------------------------
class XMLHttpRequest {
  open(_, url) { this.url = url; }
  send() { this.status = 200; this.response = new Uint8Array(fs.readFileSync(path.join(folder, path.basename(this.url)))).buffer; }
}
const self = { location: { href: 'http://localhost/' } };
const context = vm.createContext({
  self, XMLHttpRequest, WorkerGlobalScope: class {}, location: self.location, importScripts() {}, performance, TextDecoder, TextEncoder,
  setTimeout, clearTimeout, crypto, console: { log() {}, warn() {}, error() {} }, URL,
});
const replies = [];
let wake = () => {};
const port = { postMessage(bytes) { replies.push(...messages(Buffer.from(bytes))); wake(); } };
vm.runInContext(fs.readFileSync(path.join(folder, 'engine_bundle.js'), 'utf8'), context);
self.onmessage({ data: port });

// -- protobuf: the few messages of perfetto/trace_processor/trace_processor.proto ---------------------------------------
function varint(n) { const out = []; while (n > 127) { out.push(n & 127 | 128); n = Math.floor(n / 128); } return Buffer.from([...out, n]); }
const data = (field, bytes) => Buffer.concat([varint(field << 3 | 2), varint(bytes.length), bytes]);
const number = (field, n) => Buffer.concat([varint(field << 3), varint(n)]);
function* fields(bytes) {
  let at = 0;
  const read = () => { let n = 0n, shift = 0n, byte; do { byte = bytes[at++]; n |= BigInt(byte & 127) << shift; shift += 7n; } while (byte > 127); return n; };
  while (at < bytes.length) {
    const tag = Number(read()), field = tag >> 3;
    if ((tag & 7) === 0) yield [field, read()];
    else if ((tag & 7) === 2) { const n = Number(read()); yield [field, bytes.subarray(at, at += n)]; }
    else if ((tag & 7) === 1) yield [field, bytes.subarray(at, at += 8)];
    else throw new Error(`wire type of ${tag}`);
  }
}
function* varints(bytes) { for (let at = 0, n = 0n, s = 0n; at < bytes.length; at++) { n |= BigInt(bytes[at] & 127) << s; s += 7n; if (bytes[at] < 128) { yield BigInt.asIntN(64, n); n = 0n; s = 0n; } } }
let rest = Buffer.alloc(0);
function messages(chunk) { rest = Buffer.concat([rest, chunk]); const found = []; for (const [, body] of fields(rest)) found.push(body); rest = Buffer.alloc(0); return found; }

let seq = 0;
function request(kind, ...more) {
  const message = data(1, Buffer.concat([number(1, ++seq), number(2, kind), ...more]));
  const bytes = vm.runInContext('n => new Uint8Array(n)', context)(message.length);
  bytes.set(message);
  port.onmessage({ data: bytes });
}
async function answers(last) {
  const found = [];
  for (;;) {
    while (replies.length) { const one = Object.fromEntries(fields(replies.shift())); found.push(one); if (last(one)) return found; }
    await new Promise(resolve => { wake = resolve; });
  }
}

function rows(batches) {
  const names = [], values = [];
  let error = '';
  for (const batch of batches) for (const [field, body] of fields(batch)) {
    if (field === 1) names.push(body.toString());
    if (field === 2) error = body.toString();
    if (field !== 3) continue;
    let kinds = [], numbers = [], floats = [], texts = [];
    for (const [part, bytes] of fields(body)) {
      if (part === 1) kinds.push(...varints(bytes));
      if (part === 2) numbers.push(...varints(bytes));
      if (part === 3) for (let at = 0; at < bytes.length; at += 8) floats.push(bytes.readDoubleLE(at));
      if (part === 5) texts.push(...bytes.toString().split('\0'));
    }
    for (const kind of kinds.map(Number)) values.push(kind === 1 ? null : kind === 2 ? Number(numbers.shift()) : kind === 3 ? floats.shift() : texts.shift());
  }
  if (error) throw new Error(error);
  const found = [];
  for (let at = 0; at < values.length; at += names.length) found.push(values.slice(at, at + names.length));
  return found;
}

async function main() {
  while (!port.onmessage) await new Promise(resolve => setTimeout(resolve, 5));
  await new Promise(resolve => setTimeout(resolve, 200));
  request(1, data(101, fs.readFileSync(trace)));
  await answers(one => 201 in one || 5 in one);
  request(2);
  await answers(one => 202 in one || Number(one[3]) === 2);
  const answered = [];
  for (const sql of queries) {
    request(3, data(103, data(1, Buffer.from(sql))));
    const isLast = one => [...fields(one[203] ?? Buffer.alloc(0))].some(([field, body]) => field === 2 || field === 3 && [...fields(body)].some(([part, value]) => part === 6 && value));
    answered.push(rows((await answers(isLast)).map(one => one[203])));
  }
  console.log(JSON.stringify(answered));
  process.exit(0);
}
main().catch(error => { console.error(error); process.exit(1); });
