// Runs the chat page's script on a page of stand-ins: one answer, from the chunks given as JSON.
import { readFileSync } from "node:fs";
import { setTimeout as later } from "node:timers/promises";

const { script, chunks, clear, readsBack } = JSON.parse(readFileSync(0, "utf8"));
const lines = [];
const elements = new Map();

function element() {
  const heard = {};
  let text = "";
  return {
    value: "", className: "", dataset: {}, heard, num_written: 0,
    scrollTop: 0, clientHeight: 50, get scrollHeight() { return 50 + 100 * lines.length; },
    get textContent() { return text; },
    set textContent(all) { text = all; this.num_written += 1; },
    addEventListener: (name, act) => { heard[name] = act; },
    append(part) { // a line of the log, or text of a line
      if (typeof part === "string") text += part;
      else lines.push(part);
    },
    before(line) {
      lines.splice(lines.indexOf(line), 1);
      lines.splice(lines.indexOf(this), 0, line);
    },
    replaceChildren: () => lines.splice(0),
    remove() { lines.splice(lines.indexOf(this), 1); },
    scrollIntoView() { $("log").scrollTop = $("log").scrollHeight; }, focus() {},
  };
}

function $(id) {
  if (!elements.has(id)) elements.set(id, element());
  return elements.get(id);
}

globalThis.document = { ...element(), getElementById: $, createElement: element };

let go;
const cleared = new Promise((resolve) => { go = resolve; });

async function* body() {
  for (const [number, chunk] of chunks.entries()) {
    if (clear === number) await cleared;
    if (readsBack === number) {
      await later(20); // what came before is shown
      $("log").scrollTop = 0;
    }
    for (const byte of new TextEncoder().encode(chunk)) yield Uint8Array.of(byte); // split anywhere
  }
}

globalThis.fetch = async (path) => {
  if (path === "/v1/models") return Response.json({ data: [{ id: "m" }] });
  if (path === "/v1/chat/completions") return new Response(ReadableStream.from(body()));
  return Response.json({});
};

await import(script);
while ($("model").textContent !== "m") await later(1);
$("q").value = "Well?";
$("form").heard.submit({ preventDefault() {} });
if (clear !== null) {
  await later(1);
  $("clear").heard.click();
  go();
}
const asked = Date.now();
while ($("send").disabled && Date.now() < asked + 20_000) await later(1);
await later(20); // what an answer that was left would still show
console.log(JSON.stringify({
  lines: lines.map((line) => [line.className, line.textContent]),
  num_written: lines.map((line) => line.num_written),
  isAtTop: $("log").scrollTop === 0,
  isAtEnd: $("log").scrollTop === $("log").scrollHeight,
}));
