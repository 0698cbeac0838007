// The openai package for Node, unmodified.
import assert from "node:assert/strict";
import OpenAI, { BadRequestError, NotFoundError } from "openai";

const model = process.env.MILLRACE_MODEL;
const client = new OpenAI({ baseURL: process.env.OPENAI_BASE_URL, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "What is Millrace?" }];
const asked = { model, messages, max_tokens: 24, temperature: 0, seed: 1 };
const schema = {
  type: "object",
  properties: { name: { enum: ["apple", "pear"] }, ripe: { type: "boolean" } },
  required: ["name", "ripe"],
  additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "store", parameters: schema } }];

const listed = [];
for await (const found of client.models.list()) listed.push(found.id);
assert(listed.includes(model));

const whole = await client.chat.completions.create(asked);
assert(whole.choices[0].message.content.length > 0);
const stream = await client.chat.completions.create({
  ...asked, stream: true, stream_options: { include_usage: true },
});
let streamed = "", usage = null;
for await (const chunk of stream) {
  streamed += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(streamed, whole.choices[0].message.content);
assert.equal(usage.completion_tokens, whole.usage.completion_tokens);

const forced = { ...asked, max_tokens: 250, tools, tool_choice: "required", parallel_tool_calls: false };
const called = await client.chat.completions.create(forced);
const [call] = called.choices[0].message.tool_calls;
assert.equal(called.choices[0].finish_reason, "tool_calls");
assert.equal(typeof JSON.parse(call.function.arguments).ripe, "boolean");
const runner = client.chat.completions.stream(forced);
const final = await runner.finalChatCompletion();
assert.equal(final.choices[0].message.tool_calls[0].function.arguments, call.function.arguments);

const text = await client.completions.create({ model, prompt: ["a", "b"], max_tokens: 3 });
assert.equal(text.choices.length, 2);
const vectors = await client.embeddings.create({ model, input: ["a", "b"] });
assert.equal(vectors.data.length, 2);
assert(Math.abs(Math.hypot(...vectors.data[0].embedding) - 1) < 1e-3);

await assert.rejects(client.chat.completions.create({ ...asked, temperature: 9 }),
  (error) => error instanceof BadRequestError && error.param === "temperature");
await assert.rejects(client.chat.completions.create({ ...asked, model: "nobody" }), NotFoundError);

const aborted = await client.chat.completions.create({ ...asked, max_tokens: 500, stream: true });
for await (const _ of aborted) { aborted.controller.abort(); break; }
