// Validates messages of the relay with the JSON schemas of @nostrability/schemata: node schemata.mjs SCHEMA_FOLDER
//
// A scripted conversation makes the relay send every type of message. Each message that arrives is validated. The server must
// accept all events (POLICY=open).
import { strict as assert } from "node:assert";
import { webcrypto } from "node:crypto";
import { existsSync, readFileSync } from "node:fs";
import Ajv from "ajv";
import { nip77 } from "nostr-tools";
import { finalizeEvent, generateSecretKey, getPublicKey } from "nostr-tools/pure";
import WebSocket from "ws";
import { Results, Unsupported, within } from "./results.mjs";

// Node.js 18 has no global of this name.
globalThis.crypto ??= webcrypto;

const TIMEOUT_SECS = 20;
const START = 1_700_000_000;
const [folder] = process.argv.slice(2);
const origin = process.env.GRASPD_ORIGIN;
const read = (path) => JSON.parse(readFileSync(path, "utf8"));
const results = new Results({ "@nostrability/schemata": read(`${folder}/package.json`).version });

const ajv = new Ajv({ strict: false, allErrors: true, validateSchema: false });
// A text of the schemas that says nothing about validity.
ajv.addKeyword("errorMessage");

/** Returns the validator of a schema. Nested schemas repeat their ids, which must not clash. */
function compile(path) {
  const schema = JSON.parse(readFileSync(`${folder}/dist/${path}/schema.json`, "utf8"), (name, value) =>
    name === "$id" || name === "$schema" ? undefined : value,
  );
  return ajv.compile(schema);
}

const SCHEMAS = {
  EVENT: compile("nips/nip-01/messages/relay-event"),
  OK: compile("nips/nip-01/messages/relay-ok"),
  EOSE: compile("nips/nip-01/messages/relay-eose"),
  CLOSED: compile("nips/nip-01/messages/relay-closed"),
  NOTICE: compile("nips/nip-01/messages/relay-notice"),
  COUNT: compile("nips/nip-45/messages/relay-count"),
  AUTH: compile("nips/nip-42/messages/relay-auth"),
};
const RELAY_INFORMATION = compile("nips/nip-11");

function validate(validator, value) {
  assert.ok(validator(value), `${JSON.stringify(value).slice(0, 500)}: ${ajv.errorsText(validator.errors)}`);
}

const key = generateSecretKey();
const author = getPublicKey(key);
const sign = (kind, created_at, tags = [], content = "") => finalizeEvent({ kind, created_at, tags, content }, key);

const socket = new WebSocket(origin.replace("http://", "ws://"));
const received = [];
const waiting = [];
socket.on("message", (data) => {
  const message = JSON.parse(data.toString());
  received.push(message);
  for (const entry of waiting.splice(0)) {
    if (entry.matches(message)) entry.resolve(message);
    else waiting.push(entry);
  }
});
await within(TIMEOUT_SECS, new Promise((resolve) => socket.on("open", resolve)), "connection");

/** Sends a message, or a text that is not a message, and waits for an answer whose first values are these. */
function ask(message, ...expected) {
  const matches = (answer) => expected.every((value, index) => answer[index] === value);
  const answer = new Promise((resolve) => waiting.push({ matches, resolve }));
  socket.send(typeof message === "string" ? message : JSON.stringify(message));
  return within(TIMEOUT_SECS, answer, `${JSON.stringify(message).slice(0, 200)} -> ${expected}`);
}

const repository = [["d", "tool"], ["name", "tool"], ["clone", `${origin}/x/tool.git`], ["relays", "wss://relay.example"]];
const events = {
  note: sign(1, START, [["t", "topic"]], 'text "\\\n🚀'),
  issue: sign(1621, START + 1, [["a", `30617:${author}:other`], ["p", author], ["subject", "subject"]], "issue"),
  announcement: sign(30617, START + 2, repository),
  ephemeral: sign(20001, START + 3, [], "ephemeral"),
};
const publish = (event) => ask(["EVENT", event], "OK", event.id);

await results.run("OK: accepted", async () => {
  for (const event of Object.values(events)) await publish(event);
});
await results.run("OK: duplicate", () => publish(events.note));
await results.run("OK: rejected", async () => {
  const wrong = { ...events.note, content: "other" };
  const [, , accepted] = await ask(["EVENT", wrong], "OK", wrong.id);
  assert.equal(accepted, false);
  await publish(sign(1, START, [["expiration", "1"]], "expired"));
});
await results.run("EVENT and EOSE", async () => {
  await ask(["REQ", "stored", { authors: [author] }], "EOSE", "stored");
  assert.ok(received.some(([type, id]) => type === "EVENT" && id === "stored"));
});
await results.run("EVENT, live", async () => {
  const event = sign(1, Math.floor(Date.now() / 1000), [], "live");
  await ask(["EVENT", event], "EVENT", "stored");
});
await results.run("CLOSED: unsupported filter", () => ask(["REQ", "search", { search: "text" }], "CLOSED", "search"));
await results.run("CLOSED: invalid filter", () => ask(["REQ", "kinds", { kinds: "text" }], "CLOSED", "kinds"));
await results.run("COUNT", () => ask(["COUNT", "count", { authors: [author] }], "COUNT", "count"));
await results.run("CLOSED: rejected COUNT", () => ask(["COUNT", "bad", { kinds: "text" }], "CLOSED", "bad"));
await results.run("NOTICE: not JSON", () => ask("not JSON", "NOTICE"));
await results.run("NOTICE: unknown type", () => ask(["UNKNOWN"], "NOTICE"));
await results.run("AUTH: challenge for a protected event", async () => {
  const event = sign(1, START, [["-"]], "protected");
  const challenge = ask(["EVENT", event], "AUTH");
  await publish(event);
  const [, text] = await challenge;
  const tags = [["relay", origin.replace("http://", "ws://")], ["challenge", text]];
  const answer = sign(22242, Math.floor(Date.now() / 1000), tags);
  const [, , accepted, reason] = await ask(["AUTH", answer], "OK", answer.id);
  assert.ok(accepted, reason);
});
await results.run("NEG-MSG", async () => {
  const storage = new nip77.NegentropyStorageVector();
  storage.seal();
  await ask(["NEG-OPEN", "neg", { authors: [author] }, new nip77.Negentropy(storage).initiate()], "NEG-MSG", "neg");
});
await results.run("NEG-ERR", () => ask(["NEG-MSG", "unknown", "61"], "NEG-ERR", "unknown"));

for (const type of new Set([...Object.keys(SCHEMAS), ...received.map(([type]) => type)])) {
  const messages = received.filter(([other]) => other === type);
  await results.run(`schema of ${type}`, () => {
    assert.ok(messages.length > 0, "no such message was received");
    if (!SCHEMAS[type]) throw new Unsupported("the package has no schema of this message");
    assert.ok(!SCHEMAS[type]([type]), "the schema accepts a message without values");
    for (const message of messages) validate(SCHEMAS[type], message);
  });
}
// What is known about an event of a kind is in a schema of its own.
for (const kind of [1, 1621, 30617]) {
  const nip = kind === 1 ? "01" : "34";
  await results.run(`schema of kind ${kind}`, () => {
    const path = `nips/nip-${nip}/kind-${kind}`;
    assert.ok(existsSync(`${folder}/dist/${path}/schema.json`), "the package has no schema of this kind");
    const found = received.filter(([type, , event]) => type === "EVENT" && event.kind === kind);
    assert.ok(found.length > 0, "no such event was received");
    for (const [, , event] of found) validate(compile(path), event);
  });
}
await results.run("schema of the information document", async () => {
  const response = await fetch(origin, { headers: { Accept: "application/nostr+json" } });
  assert.match(response.headers.get("content-type"), /^application\/nostr\+json/);
  validate(RELAY_INFORMATION, await response.json());
});

console.log(received.map((message) => JSON.stringify(message)).join("\n"));
socket.close();
