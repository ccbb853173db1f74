// The openai package against `tessera serve` on a synthetic model, whose answers are noise: shapes, not words.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import OpenAI from 'openai';

const baseURL = process.env.TESSERA_BASE_URL;
const client = new OpenAI({ baseURL, apiKey: process.env.TESSERA_API_KEY ?? 'none', maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const chat = (more) => client.chat.completions.create(
  { model, messages: [{ role: 'user', content: 'Hello' }], temperature: 0, ignore_eos: true, ...more });

async function becomesIdle(limitMs) {
  const end = Date.now() + limitMs;
  while (Date.now() < end) {
    const page = await (await fetch(new URL('/metrics', baseURL))).text();
    if (/^tessera_requests_running 0$/m.test(page)) return true;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return false;
}

test('chat, whole and streamed', async () => {
  const whole = await chat({ max_tokens: 16 });
  assert.equal(whole.usage.completion_tokens, 16);
  const stream = await chat({ max_tokens: 16, stream: true, stream_options: { include_usage: true } });
  let text = '';
  let usage = null;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? '';
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(usage.completion_tokens, 16);
});

test('abort mid-stream frees the slot', async () => {
  const stream = await chat({ max_tokens: 30000, stream: true });
  let count = 0;
  for await (const chunk of stream) {
    if (chunk && ++count === 5) stream.controller.abort();
  }
  assert.ok(await becomesIdle(1000));
});

test('completions with logprobs', async () => {
  const reply = await client.completions.create({ model, prompt: [30, 31, 32], max_tokens: 4, echo: true, logprobs: 2 });
  assert.equal(reply.choices[0].logprobs.token_logprobs[0], null);
  assert.ok(reply.choices[0].logprobs.tokens.length > 3);
});
