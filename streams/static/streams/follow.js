// Follows a stream of facts that `stream_view` serves, or a `stream_consumer` if the address begins with ws.
// Goes on by itself after every loss, from the last token.
//
//   const stop = follow("/orders/events/", { fact: (row, token) => …, resync: (reason) => …, status: (word) => … });
//
// `fact` gets each fact once, in order. `resync` is called when facts before the next one cannot be had any more:
// load the page's state anew (the default reloads the page). `status` gets "connecting", "live" or "waiting".
// `after` is the token to begin after, else it begins now. `parse` reads what `render` returned: JSON by default.

const FIRST_MILLISECONDS = 500, LONGEST_MILLISECONDS = 30_000, BEATS_MISSED = 3;

export function follow(url, { fact, resync = () => location.reload(), status, after = "", parse = JSON.parse }) {
  let connection, timer, word, last = after, rows = [], failures = 0, silence = LONGEST_MILLISECONDS;

  function say(next) {
    if (word !== next) status?.(word = next);
  }

  function within(milliseconds, call) {
    clearTimeout(timer);
    timer = setTimeout(call, milliseconds);
  }

  function take(name, token, data) {
    if (name === "ready") silence = JSON.parse(data).beat * 1000 * BEATS_MISSED;
    else failures = 0;
    within(silence, lost); // a dead network closes nothing
    if (name === "message") rows.push(data);
    const moved = token && token !== last;
    if (moved) last = token;
    if (name === "ready") say("live");
    if (name === "resync") resync(JSON.parse(data).reason);
    if (name === "message" && moved) for (const row of rows.splice(0)) fact?.(parse(row), token); // a whole fact
  }

  function connect() {
    const address = new URL(url, document.baseURI);
    if (last) address.searchParams.set("after", last);
    const own = connection = address.protocol.startsWith("ws") ? new WebSocket(address) : new EventSource(address);
    const mine = (call) => (event) => own === connection && call(event);
    own.onerror = own.onclose = mine(lost);
    if (own instanceof WebSocket) {
      own.onmessage = mine((message) => { const { event, id, data } = JSON.parse(message.data); take(event, id, data); });
    } else {
      for (const name of ["ready", "message", "resync", "beat"])
        own.addEventListener(name, mine((event) => take(name, event.lastEventId, event.data)));
    }
    within(silence, lost);
  }

  function stop() {
    clearTimeout(timer);
    const own = connection;
    connection = null;
    own?.close();
  }

  function lost() {
    stop();
    rows = [];
    say("waiting");
    const longest = Math.min(FIRST_MILLISECONDS * 2 ** failures++, LONGEST_MILLISECONDS);
    within(longest * (0.5 + Math.random() / 2), connect); // not all pages in the same moment
  }

  say("connecting");
  connect();
  return stop;
}
