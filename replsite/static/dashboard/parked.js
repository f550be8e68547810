/* Shows what comes of a retry of dead letters: asks for the page again until the retry is over, then shows what is left. */
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
        }
      }
    } catch { /* the server is away for a moment */ }
    setTimeout(look, PAUSE_MS);
  }

  look();
})();
