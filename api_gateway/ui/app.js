// One page of chat. All text goes through textContent: nothing a model writes becomes HTML.
// The key lives in its input field and nowhere else.

const DEMO_MODEL = "millrace-demo";
const WHOSE = { "message user": "You", thoughts: "Thoughts", "message assistant": "Answer" };
const PIECE = 4000; // characters
const SHOW_MS = 50;
const $ = (id) => document.getElementById(id);

const history = [];
let model = null;
let running = null; // {id, abort} of the answer that is being written
let lastLook = null; // the newest question for the models; answers to older ones do not count
let follows = true; // the log is kept at its end; whoever scrolls up is left there
let lastTop = 0;

function headers() {
  const key = new TextEncoder().encode($("key").value.trim()); // a header takes bytes, not text
  const fields = { "Content-Type": "application/json" };
  return key.length ? { ...fields, Authorization: `Bearer ${String.fromCharCode(...key)}` } : fields;
}

function noteScroll() {
  const { scrollHeight, scrollTop, clientHeight } = $("log");
  const below = scrollHeight - scrollTop - clientHeight;
  if (scrollTop < lastTop) follows &&= below < 2; // nothing is below if lines were taken away
  else follows ||= below < 40;
  lastTop = scrollTop;
}

function toEnd() {
  $("log").scrollTop = $("log").scrollHeight;
}

function show(kind, text) {
  const line = document.createElement("div");
  line.className = kind;
  if (kind in WHOSE) {
    line.setAttribute("role", "group");
    line.setAttribute("aria-label", WHOSE[kind]); // which a screen reader cannot see
  }
  line.textContent = text;
  $("log").append(line);
  if (follows) toEnd();
  return line;
}

// Adds text to a line of the log. To write all of it anew would end a selection in it, and have a
// screen reader begin again. It is kept in pieces that end with a line: only the last is laid out
// again, which takes long where a text is long.
function add(line, text) {
  let piece = line.lastChild;
  const cut = piece?.textContent.length > PIECE ? text.indexOf("\n") + 1 : 0;
  if (cut) piece.append(text.slice(0, cut));
  if (cut || !piece) {
    piece = document.createElement("div");
    line.append(piece);
  }
  piece.append(text.slice(cut));
}

// The server's own words, whatever it answered.
async function wordsOf(response) {
  const body = await response.text();
  try {
    return JSON.parse(body).error.message;
  } catch {
    return `${response.status} ${body || response.statusText}`;
  }
}

function notReached(error) {
  return `the gateway does not answer (${error.message})`;
}

// Asks what is served until it is told; who is refused is asked for a key.
async function findModel() {
  const own = (lastLook = {});
  let status = 0;
  let found = null;
  let words = "no model is served yet";
  try {
    const response = await fetch("/v1/models", { headers: headers() });
    status = response.status;
    if (response.ok) [found] = (await response.json()).data;
    else words = await wordsOf(response);
  } catch (error) {
    words = notReached(error);
  }
  if (own !== lastLook) return;
  if (status === 200) model = found ? found.id : null;
  $("model").textContent = found ? model : words;
  $("note").hidden = model !== DEMO_MODEL;
  $("note").textContent =
    "This is the embedded demo model: a few million parameters that show the stack at work. " +
    "It knows very little.";
  if (status === 401) document.querySelector("details").open = true; // the key goes there
  const isRefused = status >= 400 && status < 500;
  if (!found && !isRefused) setTimeout(() => own === lastLook && findModel(), 2000);
}

// Yields {event, data} of an event stream up to its [DONE]; a part that ends in mid-event waits for
// the next.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the connection ended before the answer did");
    const parts = (pending + value).split("\n\n");
    pending = parts.pop();
    for (const part of parts) {
      const found = { event: "message", data: "" };
      for (const line of part.split("\n")) {
        if (line.startsWith("event: ")) found.event = line.slice(7);
        if (line.startsWith("data: ")) found.data += line.slice(6);
      }
      if (found.data === "[DONE]") return;
      if (found.data) yield found;
    }
  }
}

function request(id) {
  const system = $("system").value.trim();
  const body = {
    model,
    messages: system ? [{ role: "system", content: system }, ...history] : history,
    stream: true,
    stream_options: { include_usage: true },
    request_id: id,
  };
  for (const name of ["temperature", "max_tokens"]) {
    if ($(name).value !== "") body[name] = Number($(name).value);
  }
  return JSON.stringify(body);
}

function statsOf(event) {
  const { usage, timings } = event;
  const rate = timings ? `, ${timings.tokens_per_s.toFixed(1)} tokens/s` : "";
  const first = timings ? `, first after ${timings.ttft_ms.toFixed(0)} ms` : "";
  return `${usage.prompt_tokens} + ${usage.completion_tokens} tokens${first}${rate}`;
}

// A button that had the focus would take it along: the next key would begin at the top of the page.
function setRunning(own) {
  const hadFocus = [$("send"), $("stop")].includes(document.activeElement);
  running = own;
  $("send").disabled = own !== null;
  $("stop").disabled = own === null;
  if (hadFocus) $("q").focus();
}

async function answer() {
  const line = show("message assistant", "");
  const own = { id: crypto.randomUUID?.() ?? `ui-${Date.now()}`, abort: new AbortController() };
  setRunning(own);
  let text = "";
  let thoughts = null; // a line of its own above the answer, once the model thinks
  const unshown = { thought: "", content: "" }; // tokens may come faster than they are laid out
  let timer = null;
  const flush = () => {
    clearTimeout(timer);
    timer = null;
    if (running !== own) return; // "New chat" has cleared the page
    if (unshown.thought) {
      if (!thoughts) line.before((thoughts = show("thoughts", "")));
      add(thoughts, unshown.thought);
    }
    if (unshown.content) add(line, unshown.content);
    unshown.thought = unshown.content = "";
    if (follows) toEnd();
  };
  try {
    const response = await fetch("/v1/chat/completions", {
      method: "POST", headers: headers(), body: request(own.id), signal: own.abort.signal,
    });
    if (!response.ok) throw new Error(await wordsOf(response));
    for await (const { event, data } of events(response)) {
      const chunk = JSON.parse(data);
      if (event === "error") throw new Error(chunk.error.message);
      if (running !== own) return;
      const { content, reasoning_content: thought } = chunk.choices[0]?.delta ?? {};
      unshown.thought += thought ?? "";
      unshown.content += content ?? "";
      text += content ?? "";
      timer ??= setTimeout(flush, SHOW_MS);
      if (chunk.choices[0]?.finish_reason === "length") {
        show("stats", "cut off: the limit of tokens, or the context, is reached");
      }
      if (chunk.usage) show("stats", statsOf(chunk));
    }
  } catch (error) {
    if (running !== own) return;
    if (error.name === "AbortError") show("stats", "stopped");
    else {
      const words = error instanceof TypeError ? notReached(error) : error.message;
      const isFull = words.includes("context length");
      show("message error", words + (isFull ? " (New chat begins without what was said.)" : ""));
      findModel(); // it may be another one now, or ask for a key
    }
  } finally {
    flush();
    if (running === own) {
      if (text) history.push({ role: "assistant", content: text });
      else {
        const asked = history.pop(); // a question without an answer is asked again, not repeated
        if (!$("q").value) $("q").value = asked.content;
        if (!thoughts) line.remove();
      }
      setRunning(null);
    }
    line.dataset.done = "";
  }
}

function stop() {
  if (!running) return;
  const { id, abort } = running;
  fetch(`/v1/requests/${encodeURIComponent(id)}/cancel`, { method: "POST", headers: headers() })
    .catch(() => {}); // the end of the connection, which follows, says the same
  abort.abort();
}

function send() {
  const text = $("q").value.trim();
  if (!text || running || !model) return;
  $("q").value = "";
  history.push({ role: "user", content: text });
  follows = true;
  show("message user", text);
  answer();
}

function clear() {
  stop();
  setRunning(null);
  history.length = 0;
  $("log").replaceChildren();
  follows = true;
  $("q").focus();
}

// A key that an input method takes is not for the page. 229: the one that ends a composition, which
// Safari tells after its end.
function isComposing(event) {
  return event.isComposing || event.keyCode === 229;
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
$("q").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !isComposing(event)) {
    event.preventDefault();
    send();
  }
});
$("stop").addEventListener("click", stop);
$("clear").addEventListener("click", clear);
$("key").addEventListener("change", findModel);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !isComposing(event)) stop();
});
$("log").addEventListener("scroll", noteScroll);
new ResizeObserver(() => follows && toEnd()).observe($("log"));
setRunning(null); // Firefox brings back after a reload what was disabled
findModel();
