// Keeps the status page up to date: values in place, and the page anew when there is more or less to show.
"use strict";
(() => {
  const EVERY = 3000;
  const HIDDEN = 15000;
  const main = document.querySelector("main");
  const say = (text) => {
    const note = document.getElementById("live");
    if (note && note.textContent !== text) note.textContent = text;
  };
  const redraw = async () => {
    const answer = await fetch("status", { cache: "no-store" });
    if (!answer.ok) throw new Error(String(answer.status));
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
    main.replaceChildren(...fresh.childNodes);
    main.dataset.shape = fresh.dataset.shape;
  };
  const look = async () => {
    const answer = await fetch("status.json", { cache: "no-store" });
    if (!answer.ok) throw new Error(String(answer.status));
    const status = await answer.json();
    if (status.shape !== main.dataset.shape) return redraw();
    for (const node of main.querySelectorAll("[data-k]")) {
      const text = status.shown[node.dataset.k];
      if (text !== undefined && node.textContent !== text) node.textContent = text;
    }
  };
  const tick = async () => {
    try {
      await look();
      say("Live: renewed every few seconds.");
    } catch {
      say("The server does not answer; these values are old.");
    }
    setTimeout(tick, document.hidden ? HIDDEN : EVERY);
  };
  setTimeout(tick, EVERY);
})();
