/* The tables of the live page: rows come from the server as HTML and are morphed in place, so that the focus and the selection stay.
 *
 * Groups (a stream with its writers, a reader with its streams) fold; columns sort; a filter hides groups. What the viewer has
 * folded, sorted and chosen is in the address of the page, so that a link shows the same to others.
 */
"use strict";

window.liveTable = (() => {
  const UNITS = { B: 1, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12, s: 1, min: 60, h: 3600, d: 86400 };
  const MANY_ROWS = 40;
  const FILTERED = ["live-streams", "live-readers", "live-jobs"];
  const look = { text: "", only: false };
  /* What the viewer has done, as in the address: groups by their path that are folded (true) or not, all groups, orders of tables, a row. */
  const asked = new URLSearchParams(location.search);
  const folds = new Map([...asked.getAll("open").map((path) => [path, false]), ...asked.getAll("closed").map((path) => [path, true])]);
  const sorts = new Map(asked.getAll("sort").map((text) => text.split(":")).map(([name, index, way]) => [name, { index: Number(index), falls: way === "down" }]));
  const state = { all: { all: true, none: false }[asked.get("fold")], row: asked.get("row") || "" };
  let remember = () => {};
  const keyed = (elements) => new Map([...elements].map((element) => [element.dataset.key, element]));
  const nameOf = (line) => line.cells[0].querySelector(".live-text").textContent;

  /* What is the browser's own: whether a button has opened something, an open menu, the answer of a button that copied. */
  const callbacks = {
    beforeAttributeUpdated: (name) => name !== "aria-expanded" && name !== "aria-current",
    beforeNodeRemoved: (node) => !(node.classList && node.classList.contains("live-menu")),
    beforeNodeMorphed: (old, fresh) => {
      if (old.liveSaid) fresh.textContent = old.liveSaid;
    },
  };

  function parse(html) {
    const template = document.createElement("template");
    template.innerHTML = html;
    return template.content.firstElementChild;
  }

  function morph(element, html) {
    Idiomorph.morph(element, parse(html), { callbacks });
    return element;
  }

  /* --- rows and groups ----------------------------------------------------------------------------------------------- */

  /* All groups in their order, each with its rows. */
  function update(table, groups) {
    const bodies = keyed(table.tBodies);
    table.liveOrder = groups.map(([key, rows]) => {
      const body = bodies.get(key) || document.createElement("tbody");
      body.dataset.key = key;
      updateRows(body, rows);
      meet(table, body);
      return body;
    });
    place(table);
    mark(table);
  }

  /* A row is morphed only if it differs from the last one that came: most rows say the same for long. */
  function updateRows(body, rows) {
    const lines = keyed(body.rows);
    arrange(body, rows.map(([key, html]) => {
      const line = lines.get(key) || parse(html);
      if (lines.has(key) && line.liveHtml !== html) morph(line, html);
      line.liveHtml = html;
      return line;
    }), null);
  }

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

  function place(table) {
    const bodies = table.liveSort ? sorted(table.liveOrder, table.liveSort) : table.liveOrder;
    arrange(table, bodies, table.tHead);
    table.closest("section").querySelector(".live-nothing").hidden = bodies.length > 0;
  }

  /* Where there are many lines, or a line says it all, groups begin folded, but for those that need a look. */
  function meet(table, body) {
    if ((look.text || look.only) && FILTERED.includes(table.id)) hide(body);
    if (body.liveIsMet || !body.querySelector(".live-toggle")) return;
    body.liveIsMet = true;
    const usual = !needsALook(body) && (table.id !== "live-streams" || table.liveIsLong);
    fold(body, folds.get(pathOf(table, body)) ?? state.all ?? usual);
  }

  function fold(body, closed) {
    const button = body.querySelector(".live-toggle");
    if (!button) return;
    body.classList.toggle("live-closed", closed);
    button.setAttribute("aria-expanded", String(!closed));
  }

  function foldAll(root, closed) {
    folds.clear();
    state.all = closed;
    remember();
    for (const body of root.querySelectorAll(".live-table > tbody")) fold(body, closed);
  }

  /* --- what is shown ------------------------------------------------------------------------------------------------- */

  const needsALook = (body) => ["warning", "wrong"].includes(body.rows[0].dataset.severity);

  function hide(body) {
    const misses = look.text && ![...body.rows].some((line) => nameOf(line).toLowerCase().includes(look.text));
    body.hidden = Boolean(misses || (look.only && !needsALook(body)));
  }

  function filter(root, text, only) {
    look.text = text.trim().toLowerCase();
    look.only = only;
    for (const id of FILTERED) for (const body of root.querySelectorAll(`#${id} > tbody`)) hide(body);
  }

  /* --- order --------------------------------------------------------------------------------------------------------- */

  function valueOf(body, index) {
    const cell = body.rows[0].cells[index], text = cell && cell.querySelector(".live-text");
    if (!text || text.textContent === "-" || !text.textContent) return null;
    if (text.dataset.at) return -Date.parse(text.dataset.at);
    const numbers = [...text.textContent.matchAll(/([+-]?[\d,.]*\d)\s*([a-zA-Z]*)/g)];
    if (!numbers.length || index < 2) return text.textContent.toLowerCase();
    return numbers.reduce((sum, [, digits, unit]) => sum + Number(digits.replaceAll(",", "")) * (UNITS[unit] || 1), 0);
  }

  function sorted(bodies, { index, falls }) {
    const values = new Map(bodies.map((body) => [body, valueOf(body, index)]));
    return [...bodies].sort((one, other) => {
      const a = values.get(one), b = values.get(other);
      if (a === null || b === null) return (a === null) - (b === null);
      const order = typeof a === "string" || typeof b === "string" ? String(a).localeCompare(String(b)) : a - b;
      return falls ? -order : order;
    });
  }

  /* Numbers sort with the highest first, names from A; then the other way round; then as the server says, worst first. */
  function sortBy(table, column) {
    const index = column.cellIndex, now = table.liveSort, first = column.classList.contains("live-number");
    if (!now || now.index !== index) table.liveSort = { index, falls: first };
    else table.liveSort = now.falls === first ? { index, falls: !first } : null;
    for (const head of column.parentNode.cells) {
      if (table.liveSort && head === column) head.setAttribute("aria-sort", table.liveSort.falls ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
    if (table.liveSort) sorts.set(nameOfTable(table), table.liveSort);
    else sorts.delete(nameOfTable(table));
    remember();
    place(table);
  }

  /* --- the address ---------------------------------------------------------------------------------------------------- */

  const nameOfTable = (table) => table.id.slice("live-".length);
  const pathOf = (table, body, line) => [nameOfTable(table), body.dataset.key, ...(line && line.dataset.key ? [line.dataset.key] : [])].map(encodeURIComponent).join("/");
  const pathOfLine = (line) => pathOf(line.closest("table"), line.parentNode, line);

  /* Marks the chosen row, which may have come anew. Returns it, if it is in the table. */
  function mark(table) {
    let found = null;
    for (const line of state.row ? table.querySelectorAll("tbody > tr") : []) if (pathOfLine(line) === state.row) found = line;
    for (const line of table.querySelectorAll("[aria-current]")) if (line !== found) line.removeAttribute("aria-current");
    if (found) found.setAttribute("aria-current", "true");
    return found;
  }

  function choose(line) {
    const path = pathOfLine(line);
    state.row = path === state.row ? "" : path;
    document.querySelectorAll(".live-table").forEach(mark);
    remember();
  }

  /* The parts of the address that are about the tables. */
  function parameters(row = state.row) {
    const found = new URLSearchParams();
    if (look.text) found.set("show", look.text);
    if (look.only) found.set("only", "1");
    if (state.all !== undefined) found.set("fold", state.all ? "all" : "none");
    for (const [path, closed] of folds) found.append(closed ? "closed" : "open", path);
    for (const [name, { index, falls }] of sorts) found.append("sort", `${name}:${index}:${falls ? "down" : "up"}`);
    if (row) found.set("row", row);
    return found;
  }

  const linkTo = (line) => `${location.origin}${location.pathname}?${parameters(pathOfLine(line))}`;

  /* Calls the function whenever what the address has to say has changed. */
  function onChange(function_) {
    remember = function_;
  }

  function showSort(table) {
    const now = sorts.get(nameOfTable(table)), column = now && table.tHead.rows[0].cells[now.index];
    if (!column || !column.querySelector(".live-sort")) return;
    table.liveSort = now;
    column.setAttribute("aria-sort", now.falls ? "descending" : "ascending");
    place(table);
  }

  /* Take over a table as the server rendered it. */
  function adopt(table) {
    table.liveOrder = [...table.tBodies];
    table.liveIsLong = table.rows.length > MANY_ROWS;
    for (const body of table.tBodies) meet(table, body);
    showSort(table);
    const chosen = mark(table);
    if (chosen) {
      fold(chosen.parentNode, false);
      chosen.scrollIntoView({ block: "center" });
    }
    table.addEventListener("click", (event) => {
      const button = event.target.closest("button"), body = event.target.closest("tbody");
      if (button && button.matches(".live-sort")) sortBy(table, button.parentNode);
      if (button && button.matches(".live-toggle")) {
        fold(body, !body.classList.contains("live-closed"));
        folds.set(pathOf(table, body), body.classList.contains("live-closed"));
        remember();
      }
      const line = event.target.closest("tbody > tr");
      if (line && !event.target.closest("a, button, .live-menu") && getSelection().isCollapsed) choose(line);
    });
  }

  return { adopt, asked, filter, foldAll, linkTo, morph, nameOf, onChange, parameters, update };
})();
