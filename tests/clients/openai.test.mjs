// The openai package against a running server: TESSERA_BASE_URL and TESSERA_API_KEY say which. The answers are
// those of tests/http/fake_server.cc.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import OpenAI from 'openai';

const baseURL = process.env.TESSERA_BASE_URL;
const apiKey = process.env.TESSERA_API_KEY ?? 'none';
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const model = 'toy';
const user = (content) => [{ role: 'user', content }];
const chat = (content, more = {}) =>
  client.chat.completions.create({ model, messages: user(content), ...more });

async function metric(name) {
  const page = await (await fetch(new URL('/metrics', baseURL))).text();
  const line = page.split('\n').find((row) => row.startsWith(`${name} `));
  return Number(line.split(' ')[1]);
}

async function becomesIdle(limitMs) {
  const end = Date.now() + limitMs;
  while (Date.now() < end) {
    if ((await metric('tessera_requests_running')) === 0) return true;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return false;
}

test('models.list and retrieve', async () => {
  const list = await client.models.list();
  assert.deepEqual(list.data.map((entry) => entry.id), [model]);
  assert.equal((await client.models.retrieve(model)).object, 'model');
  await assert.rejects(client.models.retrieve('nothing'), OpenAI.NotFoundError);
});

test('chat create', async () => {
  const reply = await chat('hi');
  assert.equal(reply.choices[0].message.content, 'Hello world!');
  assert.equal(reply.choices[0].finish_reason, 'stop');
  assert.equal(reply.usage.completion_tokens, 3);
  assert.equal(reply.usage.total_tokens, reply.usage.prompt_tokens + 3);
});

test('chat stream with and without usage', async () => {
  for (const usage of [true, false]) {
    const stream = await chat('hi', {
      stream: true,
      ...(usage ? { stream_options: { include_usage: true } } : {}),
    });
    let text = '';
    let roles = 0;
    let seen = null;
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta.content ?? '';
      roles += chunk.choices[0]?.delta.role ? 1 : 0;
      seen = chunk.usage ?? seen;
    }
    assert.equal(text, 'Hello world!');
    assert.equal(roles, 1);
    assert.equal(seen?.completion_tokens, usage ? 3 : undefined);
  }
});

test('stream helper accumulates', async () => {
  const stream = client.chat.completions.stream({ model, messages: user('hi [unicode]') });
  const final = await stream.finalChatCompletion();
  assert.equal(final.choices[0].message.role, 'assistant');
  assert.equal(final.choices[0].message.content, '👍中文');
});

test('abort mid-stream, in prefill and without stream frees the slot', async () => {
  const stream = await chat('[slow]', { stream: true });
  let count = 0;
  for await (const chunk of stream) {
    if (++count === 5) stream.controller.abort();
  }
  assert.ok(await becomesIdle(500));
  for (const more of [{ stream: true }, {}]) {
    const controller = new AbortController();
    const pending = client.chat.completions.create(
      { model, messages: user('[slow] [long]'), ...more }, { signal: controller.signal });
    setTimeout(() => controller.abort(), 50);
    await assert.rejects(async () => {
      for await (const chunk of await pending) void chunk;
      // A stream that is aborted may also end without an error.
      throw new OpenAI.APIUserAbortError();
    }, OpenAI.APIUserAbortError);
    assert.ok(await becomesIdle(500));
  }
});

test('a long prefill with pings', async () => {
  const stream = await chat('[long]', { stream: true });
  let text = '';
  for await (const chunk of stream) text += chunk.choices[0]?.delta.content ?? '';
  assert.equal(text, 'Hello world!');
});

test('three choices, seeded', async () => {
  const reply = await chat('hi', { n: 3, seed: 1 });
  assert.deepEqual(reply.choices.map((choice) => choice.index), [0, 1, 2]);
});

test('logprobs describe the text', async () => {
  const reply = await chat('hi', { logprobs: true, top_logprobs: 2 });
  const { content } = reply.choices[0].logprobs;
  assert.equal(content.map((entry) => entry.token).join(''), reply.choices[0].message.content);
  assert.ok(content.every((entry) => entry.top_logprobs.length === 2));
});

test('stop strings across tokens', async () => {
  const reply = await chat('hi', { stop: ['lo wor'] });
  assert.equal(reply.choices[0].message.content, 'Hel');
  assert.equal(reply.choices[0].finish_reason, 'stop');
});

test('length', async () => {
  assert.equal((await chat('hi', { max_tokens: 1 })).choices[0].finish_reason, 'length');
});

test('classes of errors', async () => {
  await assert.rejects(chat('hi', { temperature: 9 }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.param, 'temperature');
    assert.ok(error.requestID);
    return true;
  });
  await assert.rejects(chat('x'.repeat(5000)), (error) => {
    assert.equal(error.code, 'context_length_exceeded');
    return error instanceof OpenAI.BadRequestError;
  });
  const stranger = new OpenAI({ baseURL, apiKey: 'wrong', maxRetries: 0 });
  await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);
  await assert.rejects(client.chat.completions.create({ model: 'nothing', messages: user('hi') }),
    OpenAI.NotFoundError);
  await assert.rejects(chat('[full]'), OpenAI.RateLimitError);
});

test('a failure in a stream raises', async () => {
  const stream = await chat('[fail]', { stream: true });
  await assert.rejects(async () => {
    for await (const chunk of stream) void chunk;
  }, OpenAI.APIError);
});

test('legacy completions', async () => {
  const plain = await client.completions.create({ model, prompt: 'ab' });
  assert.equal(plain.choices[0].text, 'Hello world!');
  const tokens = await client.completions.create({ model, prompt: [97, 98] });
  assert.equal(tokens.usage.prompt_tokens, 2);
  const batch = await client.completions.create({ model, prompt: ['a', 'b'], n: 2 });
  assert.equal(batch.choices.length, 4);
  const echo = await client.completions.create({ model, prompt: 'ab', echo: true, logprobs: 1 });
  assert.equal(echo.choices[0].text, 'abHello world!');
  assert.equal(echo.choices[0].logprobs.tokens.length, 5);
  assert.equal(echo.choices[0].logprobs.token_logprobs[0], null);
  const stream = await client.completions.create({ model, prompt: 'ab', stream: true });
  let text = '';
  for await (const chunk of stream) text += chunk.choices[0].text;
  assert.equal(text, 'Hello world!');
});

test('32 requests at once', async () => {
  const replies = await Promise.allSettled(Array.from({ length: 32 }, () => chat('hi')));
  for (const reply of replies) {
    if (reply.status === 'rejected') assert.ok(reply.reason instanceof OpenAI.RateLimitError);
  }
  assert.ok(replies.some((reply) => reply.status === 'fulfilled'));
});
