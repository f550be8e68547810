/* Finds rooms for the fields of a form that take room IDs: what is typed is searched, and a room that is chosen is entered by its ID.
 *
 * A field of one room offers what was found below itself. A field of several lines gets a field above it, whose room becomes a line.
 */
"use strict";

(() => {
  const address = document.querySelector("[data-rooms-page]")?.dataset.roomsPage;
  const WAIT_MS = 200;
  if (!address) return;

  /* Offers the rooms that are found for what is typed into the field. */
  function offer(field) {
    const list = document.createElement("datalist");
    let timer = 0, asked = "";
    list.id = `${field.id}_rooms`;
    field.setAttribute("list", list.id);
    field.after(list);
    field.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(async () => {
        const text = field.value.trim();
        if (!text || text === asked || [...list.options].some((option) => option.value === text)) return;
        asked = text;
        try {
          const answer = await fetch(`${address}?q=${encodeURIComponent(text)}`, { credentials: "same-origin" });
          if (!answer.ok || asked !== text) return;
          list.replaceChildren(...(await answer.json()).rooms.map((room) => {
            const option = document.createElement("option");
            option.value = room.id;
            option.label = `${room.text} (${room.id})`;
            return option;
          }));
        } catch { /* without the server an ID is typed whole */ }
      }, WAIT_MS);
    });
    return list;
  }

  function addLines(area) {
    const label = document.createElement("label"), search = document.createElement("input");
    search.type = "search";
    search.id = `${area.id}_search`;
    search.autocomplete = "off";
    label.htmlFor = search.id;
    label.textContent = "Find a room";
    area.before(label, search);
    const list = offer(search);
    search.addEventListener("input", () => {
      if (![...list.options].some((option) => option.value === search.value)) return;
      const lines = area.value.split("\n").filter((line) => line.trim());
      if (!lines.includes(search.value)) area.value = [...lines, search.value].join("\n");
      search.value = "";
    });
    search.addEventListener("keydown", (event) => {
      if (event.key === "Enter") event.preventDefault(); // it chooses a room and does not send the form
    });
  }

  for (const field of document.querySelectorAll("[data-rooms]")) {
    if (field.tagName === "TEXTAREA") addLines(field);
    else offer(field);
  }
})();
