// Follows a replsite server, misses no fact, and needs nothing but Node: docs/reference/wire.md is all it was made from.
//
//   node follow.mjs 127.0.0.1:9092 http://127.0.0.1:8000 cursors.json orders caches
//
// Prints a JSON line for each fact of the named streams (of all streams, if none is named), and keeps its positions in
// the file. A fact may be printed again after a kill, never left out. REPLSITE_REPLICATION_SECRET is the site's secret.
import { randomUUID } from "node:crypto";
import { existsSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { createConnection } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";

const [address, site, file, ...wanted] = process.argv.slice(2);
const [, host, port] = address.match(/^(.*):(\d+)$/);
const secret = process.env.REPLSITE_REPLICATION_SECRET;
const positions = existsSync(file) ? JSON.parse(readFileSync(file, "utf8")) : {}; // {stream: {writer: position}}
const inMemory = new Set(["presence_federation", "typing", "federation"]); // only these ever go back
class Fatal extends Error {}

// The text is out before the position is stored. So a kill in between repeats facts, and loses none.
async function handle(stream, writer, facts, position) {
  const text = facts.map(([token, rows]) => JSON.stringify({ stream, writer, token, rows }) + "\n").join("");
  if (text) await new Promise((done) => process.stdout.write(text, done));
  (positions[stream] ??= {})[writer] = position;
  writeFileSync(`${file}.new`, JSON.stringify(positions));
  renameSync(`${file}.new`, file);
}

async function catchUp(stream, writer, position, until) {
  for (let more = true; more; ) {
    const query = `from_token=${position}&upto_token=${until}&instance_name=${encodeURIComponent(writer)}`;
    const path = `_synapse/replication/get_repl_stream_updates/${encodeURIComponent(stream)}/${randomUUID()}`;
    const headers = secret ? { Authorization: `Bearer ${secret}` } : {};
    const answer = await fetch(`${site}/${path}?${query}`, { headers });
    if (answer.status === 410) throw new Fatal(`${stream}: facts after ${position} of ${writer} were trimmed`);
    if (!answer.ok) throw new Error(`catch-up of ${stream}: ${answer.status} ${await answer.text()}`);
    const { updates, upto_token, limited } = await answer.json();
    const facts = new Map(); // the rows of a fact share its token
    for (const [token, row] of updates) facts.set(token, [...(facts.get(token) ?? []), row]);
    await handle(stream, writer, [...facts], (position = upto_token));
    more = limited;
  }
}

async function* lines(socket) {
  let rest = "";
  for await (const piece of socket.setEncoding("utf8")) {
    const parts = (rest + piece).split("\n"); // LF alone ends a line: others would cut rows apart
    rest = parts.pop();
    yield* parts;
  }
}

async function follow(socket) {
  const known = new Set(); // streams with writers whose POSITION came on this connection
  const batches = new Map(); // the rows so far of a fact that is not complete
  const ping = setInterval(() => socket.write(`PING ${Date.now()}\n`), 5_000);
  socket.setTimeout(15_000, () => socket.destroy(new Error("the server says nothing")));
  socket.write(`NAME follow.mjs\nPING ${Date.now()}\nREPLICATE \n`);
  try {
    // One line after the other, and no line is read while rows are fetched.
    for await (const line of lines(socket)) {
      const [, word, rest] = line.match(/^(\S*) ?(.*)$/s);
      if (word === "ERROR" && rest === "the database was restored") throw new Fatal(rest);
      if (word === "ERROR") console.error(`the server says: ${rest}`);
      if (word !== "RDATA" && word !== "POSITION") continue;
      const [, stream, writer, third, last] = rest.match(/^(\S*) (\S*) (\S*) (.*)$/s);
      if (wanted.length && !wanted.includes(stream)) continue;
      const place = `${stream} ${writer}`;
      const position = positions[stream]?.[writer];
      if (word === "POSITION") {
        const [previous, now] = [Number(third), Number(last)];
        batches.delete(place);
        known.add(place);
        if (position === undefined) await handle(stream, writer, [], now); // a new follower begins now
        else if (inMemory.has(stream) && now < position) await catchUp(stream, writer, 0, now);
        else if (previous > position) await catchUp(stream, writer, position, now);
        else if (now > position) await handle(stream, writer, [], now);
      } else if (known.has(place)) {
        const rows = [...(batches.get(place) ?? []), JSON.parse(last)];
        if (third === "batch") batches.set(place, rows);
        else {
          batches.delete(place);
          if (Number(third) > position) await handle(stream, writer, [[Number(third), rows]], Number(third));
        }
      }
    }
  } finally {
    clearInterval(ping);
    socket.destroy();
  }
}

for (let pause = 200; ; pause = Math.min(pause * 2, 10_000)) {
  const socket = createConnection({ host, port: Number(port) }, () => (pause = 200));
  try {
    await follow(socket);
    console.error("the server closed the connection");
  } catch (error) {
    console.error(error.message);
    if (error instanceof Fatal) process.exit(1); // to begin anew, delete the file of positions
  }
  await sleep(pause);
}
