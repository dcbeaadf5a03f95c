// Updates the status page: replaces values in place, and reloads the page when its structure has changed.
"use strict";
(() => {
  const INTERVAL_MS = 3000;
  const HIDDEN_INTERVAL_MS = 15000;
  const main = document.querySelector("main");
  const setNote = (text) => {
    const note = document.getElementById("live");
    if (note && note.textContent !== text) note.textContent = text;
  };
  const reload = async () => {
    const response = await fetch("status", { cache: "no-store" });
    if (!response.ok) throw new Error(String(response.status));
    const loaded = new DOMParser().parseFromString(await response.text(), "text/html").querySelector("main");
    main.replaceChildren(...loaded.childNodes);
    main.dataset.shape = loaded.dataset.shape;
  };
  const update = async () => {
    const response = await fetch("status.json", { cache: "no-store" });
    if (!response.ok) throw new Error(String(response.status));
    const status = await response.json();
    if (status.shape !== main.dataset.shape) return reload();
    for (const node of main.querySelectorAll("[data-k]")) {
      const text = status.shown[node.dataset.k];
      if (text !== undefined && node.textContent !== text) node.textContent = text;
    }
  };
  const tick = async () => {
    try {
      await update();
      setNote("Live: updated every few seconds.");
    } catch {
      setNote("The server does not respond; these values are outdated.");
    }
    setTimeout(tick, document.hidden ? HIDDEN_INTERVAL_MS : INTERVAL_MS);
  };
  setTimeout(tick, INTERVAL_MS);
})();
