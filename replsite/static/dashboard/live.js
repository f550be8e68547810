/* Keeps the live page live.
 *
 * Asks over a WebSocket for the page after the one it shows and puts what changed into the document. The server sets the pace. A hidden tab does not ask. When answers stay away the numbers turn grey with their age, and the link is tried
 * again, later each time, also when nobody says that it is lost; where WebSockets do not work at all, the same data is fetched.
 */
"use strict";

(() => {
  const root = document.getElementById("live");
  if (!root) return;
  const { adopt, asked, filter, foldAll, morph, onChange, parameters, update } = window.liveTable;
  const STALE_MS = 4000, POLL_MS = 2000, LONGEST_PAUSE_MS = 30000, FAILURES_BEFORE_POLLING = 3;
  const ANSWER_MS = 15000; /* the server answers within a few seconds, whatever its database does */
  const ASKING = { credentials: "same-origin", cache: "no-store" };
  const OLD_STORAGE_MS = 180000, QUIET_MS = 5000;
  const tables = root.querySelectorAll(".live-table");
  const part = (id) => document.getElementById("live-" + id);
  let socket = null, number = 0, failures = 0, heardAt = performance.now(), polling = false, over = false;
  let askedAt = null;
  let asOf = Date.parse(part("as-of").dateTime), trouble = "";
  let heard = false, saidAt = -QUIET_MS, wasStale = false;

  /* --- what is shown ------------------------------------------------------------------------------------------------ */

  function age(seconds) {
    seconds = Math.max(0, seconds);
    if (seconds < 59.5) return Math.round(seconds) + " s";
    const spans = [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]];
    const whole = Math.round(seconds);
    for (const [size, unit, small, smallUnit] of spans) {
      if (whole >= size) {
        const rest = Math.floor((whole % size) / small);
        return Math.floor(whole / size) + " " + unit + (rest && size > 60 ? " " + rest + " " + smallUnit : "");
      }
    }
    return "";
  }

  function setText(element, text) {
    if (element.textContent !== text) element.textContent = text;
  }

  const serverNow = () => asOf + (performance.now() - heardAt);

  function showAges() {
    const now = serverNow();
    for (const element of root.querySelectorAll("[data-at]")) {
      setText(element, age((now - Date.parse(element.dataset.at)) / 1000) + " ago");
    }
    for (const element of root.querySelectorAll("[data-since]")) {
      setText(element, "for " + age((now - Date.parse(element.dataset.since)) / 1000));
    }
    showFreshness(now);
  }

  function showFreshness(now) {
    const silence = performance.now() - heardAt;
    const stale = silence > STALE_MS || trouble !== "";
    if (!document.hidden) root.classList.toggle("live-stale", stale);
    setText(part("age"), stale ? ", " + age(silence / 1000) + " ago" : "");
    if (!over && stale) setText(part("link"), trouble || "Link lost, trying again");
    else if (!over) setText(part("link"), !heard ? "Connecting" : polling ? "Live, by polling" : "Live");
    for (const element of root.querySelectorAll(".live-fresh")) {
      const moment = element.querySelector("time"), old = now - Date.parse(moment.dateTime);
      const late = stale || old > STALE_MS;
      setText(element.lastElementChild, late ? ", " + age(old / 1000) + " ago" : "");
      element.closest("section").classList.toggle("live-old", old > OLD_STORAGE_MS && element.id !== "live-rooms-fresh");
    }
    if (stale !== wasStale && !document.hidden) tell(stale ? "The numbers are old: " + (trouble || "link lost") : "Live again");
    wasStale = stale;
  }

  function freshen(element, moment) {
    if (element.dateTime === moment) return;
    element.dateTime = moment;
    setText(element, `${moment.slice(11, 19)} UTC`);
  }

  /* For who listens: what became better or worse, not every figure; and not more than a word each few seconds. */
  function tell(text) {
    const wait = saidAt + QUIET_MS - performance.now();
    if (wait > 0) {
      clearTimeout(tell.later);
      tell.later = setTimeout(() => tell(text), wait);
      return;
    }
    saidAt = performance.now();
    setText(part("said"), text);
  }

  function show(message) {
    heardAt = performance.now();
    heard = true;
    if (message.error) {
      trouble = message.error;
      number = 0;
      return;
    }
    trouble = "";
    number = message.number;
    asOf = Date.parse(message.as_of);
    freshen(part("as-of"), message.as_of);
    if (message.state) showState(message.state);
    if (message.summary) morph(part("summary"), message.summary);
    for (const table of tables) if (message[table.id.slice(5)]) update(table, message[table.id.slice(5)]);
    for (const element of root.querySelectorAll(".live-fresh > time")) {
      const stored = /^live-(storage|rooms)-/.test(element.parentNode.id);
      freshen(element, stored ? message.storage_at || element.dateTime : message.as_of);
    }
    showAges();
  }

  function showState(html) {
    const before = part("state").dataset.said, now = morph(part("state"), html).dataset;
    part("health").dataset.word = now.word;
    if (heard && before !== now.said) tell(now.said);
    document.title = (now.word === "well" ? "" : now.word.toUpperCase() + ": ") + document.title.replace(/^(LOOK|WRONG): /, "");
  }

  /* --- the link ----------------------------------------------------------------------------------------------------- */

  function ask() {
    if (document.hidden || !socket || socket.readyState !== WebSocket.OPEN) return;
    if (askedAt === null) askedAt = performance.now();
    socket.send(JSON.stringify({ have: number }));
  }

  function unpacked(data) {
    return new Response(new Blob([data]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
  }

  function connect() {
    if (over) return;
    const scheme = location.protocol === "https:" ? "wss://" : "ws://";
    const own = new WebSocket(scheme + location.host + root.dataset.socket);
    own.binaryType = "arraybuffer";
    socket = own;
    askedAt = performance.now();
    own.addEventListener("open", () => {
      if (own !== socket) return;
      askedAt = null;
      number = 0;
      ask();
    });
    own.addEventListener("message", async (event) => {
      const message = await unpacked(event.data);
      if (own !== socket) return;
      askedAt = null;
      failures = 0;
      polling = false;
      show(message);
      ask();
    });
    own.addEventListener("close", (event) => {
      if (own !== socket) return;
      if ([4401, 4403].includes(event.code)) signedOut();
      else tryAgain();
    });
  }

  /* A network that swallows everything ends no connection: what was asked long ago will not be answered. */
  function giveUpSilentLink() {
    if (askedAt === null || document.hidden || performance.now() - askedAt < ANSWER_MS) return;
    const silent = socket;
    tryAgain();
    silent.close();
  }

  function tryAgain() {
    socket = askedAt = null;
    failures += 1;
    if (failures >= FAILURES_BEFORE_POLLING && !polling) {
      polling = true;
      poll();
    }
    const pause = Math.min(LONGEST_PAUSE_MS, 500 * 2 ** failures);
    setTimeout(connect, pause * (0.75 + Math.random() / 2));
  }

  async function poll() {
    while (polling && !over) {
      if (!document.hidden) {
        try {
          const answer = await fetch(root.dataset.poll, { ...ASKING, signal: AbortSignal.timeout(ANSWER_MS) });
          if (answer.status === 403) return signedOut();
          if (answer.ok || answer.status === 503) show(await answer.json());
        } catch { /* the link is lost: the age of the numbers says so */ }
      }
      await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    }
    return undefined;
  }

  function signedOut() {
    over = true;
    socket = askedAt = null;
    trouble = "Signed out";
    const link = document.createElement("a");
    link.textContent = "Log in again";
    link.href = root.dataset.login;
    part("link").replaceChildren("You are signed out. ", link);
    showAges();
  }

  /* --- begin -------------------------------------------------------------------------------------------------------- */

  /* Writes into the address what the tables show, without a new entry in the browser's history. */
  function remember() {
    const found = parameters().toString();
    const address = `${location.pathname}${found && `?${found}`}${location.hash}`;
    if (address !== location.pathname + location.search + location.hash) history.replaceState(null, "", address);
  }

  function startTools() {
    const find = part("filter"), only = part("only"), button = part("fold");
    const apply = () => {
      filter(root, find.value, only.checked);
      remember();
    };
    find.addEventListener("input", apply);
    only.addEventListener("change", apply);
    let closed = asked.get("fold") === "all";
    if (closed) setText(button, "Unfold all");
    if (asked.has("show")) find.value = asked.get("show");
    if (asked.has("only")) only.checked = true;
    onChange(remember);
    button.addEventListener("click", () => {
      closed = !closed;
      foldAll(root, closed);
      setText(button, closed ? "Unfold all" : "Fold all");
    });
    apply(); // a browser that goes back keeps what was typed
    part("tools").hidden = false;
  }

  tables.forEach(adopt);
  window.liveMenu.watch(root);
  startTools();
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) ask();
  });
  setInterval(showAges, 1000);
  setInterval(giveUpSilentLink, 1000);
  if (root.dataset.socket) connect();
  else {
    polling = true;
    poll();
  }
})();
