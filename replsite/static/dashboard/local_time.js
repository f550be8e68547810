/* Shows the viewer's own time beside a time of the page, which is in UTC, while the mouse is over it. */
"use strict";

(() => {
  const WRITTEN = /^(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d(?::\d\d)?)(?: UTC)?$/;
  const local = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });

  /* The moment that an element shows: by its attribute, or by its text, if that is nothing but a time. */
  function momentOf(element) {
    const given = element.dataset.at || element.dataset.since || element.dateTime;
    if (given) return Date.parse(given);
    if (element.firstElementChild) return NaN;
    const found = WRITTEN.exec(element.textContent.trim());
    return found ? Date.parse(`${found[1]}T${found[2]}Z`) : NaN;
  }

  document.addEventListener("mouseover", (event) => {
    const element = event.target;
    if (!(element instanceof HTMLElement) || element.textContent.length > 60) return;
    const moment = momentOf(element);
    if (Number.isNaN(moment)) return;
    const utc = new Date(moment).toISOString().slice(0, 19).replace("T", " ");
    element.title = `${utc} UTC\n${local.format(moment)}`;
  });
})();
