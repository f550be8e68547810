/* Shows what comes of a retry of dead letters: asks for the page again until the retry is over, then shows what is left.
   Chooses all of the page at once. */
"use strict";

(() => {
  const PAUSE_MS = 2000;

  async function look() {
    const shown = document.getElementById("parked-retries");
    if (!shown || !("retrying" in shown.dataset)) return;
    try {
      const answer = await fetch(location.href, { credentials: "same-origin", cache: "no-store" });
      const page = new DOMParser().parseFromString(answer.ok ? await answer.text() : "", "text/html");
      const retries = page.getElementById("parked-retries");
      if (retries) {
        if (retries.textContent !== shown.textContent) shown.replaceChildren(...retries.childNodes);
        if (!("retrying" in retries.dataset)) {
          delete shown.dataset.retrying;
          document.getElementById("parked-facts").replaceChildren(...page.getElementById("parked-facts").childNodes);
          showBox();
        }
      }
    } catch { /* the server is away for a moment */ }
    setTimeout(look, PAUSE_MS);
  }

  // Found anew each time: a retry that is over replaces the list, and with it the box.
  function showBox() {
    const box = document.getElementById("parked-all");
    if (box && document.querySelector("#parked-facts [name=fact]")) box.parentElement.hidden = false;
  }

  document.addEventListener("change", ({ target }) => {
    const boxes = [...document.querySelectorAll("#parked-facts [name=fact]")], all = document.getElementById("parked-all");
    if (target === all) for (const box of boxes) box.checked = all.checked;
    else if (target.name === "fact") all.checked = boxes.every((box) => box.checked);
  });
  showBox();
  look();
})();
