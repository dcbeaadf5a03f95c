// Updates the status page: replaces values in place, and reloads the page when its structure has changed.
"use strict";
(() => {
  const INTERVAL_MS = 3000;
  const HIDDEN_INTERVAL_MS = 15000;
  const TIMEOUT_MS = 10000;
  const main = document.querySelector("main");
  const setNote = (text) => {
    const note = document.getElementById("live");
    if (note && note.textContent !== text) note.textContent = text;
  };
  let isOutdated = false;
  const get = async (url) => {
    const response = await fetch(url, { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
    if (!response.ok) throw new Error(String(response.status));
    return response;
  };
  const reload = async () => {
    const response = await get("status");
    const loaded = new DOMParser().parseFromString(await response.text(), "text/html").querySelector("main");
    main.replaceChildren(...loaded.childNodes);
    main.dataset.shape = loaded.dataset.shape;
    main.classList.remove("outdated");
    isOutdated = false;
  };
  const update = async () => {
    const status = await (await get("status.json")).json();
    if (isOutdated || status.shape !== main.dataset.shape) return reload();
    for (const node of main.querySelectorAll("[data-k]")) {
      const text = status.shown[node.dataset.k];
      if (text !== undefined && node.textContent !== text) node.textContent = text;
    }
  };
  const showOutdated = () => {
    isOutdated = true;
    main.classList.add("outdated");
    const state = main.querySelector('[data-k="ready"]');
    if (state) {
      state.textContent = "not responding";
      state.parentElement.className = "bad";
    }
    setNote("The server does not respond; these values are outdated.");
  };
  const tick = async () => {
    try {
      await update();
      setNote("Live: updated every few seconds.");
    } catch {
      showOutdated();
    }
    setTimeout(tick, document.hidden ? HIDDEN_INTERVAL_MS : INTERVAL_MS);
  };
  setTimeout(tick, INTERVAL_MS);
})();
