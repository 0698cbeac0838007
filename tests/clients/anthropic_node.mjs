// The @anthropic-ai/sdk package for Node, unmodified.
import assert from "node:assert/strict";
import Anthropic, { BadRequestError, NotFoundError } from "@anthropic-ai/sdk";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import { z } from "zod";

const model = process.env.MILLRACE_MODEL;
const baseURL = process.env.OPENAI_BASE_URL.replace(/\/v1$/, "");
const client = new Anthropic({ baseURL, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "What is Millrace?" }];
const asked = { model, messages, max_tokens: 24, temperature: 0 };
const schema = {
  type: "object",
  properties: { name: { enum: ["apple", "pear"] }, ripe: { type: "boolean" } },
  required: ["name", "ripe"],
  additionalProperties: false,
};
const tools = [{ name: "store", description: "Store a fruit.", input_schema: schema }];

const listed = [];
for await (const found of client.models.list()) listed.push(found.id);
assert(listed.includes(model));
assert((await client.messages.countTokens({ model, messages })).input_tokens > 0);

const whole = await client.messages.create(asked);
assert(whole.content[0].text.length > 0);
const stream = client.messages.stream(asked);
let streamed = "";
stream.on("text", (piece) => { streamed += piece; });
const last = await stream.finalMessage();
assert.equal(streamed, whole.content[0].text);
assert.deepEqual(last.content, whole.content);
assert.equal(last.usage.output_tokens, whole.usage.output_tokens);

const forced = { ...asked, max_tokens: 250, tools, tool_choice: { type: "tool", name: "store" } };
const called = await client.messages.create(forced);
assert.equal(called.stop_reason, "tool_use");
assert.equal(typeof called.content[0].input.ripe, "boolean");
const again = await client.messages.stream(forced).finalMessage();
assert.deepEqual(again.content[0].input, called.content[0].input);
const result = { type: "tool_result", tool_use_id: called.content[0].id, content: "stored" };
const history = [
  ...messages, { role: "assistant", content: called.content }, { role: "user", content: [result] },
];
assert((await client.messages.create({ ...asked, messages: history, tools })).content.length > 0);

const fruit = z.object({ name: z.enum(["apple", "pear"]), ripe: z.boolean() });
const shaped = { ...asked, max_tokens: 80, output_config: { format: zodOutputFormat(fruit) } };
assert.equal(typeof (await client.messages.parse(shaped)).parsed_output.ripe, "boolean");

await assert.rejects(client.messages.create({ ...asked, temperature: 9 }), BadRequestError);
await assert.rejects(client.messages.create({ ...asked, model: "nobody" }), NotFoundError);

const aborted = client.messages.stream({ ...asked, max_tokens: 500 });
for await (const _ of aborted) { aborted.abort(); break; }
