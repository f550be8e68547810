/* Keeps the live page live.
 *
 * Asks each second for the parts of the page, with the tag of those that it shows, and puts what changed into the document. A
 * hidden tab does not ask, and asks at once when it is shown again. When answers stay away the numbers turn grey with their age,
 * and the server is asked again, later each time.
 */
"use strict";

(() => {
  const root = document.getElementById("live");
  if (!root) return;
  const { adopt, asked, filter, foldAll, morph, onChange, parameters, update } = window.liveTable;
  const ASK_MS = 1000, STALE_MS = 4000, ANSWER_MS = 15000, LONGEST_PAUSE_MS = 8000;
  const OLD_STORAGE_MS = 180000, QUIET_MS = 5000;
  const tables = root.querySelectorAll(".live-table");
  const part = (id) => document.getElementById("live-" + id);
  let tag = "", next = 0, isAsking = false, failures = 0, heardAt = performance.now(), over = false;
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
    else if (!over) setText(part("link"), heard ? "Live" : "Connecting");
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

  /* The page as of a moment; null: as it is shown. */
  function show(moment, found) {
    heardAt = performance.now();
    heard = true;
    asOf = Date.parse(moment);
    trouble = "";
    freshen(part("as-of"), moment);
    if (found) {
      showState(found.state);
      morph(part("summary"), found.summary);
      for (const table of tables) if (found[table.id.slice(5)]) update(table, found[table.id.slice(5)]);
    }
    for (const element of root.querySelectorAll(".live-fresh > time")) {
      if (!/^live-(storage|rooms)-/.test(element.parentNode.id)) freshen(element, moment);
      else if (found) freshen(element, found.storage_at || element.dateTime);
    }
    showAges();
  }

  function showState(html) {
    const before = part("state").dataset.said, now = morph(part("state"), html).dataset;
    part("health").dataset.word = now.word;
    if (heard && before !== now.said) tell(now.said);
    document.title = (now.word === "well" ? "" : now.word.toUpperCase() + ": ") + document.title.replace(/^(LOOK|WRONG): /, "");
  }

  /* --- the questions ------------------------------------------------------------------------------------------------ */

  async function ask() {
    clearTimeout(next);
    if (over || isAsking || document.hidden) return;
    isAsking = true;
    const { status, moment, etag, found } = await answered().catch(() => ({ status: 0 }));
    isAsking = false;
    if (status === 403) {
      signedOut();
      return;
    }
    const isThere = status === 200 || status === 304;
    failures = isThere ? 0 : failures + 1;
    const pause = Math.min(LONGEST_PAUSE_MS, ASK_MS * 2 ** failures) * (0.75 + Math.random() / 2);
    next = setTimeout(ask, failures ? pause : ASK_MS);
    if (isThere) {
      show(moment, found);
      tag = etag;
    } else { // with no answer at all, the age of the numbers says so
      trouble = status ? found.error || `The server answers ${status}, trying again` : "";
      showAges();
    }
  }

  async function answered() {
    const answer = await fetch(root.dataset.source, {
      credentials: "same-origin",
      cache: "no-store", // and so a 304 comes to us
      headers: tag ? { "If-None-Match": tag } : {},
      signal: AbortSignal.timeout(ANSWER_MS),
    });
    const content = answer.ok ? answer.json() : answer.json().catch(() => ({})); // an error may be a proxy's page
    return {
      status: answer.status,
      moment: answer.headers.get("As-Of"),
      etag: answer.headers.get("ETag"),
      found: answer.status === 304 ? null : await content,
    };
  }

  function signedOut() {
    over = true;
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
  document.addEventListener("visibilitychange", ask);
  window.addEventListener("online", ask);
  setInterval(showAges, 1000);
  ask();
})();
