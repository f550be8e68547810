/* The tables of the live page: rows are changed in place, always as text, and only what differs is written.
 *
 * A row is a name, a status word, figures and a sentence; the sentence stands below the word, or below the name in tables without
 * words. Groups (a stream with its writers, a reader with its streams) fold; columns sort; a filter hides groups.
 */
"use strict";

window.liveTable = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const UNITS = { B: 1, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12, s: 1, min: 60, h: 3600, d: 86400 };
  const WORDS_THAT_SAY_ALL = ["writing", "idle", "current", "retired"];
  const MANY_ROWS = 40, WIDTH = 60, HEIGHT = 16;
  const look = { text: "", only: false };

  function setText(element, text) {
    if (element.textContent !== text) element.textContent = text;
  }

  function make(name, className, text) {
    const element = document.createElement(name);
    if (className) element.className = className;
    if (text) element.textContent = text;
    return element;
  }

  const isPlain = (table) => table.classList.contains("live-plain");
  const keyed = (elements) => new Map([...elements].map((element) => [element.dataset.key, element]));

  /* --- cells --------------------------------------------------------------------------------------------------------- */

  function spans(element) {
    if (!element.liveText) {
      element.liveText = element.querySelector(".live-text") || element.appendChild(make("span", "live-text"));
      element.liveSub = element.querySelector(".live-sub") || element.appendChild(make("span", "live-sub"));
    }
    return element;
  }

  function fillCell(element, cell) {
    const { liveText: text, liveSub: sub } = spans(element);
    if (cell.at) text.dataset.at = cell.at;
    else {
      if (text.dataset.at) {
        delete text.dataset.at;
        text.removeAttribute("title");
      }
      setText(text, cell.text);
    }
    text.toggleAttribute("data-nothing", !cell.at && cell.text === "-");
    if (cell.since) {
      sub.dataset.since = cell.since;
      sub.dataset.before = cell.sub || "";
    } else {
      delete sub.dataset.since;
      setText(sub, cell.sub || "");
    }
    drawSeries(element, cell.series);
    drawShare(element, cell.share);
  }

  /* Five minutes as a line; beside a figure that says the same in words, so it is hidden from who listens. */
  function drawSeries(element, series) {
    let picture = element.querySelector("svg");
    if (!series) return picture && picture.remove();
    if (!picture) {
      picture = document.createElementNS(SVG, "svg");
      picture.setAttribute("class", "live-series");
      picture.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
      picture.setAttribute("aria-hidden", "true");
      picture.append(document.createElementNS(SVG, "path"), document.createElementNS(SVG, "path"));
      element.append(picture);
    }
    const highest = Math.max(...series.map((value) => value || 0), 1e-9);
    const x = (index) => ((index + 0.5) * WIDTH) / series.length, y = (value) => HEIGHT - 1.5 - (value / highest) * (HEIGHT - 3);
    let line = "", area = "", last = -2;
    series.forEach((value, index) => {
      if (value === null) return;
      const point = `${x(index).toFixed(1)} ${y(value).toFixed(1)}`;
      if (last !== index - 1) {
        if (last >= 0) area += `V${HEIGHT}Z`;
        area += `M${x(index).toFixed(1)} ${HEIGHT}L${point}`;
        line += `M${point}h.1`;
      } else {
        line += `L${point}`;
        area += `L${point}`;
      }
      last = index;
    });
    if (area) area += `V${HEIGHT}Z`;
    const [below, above] = picture.children;
    if (above.getAttribute("d") === line) return undefined;
    below.setAttribute("d", area);
    above.setAttribute("d", line);
    return undefined;
  }

  function drawShare(element, share) {
    let bar = element.querySelector(".live-share");
    if (share === undefined) return bar && bar.remove();
    if (!bar) {
      bar = make("span", "live-share");
      bar.append(make("span"));
      element.append(bar);
    }
    bar.firstChild.style.width = `${Math.round(share * 100)}%`;
    return undefined;
  }

  /* A sentence with the command that can be copied out of it. Its parts stay the same elements, so that the focus stays. */
  function fillSentence(host, sentence, command, className) {
    let why = host.querySelector(`:scope > .${className}`);
    if (!why) {
      if (!sentence) return;
      why = make("span", className);
      host.append(why);
    }
    if (!why.liveParts) {
      why.liveParts = [make("span"), make("code"), make("button", "live-copy", "Copy"), make("span")];
      why.liveParts[2].type = "button";
      why.replaceChildren(...why.liveParts);
    }
    const [before, code, copy, after] = why.liveParts;
    const at = command ? sentence.indexOf(command) : -1;
    setText(before, at < 0 ? sentence : sentence.slice(0, at));
    setText(code, at < 0 ? "" : command);
    setText(after, at < 0 ? "" : sentence.slice(at + command.length));
    code.hidden = copy.hidden = at < 0;
    if (at >= 0) copy.setAttribute("aria-label", `Copy ${command}`);
  }

  /* --- rows ---------------------------------------------------------------------------------------------------------- */

  function linkName(element, address) {
    const { liveText: text } = spans(element);
    if (!address || text.tagName === "A") return;
    const link = make("a", "live-text", text.textContent);
    link.href = address;
    text.replaceWith(link);
    element.liveText = link;
  }

  /* A row as it is now: whole, or the one that is shown with some cells changed. */
  function fillRow(table, line, change, address) {
    if (!change.some) return fillCells(table, line, (line.liveRow = change), address, () => true);
    const { some, ...rest } = change;
    const row = (line.liveRow = { ...line.liveRow, ...rest, cells: line.liveRow.cells.map((cell, index) => some[index] || cell) });
    return fillCells(table, line, row, address, (index) => index in some);
  }

  function fillCells(table, line, row, address, differs) {
    const plain = isPlain(table), columns = table.liveColumns;
    const cells = plain ? [row.cells[0], ...row.cells.slice(2, -1)] : row.cells.slice(0, -1);
    line.dataset.severity = row.severity;
    line.toggleAttribute("data-quiet", !plain && row.severity === "fine" && ["idle", "retired", "gone", "done", ""].includes(row.cells[1].text));
    if (row.id) line.dataset.id = row.id;
    cells.forEach((cell, index) => {
      let element = line.cells[index];
      if (element && !differs(plain && index ? index + 1 : index)) return;
      if (!element) {
        element = line.appendChild(document.createElement(index ? "td" : "th"));
        if (!index) element.scope = "row";
      }
      fillCell(element, cell);
    });
    dress(table, line, columns);
    linkName(line.cells[0], address(row));
    const saysAll = row.severity === "fine" && WORDS_THAT_SAY_ALL.includes(row.cells[1].text);
    const why = saysAll && !plain ? "" : row.cells[row.cells.length - 1].text;
    fillSentence(line.cells[plain ? 0 : 1], why, row.command, "live-why");
    addMore(table, line);
  }

  /* What the looks need: the titles of columns on a phone, numbers to the right, the status word. */
  function dress(table, line, columns) {
    for (let index = 0; index < columns.length && index < line.cells.length; index += 1) {
      const element = line.cells[index];
      if (element.dataset.label) continue;
      element.dataset.label = columns[index].title;
      if (columns[index].number) element.classList.add("live-number");
      if (index === 1 && !isPlain(table)) element.classList.add("live-status");
    }
  }

  /* The button of a row's menu, made by live_menu.js when it is wanted. */
  function addMore(table, line) {
    if (!table.liveMenu || line.cells.length > table.liveColumns.length || line.parentNode.dataset.key.startsWith("\n")) return;
    const button = make("button", "live-more", "⋯");
    button.type = "button";
    button.setAttribute("aria-haspopup", "true");
    const name = line.cells[0].liveText ? line.cells[0].liveText.textContent : "";
    button.setAttribute("aria-label", `More about ${name}`);
    const cell = make("td", "live-more-cell");
    cell.append(button);
    line.append(cell);
  }

  function newLine(key, head) {
    const line = document.createElement("tr");
    line.dataset.key = key;
    if (head) line.className = "live-head";
    return line;
  }

  /* --- groups -------------------------------------------------------------------------------------------------------- */

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

  function change(table, message, address) {
    const groups = keyed(table.tBodies);
    for (const [key, group] of Object.entries(message.groups || {})) {
      let body = groups.get(key);
      if (!body) {
        body = document.createElement("tbody");
        body.dataset.key = key;
        body.append(newLine("", true));
        groups.set(key, body);
        table.append(body);
      }
      changeGroup(table, body, group, address);
      addToggle(table, body);
      if (look.text || look.only) hide(body);
    }
    if (message.order) table.liveOrder = message.order;
    if (message.order || table.liveSort) place(table, groups);
  }

  function changeGroup(table, body, group, address) {
    if (group.head) fillRow(table, body.rows[0], group.head, address);
    const lines = keyed([...body.rows].slice(1));
    for (const [key, row] of Object.entries(group.rows || {})) {
      if (!lines.has(key)) {
        lines.set(key, newLine(key, false));
        body.append(lines.get(key));
      }
      fillRow(table, lines.get(key), row, address);
    }
    if (group.order) arrange(body, group.order.map((key) => lines.get(key)).filter(Boolean), body.rows[0]);
  }

  function place(table, groups) {
    let wanted = (table.liveOrder || [...groups.keys()]).map((key) => groups.get(key)).filter(Boolean);
    if (table.liveSort) wanted = sorted(wanted, table.liveSort);
    arrange(table, wanted, table.tHead);
    table.closest("section").querySelector(".live-nothing").hidden = wanted.length > 0;
  }

  /* A group can be folded by the button before its name. Where there are many lines, or a line says it all, they begin folded,
     but for those that need a look. */
  function addToggle(table, body) {
    const line = body.rows[0], name = line.cells[0];
    if (body.rows.length < 2 || name.querySelector(".live-toggle")) return;
    const button = make("button", "live-toggle");
    button.type = "button";
    button.setAttribute("aria-label", `Lines of ${spans(name).liveText.textContent}`);
    name.prepend(button);
    button.addEventListener("click", () => fold(body, !body.classList.contains("live-closed")));
    const trouble = ["warning", "wrong"].includes(line.dataset.severity);
    fold(body, !trouble && (table.id !== "live-streams" || table.liveIsLong));
  }

  function fold(body, closed) {
    const button = body.querySelector(".live-toggle");
    if (!button) return;
    body.classList.toggle("live-closed", closed);
    button.setAttribute("aria-expanded", String(!closed));
  }

  function foldAll(root, closed) {
    for (const body of root.querySelectorAll(".live-table > tbody")) fold(body, closed);
  }

  /* --- what is shown ------------------------------------------------------------------------------------------------- */

  function hide(body) {
    const names = look.text ? [...body.rows].map((line) => spans(line.cells[0]).liveText.textContent.toLowerCase()) : [];
    const misses = look.text && !names.some((name) => name.includes(look.text));
    const fine = look.only && !["warning", "wrong"].includes(body.rows[0].dataset.severity);
    body.hidden = Boolean(misses || fine);
  }

  function filter(root, text, only) {
    look.text = text.trim().toLowerCase();
    look.only = only;
    for (const body of root.querySelectorAll("#live-streams > tbody, #live-readers > tbody, #live-jobs > tbody")) hide(body);
  }

  /* --- order --------------------------------------------------------------------------------------------------------- */

  function valueOf(body, index) {
    const cell = body.rows[0].cells[index], text = cell && spans(cell).liveText;
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
  function sortBy(table, index) {
    const now = table.liveSort, first = table.liveColumns[index].number;
    if (!now || now.index !== index) table.liveSort = { index, falls: first };
    else table.liveSort = now.falls === first ? { index, falls: !first } : null;
    [...table.tHead.rows[0].cells].forEach((head, at) => {
      if (table.liveSort && at === index) head.setAttribute("aria-sort", table.liveSort.falls ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    place(table, keyed(table.tBodies));
  }

  /* Take over a table as the server rendered it. */
  function adopt(table) {
    const heads = [...table.tHead.rows[0].cells];
    table.liveColumns = heads.map((head) => ({ title: head.textContent, number: head.classList.contains("live-number") }));
    table.liveMenu = ["live-streams", "live-readers", "live-jobs"].includes(table.id);
    table.liveIsLong = table.rows.length > MANY_ROWS;
    heads.forEach((head, index) => {
      const button = make("button", "live-sort", head.textContent);
      button.type = "button";
      button.addEventListener("click", () => sortBy(table, index));
      head.replaceChildren(button);
    });
    if (table.liveMenu) {
      const head = table.tHead.rows[0].appendChild(make("th", "live-more-cell"));
      head.scope = "col";
      head.append(make("span", "live-hidden", "More"));
    }
    for (const body of table.tBodies) {
      for (const line of body.rows) {
        for (const cell of line.cells) spans(cell);
        dress(table, line, table.liveColumns);
        addMore(table, line);
      }
      addToggle(table, body);
    }
  }

  return { adopt, change, fillCell, fillSentence, filter, foldAll, make, setText };
})();
