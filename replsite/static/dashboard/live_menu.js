/* The menu of a row: its page, its history, the commands that are about it, and the actions that the viewer may do (those whose
 * address the page has).
 *
 * Commands are for copying. Actions lead to a page that says what would happen and asks; nothing is done from here.
 */
"use strict";

window.liveMenu = (() => {
  const { linkTo, nameOf } = window.liveTable;
  let menu = null, opener = null;

  function make(name, className, text) {
    const element = document.createElement(name);
    if (className) element.className = className;
    if (text) element.textContent = text;
    return element;
  }

  const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\"'\"'")}'`);

  const wordOf = (line) => line.querySelector(".live-status .live-text").textContent;

  function address(root, page, name) {
    const form = root.dataset[`${page}Page`];
    return form && name ? form.replace("~", encodeURIComponent(name)) : "";
  }

  function entriesOf(root, line) {
    const body = line.parentNode, head = line === body.rows[0];
    const entries = [], add = (text, href) => href && entries.push({ text, href });
    const open = (text) => add(text, line.cells[0].querySelector(".live-text").href);
    const copy = (command) => entries.push({ text: command, command });
    if (line.closest("#live-jobs")) {
      open("Open the job");
      if (["killed", "failed", "cancelled"].includes(wordOf(line))) add("Resume it …", address(root, "resume", line.dataset.id));
      else add("Cancel it …", address(root, "cancel", line.dataset.id));
      copy(`manage.py jobs show ${line.dataset.id}`);
    } else if (line.closest("#live-readers")) {
      const stream = head ? "" : nameOf(line);
      open("Open the reader");
      add("History of the reader", address(root, "who", nameOf(body.rows[0])));
      if (stream) add(`History of ${stream}`, address(root, "history", stream));
      if (head && /^connection/.test(line.querySelector(".live-sub").textContent)) {
        add("Disconnect it …", address(root, "disconnect", body.dataset.key));
      }
      const named = body.dataset.key.startsWith("reader ") ? body.dataset.key.slice("reader ".length) : "";
      if (named && head) {
        add("Its dead letters …", address(root, "parked", named));
        add("Replay it …", address(root, "replay", named));
        add("Resync it …", address(root, "resync", named));
        add("Forget it …", address(root, "forget", named));
        copy(`manage.py parked list ${quoted(named)}`);
        copy(`manage.py streams forget ${quoted(named)}`);
      }
      copy("manage.py streams --json");
    } else {
      const stream = body.dataset.key, held = line.dataset.key.startsWith("\nheld ");
      const writer = head || held ? "" : line.dataset.key;
      open("Open the position");
      if (writer) add("History of the writer", address(root, "who", writer));
      add(`History of ${stream}`, address(root, "history", stream));
      if (held || line.dataset.id) {
        add("End what holds it back …", address(root, "end", stream));
        copy(`manage.py streams abort ${quoted(stream)}`);
      } else copy("manage.py check_streams");
    }
    entries.push({ text: "Link to this line", command: linkTo(line) });
    return entries;
  }

  async function copyText(text) {
    if (navigator.clipboard && window.isSecureContext) return navigator.clipboard.writeText(text);
    const area = document.body.appendChild(make("textarea"));
    area.value = text;
    area.select();
    document.execCommand("copy");
    area.remove();
    return undefined;
  }

  function copied(button, text) {
    const say = (said) => { button.textContent = button.liveSaid = said; };
    copyText(text).then(() => say("Copied"), () => say("Not allowed"));
    setTimeout(() => {
      say("Copy");
      delete button.liveSaid;
    }, 1500);
  }

  function close(giveFocusBack) {
    if (!menu) return;
    menu.remove();
    opener.setAttribute("aria-expanded", "false");
    if (giveFocusBack) opener.focus();
    menu = opener = null;
  }

  function open(root, button) {
    const line = button.closest("tr");
    opener = button;
    menu = make("div", "live-menu");
    menu.setAttribute("role", "group");
    menu.setAttribute("aria-label", `About ${nameOf(line)}`);
    for (const entry of entriesOf(root, line)) menu.append(entry.href ? linkOf(entry) : copyOf(entry));
    button.setAttribute("aria-expanded", "true");
    button.after(menu);
    const place = menu.getBoundingClientRect();
    if (place.bottom > window.innerHeight) menu.classList.add("live-menu-above");
    menu.querySelector("a, button").focus();
  }

  function linkOf(entry) {
    const link = make("a", "", entry.text);
    link.href = entry.href;
    return link;
  }

  function copyOf(entry) {
    const line = make("p");
    const button = make("button", "live-copy", "Copy");
    button.type = "button";
    button.dataset.command = entry.command;
    button.setAttribute("aria-label", `Copy ${entry.text}`);
    line.append(entry.text === entry.command ? make("code", "", entry.command) : make("span", "", entry.text), button);
    return line;
  }

  function step(event) {
    const entries = [...menu.querySelectorAll("a, button")], at = entries.indexOf(document.activeElement);
    const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: entries.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    entries[(next + entries.length) % entries.length].focus();
  }

  function watch(root) {
    document.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button && button.classList.contains("live-copy")) {
        copied(button, button.dataset.command || button.previousElementSibling.textContent);
        return;
      }
      const again = button && button === opener;
      if (menu && !menu.contains(event.target)) close(false);
      if (button && button.classList.contains("live-more") && !again) open(root, button);
    });
    document.addEventListener("keydown", (event) => {
      if (!menu) return;
      if (event.key === "Escape") close(true);
      else step(event);
    });
    root.addEventListener("focusout", (event) => {
      if (menu && event.relatedTarget && !menu.contains(event.relatedTarget) && event.relatedTarget !== opener) close(false);
    });
  }

  return { watch };
})();
