// Reads a trace with @msgpack/msgpack alone: knows FORMAT.md, nothing of wstrace's code.
import { createReadStream } from "node:fs";
import { decodeMultiStream, ExtensionCodec } from "@msgpack/msgpack";

const extensionCodec = new ExtensionCodec();
extensionCodec.register({ type: 0x57, encode: () => null, decode: (data) => Buffer.from(data).toString("latin1") });

const sums = { frames: 0, kinds: {}, rows: {}, ids: new Set(), names: [], end: null, seqs: [] };
const file = createReadStream(process.argv[2]);
for await (const [id, kind, seq, length, , body] of decodeMultiStream(file, { extensionCodec, useBigInt64: true })) {
  sums.frames += 1;
  sums.kinds[kind] = (sums.kinds[kind] ?? 0) + 1;
  sums.ids.add(id);
  sums.seqs.push(Number(seq));
  if (kind === 3) {
    sums.rows[body.s] = (sums.rows[body.s] ?? 0) + Number(body.n);
    for (const [type, , , rawLength] of Object.values(body.c)) {
      const width = { u8: 1, u16: 2, u32: 4, u64: 8, i64: 8 }[type];
      if (Number(rawLength) !== Number(body.n) * width) throw new Error(`raw_len of a ${type} column`);
    }
  }
  if (kind === 1) sums.names.push(...body.s.map((name) => (typeof name === "string" ? name : "bytes")));
  if (kind === 7) sums.end = { frames: Number(body.frames), clean: body.clean, rows: Number(body.rows.page_fault) };
}
sums.ids = sums.ids.size;
console.log(JSON.stringify(sums));
