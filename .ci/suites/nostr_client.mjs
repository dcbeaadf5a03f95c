// Uses the relay with the JavaScript library nostr-tools, on the websocket implementation ws. The server must accept all events
// (POLICY=open).
import { strict as assert } from "node:assert";
import { webcrypto } from "node:crypto";
import { readFileSync } from "node:fs";
import { useWebSocketImplementation, Relay } from "nostr-tools/relay";
import { finalizeEvent, generateSecretKey, getPublicKey, verifyEvent } from "nostr-tools/pure";
import { fetchRelayInformation, useFetchImplementation } from "nostr-tools/nip11";
import { nip77 } from "nostr-tools";
import WebSocket from "ws";
import { Results, within } from "./results.mjs";

// Node.js 18 has no global of this name.
globalThis.crypto ??= webcrypto;
useWebSocketImplementation(WebSocket);

const TIMEOUT_SECS = 20;
const START = 1_700_000_000;
const origin = process.env.GRASPD_ORIGIN;
const url = origin.replace("http://", "ws://");
const version = (name) => JSON.parse(readFileSync(new URL(`./node_modules/${name}/package.json`, import.meta.url))).version;
const results = new Results({ "nostr-tools": version("nostr-tools"), ws: version("ws"), node: process.versions.node });

const key = generateSecretKey();
const author = getPublicKey(key);
const sign = (kind, created_at, tags = [], content = "") => finalizeEvent({ kind, created_at, tags, content }, key);
const relay = await Relay.connect(url);
const publish = (event) => within(TIMEOUT_SECS, relay.publish(event), "publish");

/** Returns the ids of the stored events. */
async function query(...filters) {
  const found = [];
  await within(
    TIMEOUT_SECS,
    new Promise((resolve, reject) => {
      const subscription = relay.subscribe(filters, {
        onevent: (event) => found.push(event),
        oneose: () => {
          subscription.close();
          resolve();
        },
        oninvalidevent: (event) => reject(new Error(`invalid event: ${JSON.stringify(event)}`)),
        eoseTimeout: TIMEOUT_SECS * 1000,
      });
    }),
    "query",
  );
  assert.ok(found.every(verifyEvent), "wrong signature");
  return found.map((event) => event.id);
}

const notes = [...Array(6).keys()].map((index) =>
  sign(1, START + index, [["t", `topic ${index % 2}`]], `note ${index} "\\\n\t🚀`),
);
const newestFirst = (...indexes) => indexes.sort().reverse().map((index) => notes[index].id);

await results.run("nostr-tools: publish", async () => {
  for (const note of notes) await publish(note);
  assert.match(await publish(notes[0]), /^duplicate: /);
});
await results.run("nostr-tools: query by id", async () => {
  assert.deepEqual(await query({ ids: [notes[2].id, notes[3].id] }), newestFirst(2, 3));
});
await results.run("nostr-tools: query by kind and author", async () => {
  assert.deepEqual(await query({ kinds: [1], authors: [author] }), newestFirst(0, 1, 2, 3, 4, 5));
  assert.deepEqual(await query({ kinds: [7], authors: [author] }), []);
});
await results.run("nostr-tools: query by tag", async () => {
  assert.deepEqual(await query({ authors: [author], "#t": ["topic 1"] }), newestFirst(1, 3, 5));
});
await results.run("nostr-tools: query by time, with limit", async () => {
  assert.deepEqual(await query({ authors: [author], since: START + 2, until: START + 4, limit: 2 }), newestFirst(3, 4));
});
await results.run("nostr-tools: query with several filters", async () => {
  assert.deepEqual(await query({ ids: [notes[0].id] }, { authors: [author], since: START + 5 }), newestFirst(0, 5));
});
await results.run("nostr-tools: live subscription", async () => {
  const other = await Relay.connect(url);
  const event = sign(1, Math.floor(Date.now() / 1000), [], "live");
  const received = await within(
    TIMEOUT_SECS,
    new Promise((resolve) => {
      other.subscribe([{ authors: [author], since: event.created_at }], {
        onevent: resolve,
        oneose: () => publish(event),
      });
    }),
    "live event",
  );
  assert.equal(received.id, event.id);
  other.close();
});
await results.run("nostr-tools: count", async () => {
  assert.equal(await within(TIMEOUT_SECS, relay.count([{ authors: [author], until: START + 5 }], {}), "count"), notes.length);
});
await results.run("nostr-tools: replaceable event", async () => {
  const versions = [0, 1].map((index) => sign(10002, START + index, [], String(index)));
  for (const event of versions) await publish(event);
  assert.deepEqual(await query({ kinds: [10002], authors: [author] }), [versions[1].id]);
});
await results.run("nostr-tools: rejection with a reason", async () => {
  const expired = sign(1, START, [["expiration", String(START + 1)]], "expired");
  await assert.rejects(publish(expired), /invalid: /);
});
await results.run("nostr-tools: subscription that is rejected", async () => {
  const reason = await within(
    TIMEOUT_SECS,
    new Promise((resolve) => relay.subscribe([{ search: "text" }], { onclose: resolve })),
    "CLOSED",
  );
  assert.match(reason, /^unsupported: /);
});
await results.run("nostr-tools: negentropy", async () => {
  const storage = new nip77.NegentropyStorageVector();
  for (const note of notes.slice(0, 2)) storage.insert(note.created_at, note.id);
  storage.insert(START + 3, "ab".repeat(32));
  storage.seal();
  const [have, need] = [[], []];
  await within(
    TIMEOUT_SECS,
    new Promise((resolve, reject) => {
      const sync = new nip77.NegentropySync(relay, storage, { authors: [author], until: START + 5, kinds: [1] }, {
        onhave: (id) => have.push(id),
        onneed: (id) => need.push(id),
        onclose: (error) => (error ? reject(new Error(error)) : resolve()),
      });
      sync.start();
    }),
    "negentropy",
  );
  assert.deepEqual(need.sort(), notes.slice(2).map((note) => note.id).sort());
  assert.deepEqual(have, ["ab".repeat(32)]);
});
await results.run("nostr-tools: authentication for a protected event", async () => {
  const event = sign(1, START + 100, [["-"]], "protected");
  await assert.rejects(publish(event), /auth-required: /);
  await within(TIMEOUT_SECS, relay.auth(async (template) => finalizeEvent(template, key)), "authentication");
  await publish(event);
  assert.deepEqual(await query({ ids: [event.id] }), [event.id]);
});
await results.run("nostr-tools: deletion", async () => {
  await publish(sign(5, START + 200, [["e", notes[5].id]]));
  assert.deepEqual(await query({ ids: [notes[5].id] }), []);
});
await results.run("nostr-tools: information document", async () => {
  useFetchImplementation(fetch);
  const { supported_nips: supported, limitation } = await within(TIMEOUT_SECS, fetchRelayInformation(url), "NIP-11");
  for (const nip of [1, 9, 11, 34, 40, 42, 45, 77]) assert.ok(supported.includes(nip), `${nip} is not in ${supported}`);
  assert.equal(typeof limitation.max_message_length, "number");
});

relay.close();
