// Runs the module in Node: `node run.mjs hello_wasm.wasm`.
import { readFile } from "node:fs/promises";

let memory;
const host = {
  random: (start, length) => crypto.getRandomValues(new Uint8Array(memory.buffer, start, length)),
};
const module = await readFile(process.argv[2]);
const { instance } = await WebAssembly.instantiate(module, { host });
memory = instance.exports.memory;
const start = instance.exports.tell() >>> 0;
const text = new TextDecoder().decode(new Uint8Array(memory.buffer, start, instance.exports.length()));
console.log(text);
process.exitCode = text.includes("Pip") ? 0 : 1;
