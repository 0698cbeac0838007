// One page of chat. All text goes through textContent: nothing a model writes becomes HTML.
// The key lives in its input field and nowhere else.

const DEMO_MODEL = "millrace-demo";
const $ = (id) => document.getElementById(id);

const history = [];
let model = null;
let running = null; // {id, abort} of the answer that is being written

function headers() {
  const key = $("key").value.trim();
  const fields = { "Content-Type": "application/json" };
  return key ? { ...fields, Authorization: `Bearer ${key}` } : fields;
}

// Whoever reads back is left there.
function isAtEnd() {
  const log = $("log");
  return log.scrollHeight - log.scrollTop - log.clientHeight < 40;
}

function toEnd() {
  $("log").scrollTop = $("log").scrollHeight;
}

function show(kind, text) {
  const follows = isAtEnd();
  const line = document.createElement("div");
  line.className = kind;
  line.textContent = text;
  $("log").append(line);
  if (follows) toEnd();
  return line;
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

async function findModel() {
  try {
    const response = await fetch("/v1/models", { headers: headers() });
    if (!response.ok) {
      $("model").textContent = await wordsOf(response);
      if (response.status === 401) document.querySelector("details").open = true; // the key goes there
      if (response.status >= 500) setTimeout(findModel, 2000); // not there yet; a key is asked for
      return;
    }
    const [first] = (await response.json()).data;
    model = first ? first.id : null;
    $("model").textContent = model ?? "no model is served yet";
    $("note").hidden = model !== DEMO_MODEL;
    $("note").textContent =
      "This is the embedded demo model: a few million parameters that show the stack at work. " +
      "It knows very little.";
  } catch (error) {
    $("model").textContent = `the gateway does not answer (${error.message})`;
  }
  if (!model) setTimeout(findModel, 2000);
}

// Yields {event, data} of an event stream; a part that ends in mid-event waits for the next.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (pending + value).split("\n\n");
    pending = parts.pop();
    for (const part of parts) {
      const found = { event: "message", data: "" };
      for (const line of part.split("\n")) {
        if (line.startsWith("event: ")) found.event = line.slice(7);
        if (line.startsWith("data: ")) found.data += line.slice(6);
      }
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

async function answer() {
  const line = show("message assistant", "");
  const own = { id: crypto.randomUUID?.() ?? `ui-${Date.now()}`, abort: new AbortController() };
  running = own;
  $("send").disabled = true;
  $("stop").disabled = false;
  let text = "";
  let thoughts = null; // a line of its own above the answer, once the model thinks
  try {
    const response = await fetch("/v1/chat/completions", {
      method: "POST", headers: headers(), body: request(own.id), signal: own.abort.signal,
    });
    if (!response.ok) throw new Error(await wordsOf(response));
    for await (const { event, data } of events(response)) {
      if (data === "[DONE]") break;
      const chunk = JSON.parse(data);
      if (event === "error") throw new Error(chunk.error.message);
      if (running !== own) return; // "New chat" has cleared the page
      const follows = isAtEnd();
      const { content, reasoning_content: thought } = chunk.choices[0]?.delta ?? {};
      if (thought) {
        if (!thoughts) line.before((thoughts = show("thoughts", "")));
        thoughts.append(thought);
      }
      // Added to what stands there: to write all of it anew would end a selection in it, and have a
      // screen reader begin again.
      if (content) line.append(content);
      text += content ?? "";
      if (follows) toEnd();
      if (chunk.choices[0]?.finish_reason === "length") {
        show("stats", "cut off: the limit of tokens, or the context, is reached");
      }
      if (chunk.usage) show("stats", statsOf(chunk));
    }
  } catch (error) {
    if (running !== own) return;
    if (error.name === "AbortError") show("stats", "stopped");
    else {
      const isFull = error.message.includes("context length");
      show("message error", error.message + (isFull ? " (New chat begins without what was said.)" : ""));
    }
  } finally {
    if (running === own) {
      if (text) history.push({ role: "assistant", content: text });
      else {
        const asked = history.pop(); // a question without an answer is asked again, not repeated
        if (!$("q").value) $("q").value = asked.content;
        if (!thoughts) line.remove();
      }
      running = null;
      $("send").disabled = false;
      $("stop").disabled = true;
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
  show("message user", text);
  toEnd();
  answer();
}

function clear() {
  stop();
  running = null;
  history.length = 0;
  $("log").replaceChildren();
  $("send").disabled = false;
  $("stop").disabled = true;
  $("q").focus();
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
$("q").addEventListener("keydown", (event) => {
  // 229: the key that ends a composition, which Safari tells after its end.
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229) {
    event.preventDefault();
    send();
  }
});
$("stop").addEventListener("click", stop);
$("clear").addEventListener("click", clear);
$("key").addEventListener("change", findModel);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
});
findModel();
