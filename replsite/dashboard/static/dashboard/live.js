/* Keeps the live page live.
 *
 * Asks over a WebSocket for the page after the one it shows and writes what changed into the document, always as text. The server
 * sets the pace. A hidden tab does not ask. When answers stay away the numbers turn grey with their age, and the link is tried
 * again, later each time; where WebSockets do not work at all, the same data is fetched.
 */
"use strict";

(() => {
  const root = document.getElementById("live");
  if (!root) return;
  const STALE_MS = 4000, POLL_MS = 2000, LONGEST_PAUSE_MS = 30000, FAILURES_BEFORE_POLLING = 3;
  const part = (id) => document.getElementById("live-" + id);
  let socket = null, number = 0, failures = 0, heardAt = performance.now(), polling = false, over = false;
  let asOf = Date.parse(part("as-of").dateTime), trouble = "";

  /* --- what is shown ------------------------------------------------------------------------------------------------ */

  function setText(element, text) {
    if (element.textContent !== text) element.textContent = text;
  }

  function age(seconds) {
    seconds = Math.max(0, seconds);
    if (seconds < 59.5) return Math.round(seconds) + " s ago";
    const spans = [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]];
    const whole = Math.round(seconds);
    for (const [size, unit, small, smallUnit] of spans) {
      if (whole >= size) {
        const rest = Math.floor((whole % size) / small);
        return Math.floor(whole / size) + " " + unit + (rest && size > 60 ? " " + rest + " " + smallUnit : "") + " ago";
      }
    }
  }

  const serverNow = () => asOf + (performance.now() - heardAt);

  function showAges() {
    for (const element of root.querySelectorAll("[data-at]")) {
      setText(element, age((serverNow() - Date.parse(element.dataset.at)) / 1000));
      element.title = element.dataset.at.slice(0, 19).replace("T", " ") + " UTC";
    }
    const silence = performance.now() - heardAt;
    const stale = silence > STALE_MS || trouble !== "";
    if (!document.hidden) root.classList.toggle("live-stale", stale);
    setText(part("age"), stale ? ", " + age(silence / 1000) : "");
    if (!over && stale) setText(part("link"), trouble || "Link lost, trying again");
    else if (!over) setText(part("link"), polling ? "Live, by polling" : "Live");
  }

  function fillCell(element, cell, title, number) {
    let text = element.querySelector(".live-text"), sub = element.querySelector(".live-sub");
    if (!text) {
      text = document.createElement("span");
      text.className = "live-text";
      sub = document.createElement("span");
      sub.className = "live-sub";
      element.append(text, sub);
    }
    if (cell.at) text.dataset.at = cell.at;
    else {
      delete text.dataset.at;
      text.removeAttribute("title");
      setText(text, cell.text);
    }
    text.toggleAttribute("data-nothing", !cell.at && cell.text === "-");
    setText(sub, cell.sub || "");
    element.dataset.label = title;
    element.classList.toggle("live-number", number);
  }

  function fillRow(line, row, columns) {
    line.dataset.severity = row.severity;
    line.toggleAttribute("data-quiet", row.severity === "fine" && ["idle", "retired", "gone"].includes(row.cells[1].text));
    row.cells.forEach((cell, index) => {
      let element = line.children[index];
      if (!element) {
        element = document.createElement(index ? "td" : "th");
        if (!index) element.scope = "row";
        line.append(element);
      }
      fillCell(element, cell, columns[index].title, columns[index].number);
    });
  }

  function newLine(key, head) {
    const line = document.createElement("tr");
    line.dataset.key = key;
    if (head) line.className = "live-head";
    return line;
  }

  const keyed = (elements) => new Map([...elements].map((element) => [element.dataset.key, element]));

  /* Bring children into order by moving as few as possible; the focus stays where it is. */
  function arrange(parent, wanted, first) {
    const focused = document.activeElement;
    let after = first;
    for (const element of wanted) {
      const next = after ? after.nextElementSibling : parent.firstElementChild;
      if (next !== element) parent.insertBefore(element, next);
      after = element;
    }
    while (after && after.nextElementSibling) after.nextElementSibling.remove();
    if (focused && focused !== document.activeElement && parent.contains(focused)) focused.focus({ preventScroll: true });
  }

  function changeTable(table, change) {
    const columns = [...table.tHead.rows[0].cells].map((cell) => ({ title: cell.textContent, number: cell.classList.contains("live-number") }));
    const groups = keyed(table.tBodies);
    for (const [key, group] of Object.entries(change.groups || {})) {
      let body = groups.get(key);
      if (!body) {
        body = document.createElement("tbody");
        body.dataset.key = key;
        body.append(newLine("", true));
        groups.set(key, body);
        table.append(body);
      }
      changeGroup(body, group, columns);
      addToggle(table, body);
    }
    if (change.order) {
      arrange(table, change.order.map((key) => groups.get(key)).filter(Boolean), table.tHead);
      table.closest("section").querySelector(".live-nothing").hidden = change.order.length > 0;
    }
  }

  function changeGroup(body, group, columns) {
    if (group.head) fillRow(body.rows[0], group.head, columns);
    const lines = keyed([...body.rows].slice(1));
    for (const [key, row] of Object.entries(group.rows || {})) {
      if (!lines.has(key)) {
        lines.set(key, newLine(key, false));
        body.append(lines.get(key));
      }
      fillRow(lines.get(key), row, columns);
    }
    if (group.order) arrange(body, group.order.map((key) => lines.get(key)).filter(Boolean), body.rows[0]);
  }

  /* A group can be folded by its name; readers start folded, since their first line says it all. */
  function addToggle(table, body) {
    const name = body.rows[0].cells[0];
    if (name.querySelector("button") || body.rows.length < 2) return;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "live-toggle";
    button.append(name.querySelector(".live-text"));
    name.prepend(button);
    const fold = (closed) => {
      body.classList.toggle("live-closed", closed);
      button.setAttribute("aria-expanded", String(!closed));
    };
    button.addEventListener("click", () => fold(!body.classList.contains("live-closed")));
    fold(table.id !== "live-streams");
  }

  function show(message) {
    heardAt = performance.now();
    if (message.error) {
      trouble = message.error;
      number = 0;
      return;
    }
    trouble = "";
    number = message.number;
    asOf = Date.parse(message.as_of);
    part("as-of").dateTime = message.as_of;
    setText(part("as-of"), message.as_of.slice(11, 19) + " UTC");
    if (message.health) showHealth(message.health);
    if (message.streams) changeTable(part("streams"), message.streams);
    if (message.readers) changeTable(part("readers"), message.readers);
    if (message.workers) changeTable(part("workers"), message.workers);
    if (message.jobs) changeTable(part("jobs"), message.jobs);
    showAges();
  }

  function showHealth(health) {
    part("health").dataset.word = health.word;
    setText(part("health-word"), health.word);
    setText(part("health-sentence"), health.sentence);
    const items = health.problems.map((problem) => {
      const item = document.createElement("li");
      item.textContent = problem;
      return item;
    });
    part("problems").replaceChildren(...items);
    part("problems").hidden = items.length === 0;
  }

  /* --- the link ----------------------------------------------------------------------------------------------------- */

  function ask() {
    if (!document.hidden && socket && socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ have: number }));
  }

  function connect() {
    if (over) return;
    const scheme = location.protocol === "https:" ? "wss://" : "ws://";
    socket = new WebSocket(scheme + location.host + root.dataset.socket);
    socket.addEventListener("open", () => {
      number = 0;
      ask();
    });
    socket.addEventListener("message", (event) => {
      failures = 0;
      polling = false;
      show(JSON.parse(event.data));
      ask();
    });
    socket.addEventListener("close", (event) => {
      if ([4401, 4403].includes(event.code)) signedOut();
      else tryAgain();
    });
  }

  function tryAgain() {
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
          const answer = await fetch(root.dataset.poll, { credentials: "same-origin", cache: "no-store" });
          if (answer.status === 403) return signedOut();
          if (answer.ok || answer.status === 503) show(await answer.json());
        } catch { /* the link is lost: the age of the numbers says so */ }
      }
      await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    }
  }

  function signedOut() {
    over = true;
    trouble = "Signed out";
    const link = document.createElement("a");
    link.href = root.dataset.login;
    link.textContent = "Log in again";
    part("link").replaceChildren("You are signed out. ", link);
    showAges();
  }

  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) ask();
  });
  for (const table of root.querySelectorAll(".live-table")) {
    const columns = [...table.tHead.rows[0].cells];
    for (const body of table.tBodies) {
      for (const line of body.rows) {
        [...line.cells].forEach((cell, index) => {
          cell.dataset.label = columns[index].textContent;
          cell.classList.toggle("live-number", columns[index].classList.contains("live-number"));
        });
      }
      addToggle(table, body);
    }
  }
  setInterval(showAges, 1000);
  connect();
})();
