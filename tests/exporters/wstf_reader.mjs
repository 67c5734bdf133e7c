// Reads a trace with @msgpack/msgpack and fzstd alone: knows FORMAT.md, nothing of wstrace's code.
import { createReadStream } from "node:fs";
import { inflateSync } from "node:zlib";
import { decodeMultiStream, ExtensionCodec } from "@msgpack/msgpack";
import { decompress } from "fzstd";

const extensionCodec = new ExtensionCodec();
extensionCodec.register({ type: 0x57, encode: () => null, decode: (data) => Buffer.from(data).toString("latin1") });

const WIDTHS = { u8: 1, u16: 2, u32: 4, u64: 8, i64: 8 };
const MASK = (1n << 64n) - 1n;

// COL: [type, chain, codec, raw_len, bytes] -> n BigInts
function column([type, chain, codec, rawLength, packed], n) {
  const width = WIDTHS[type];
  if (Number(rawLength) !== n * width) throw new Error(`raw_len of a ${type} column`);
  let raw = codec === "none" ? packed : codec === "zlib" ? inflateSync(packed) : decompress(packed);
  if (raw.length !== n * width) throw new Error(`a ${type} column gives ${raw.length} bytes`);
  for (const [filter, first] of [...chain].reverse()) {
    const values = new Uint8Array(raw.length);
    if (filter === "shuffle") {
      for (let row = 0; row < n; row++)
        for (let byte = 0; byte < width; byte++) values[row * width + byte] = raw[byte * n + row];
    } else if (filter === "delta") {
      const view = new DataView(raw.buffer, raw.byteOffset, raw.length);
      const out = new DataView(values.buffer);
      if (width !== 8) throw new Error("this reader sums columns of 8 bytes only");
      let value = BigInt(first);
      for (let row = 0; row < n; row++) {
        value = (value + view.getBigUint64(row * 8, true)) & MASK;
        out.setBigUint64(row * 8, value, true);
      }
    } else throw new Error(`a filter ${filter}`);
    raw = values;
  }
  const view = new DataView(raw.buffer, raw.byteOffset, raw.length);
  const read = { 1: (at) => BigInt(view.getUint8(at)), 2: (at) => BigInt(view.getUint16(at, true)),
    4: (at) => BigInt(view.getUint32(at, true)), 8: (at) => view.getBigUint64(at, true) }[width];
  return Array.from({ length: n }, (_, row) => read(row * width));
}

const sum = (values) => values.reduce((total, value) => (total + value) & MASK, 0n);
const sums = { frames: 0, kinds: {}, rows: {}, ids: new Set(), names: [], end: null, seqs: [], va: 0n, time: 0n,
  indexed: 0, streams: {}, withPid: 0, announced: {} };
const file = createReadStream(process.argv[2]);
for await (const [id, kind, seq, length, , body] of decodeMultiStream(file, { extensionCodec, useBigInt64: true })) {
  sums.frames += 1;
  sums.kinds[kind] = (sums.kinds[kind] ?? 0) + 1;
  sums.ids.add(id);
  sums.seqs.push(Number(seq));
  if (kind === 0) {
    if (Number(body.v[0]) !== 2) throw new Error(`major version ${body.v[0]}`);
    for (const feature of body.need) throw new Error(`needs ${feature}`);
  }
  if (kind === 3) {
    sums.rows[body.s] = (sums.rows[body.s] ?? 0) + Number(body.n);
    for (const [type, , , rawLength] of Object.values(body.c)) {
      const width = WIDTHS[type];
      if (Number(rawLength) !== Number(body.n) * width) throw new Error(`raw_len of a ${type} column`);
    }
    if (body.s === "page_fault") {
      sums.va = (sums.va + sum(column(body.c.va, Number(body.n)))) & MASK;
      sums.time = (sums.time + sum(column(body.c.time_ns, Number(body.n)))) & MASK;
    }
  }
  if (kind === 1) sums.names.push(...body.s.map((name) => (typeof name === "string" ? name : "bytes")));
  if (kind === 5 && body.m === "schema")
    for (const [stream, columns] of Object.entries(body.schema))
      sums.announced[stream] = [...(sums.announced[stream] ?? []), ...columns];
  if (kind === 6) {
    const streams = column(body.c.stream, body.f.length);
    const pids = column(body.c.pids, body.f.length);
    body.f.forEach(([of], at) => {
      sums.indexed += 1;
      if (of !== 3 && of !== 4) return;
      const stream = body.s[Number(streams[at]) - 1];
      sums.streams[stream] = (sums.streams[stream] ?? 0) + 1;
      if (pids[at] !== 0n) sums.withPid += 1;
    });
  }
  if (kind === 7) sums.end = { frames: Number(body.frames), clean: body.clean, rows: Number(body.rows.page_fault) };
}
sums.ids = sums.ids.size;
sums.va = String(sums.va);
sums.time = String(sums.time);
console.log(JSON.stringify(sums));
