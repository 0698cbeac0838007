// Runs the chat page's script on a page of stand-ins: one answer, from the chunks given as JSON.
import { readFileSync } from "node:fs";
import { setTimeout as later } from "node:timers/promises";

const { script, chunks, clear, readsBack, escape, refusal, models, key, focus } = JSON.parse(
  readFileSync(0, "utf8"),
);
const elements = new Map();
const calls = [];

function element() {
  const heard = {};
  const parts = []; // texts and elements
  let top = 0;
  return {
    value: "", className: "", dataset: {}, attributes: {}, heard, parts, num_written: 0,
    clientHeight: 50, get scrollHeight() { return 50 + 100 * parts.length; },
    get scrollTop() { return top; },
    set scrollTop(to) {
      top = Math.min(to, this.scrollHeight - this.clientHeight);
      heard.scroll?.();
    },
    get lastChild() { return parts.at(-1) ?? null; },
    get textContent() { return parts.map((part) => part.textContent ?? part).join(""); },
    set textContent(all) {
      parts.splice(0, parts.length, ...(all ? [all] : []));
      this.num_written += 1;
    },
    addEventListener: (name, act) => { heard[name] = act; },
    setAttribute(name, value) { this.attributes[name] = value; },
    append(part) {
      if (typeof part === "object") part.parent = this;
      parts.push(part);
    },
    before(line) {
      line.remove();
      line.parent = this.parent;
      this.parent.parts.splice(this.parent.parts.indexOf(this), 0, line);
    },
    replaceChildren: () => parts.splice(0),
    remove() { this.parent.parts.splice(this.parent.parts.indexOf(this), 1); },
    focus() { document.activeElement = this; },
  };
}

function $(id) {
  if (!elements.has(id)) elements.set(id, element());
  return elements.get(id);
}

globalThis.document = {
  ...element(), getElementById: $, createElement: element, querySelector: element,
};
globalThis.ResizeObserver = class { observe() {} };

let go;
const cleared = new Promise((resolve) => { go = resolve; });

async function* body() {
  for (const [number, chunk] of chunks.entries()) {
    if (clear === number) await cleared;
    if (readsBack === number) {
      await later(100); // what came before is shown
      $("log").scrollTop = 0;
    }
    if (escape?.at === number) document.heard.keydown({ key: "Escape", ...escape.event });
    for (const byte of new TextEncoder().encode(chunk)) yield Uint8Array.of(byte); // split anywhere
  }
}

globalThis.fetch = async (path, options) => {
  calls.push([path, options.headers.Authorization ?? null]);
  if (path === "/v1/models") {
    const id = models.length > 1 ? models.shift() : models[0];
    return Response.json({ data: [{ id }] });
  }
  if (path !== "/v1/chat/completions") return Response.json({});
  if (refusal) return Response.json({ error: { message: refusal } }, { status: 404 });
  return new Response(ReadableStream.from(body()));
};

$("key").value = key;
const [first] = models;
await import(script);
while ($("model").textContent !== first) await later(1);
$("q").value = "Well?";
if (focus) $(focus).focus();
$("form").heard.submit({ preventDefault() {} });
if (clear !== null) {
  await later(1);
  $("clear").heard.click();
  go();
}
const asked = Date.now();
while ($("send").disabled && Date.now() < asked + 20_000) await later(1);
await later(100); // what an answer that was left would still show
const lines = $("log").parts;
console.log(JSON.stringify({
  lines: lines.map((line) => [line.className, line.textContent]),
  names: lines.map((line) => line.attributes["aria-label"] ?? null),
  pieces: lines.map((line) => line.parts.map((part) => part.textContent ?? part)),
  num_added: lines.map((line) => line.parts.flatMap((part) => part.parts ?? part).length),
  num_written: lines.map((line) => line.num_written),
  isAtTop: $("log").scrollTop === 0,
  isAtEnd: $("log").scrollTop + $("log").clientHeight === $("log").scrollHeight,
  calls, model: $("model").textContent, hasFocus: document.activeElement === $("q"),
}));
