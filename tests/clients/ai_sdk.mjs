// The `ai` SDK with its openai-compatible provider.
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import * as ai from "ai";
import { z } from "zod";

const name = process.env.MILLRACE_MODEL;
const provider = createOpenAICompatible({
  name: "millrace", baseURL: process.env.OPENAI_BASE_URL, apiKey: "none",
  includeUsage: true, supportsStructuredOutputs: true,
});
const model = provider(name);
const fruit = z.object({ name: z.enum(["apple", "pear"]), ripe: z.boolean() });
const asked = { model, prompt: "What is Millrace?", maxOutputTokens: 24, temperature: 0, seed: 1, maxRetries: 0 };

const whole = await ai.generateText(asked);
assert(whole.text.length > 0 && whole.usage.outputTokens > 0);
const stream = ai.streamText(asked);
let streamed = "";
for await (const part of stream.textStream) streamed += part;
assert.equal(streamed, whole.text);
assert.equal((await stream.usage).outputTokens, whole.usage.outputTokens);

const tools = { store: ai.tool({ description: "Store a fruit.", inputSchema: fruit }) };
const forced = { ...asked, tools, toolChoice: "required", maxOutputTokens: 250 };
const called = await ai.generateText(forced);
assert.equal(called.toolCalls[0].toolName, "store");
assert.deepEqual(fruit.parse(called.toolCalls[0].input), called.toolCalls[0].input);
const flowing = ai.streamText(forced);
assert.deepEqual((await flowing.toolCalls)[0].input, called.toolCalls[0].input);
assert.equal(await flowing.finishReason, "tool-calls");

const formed = await ai.generateText({
  ...asked, maxOutputTokens: 80, output: ai.Output.object({ schema: fruit }),
});
fruit.parse(formed.output);

const { embeddings } = await ai.embedMany({ model: provider.embeddingModel?.(name) ?? provider.textEmbeddingModel(name), values: ["a", "b"] });
assert.equal(embeddings.length, 2);
