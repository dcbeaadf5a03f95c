// Tests the pages of a running server: node browser.mjs ORIGIN REPOSITORY_PATH SCREENSHOT_FOLDER
import { strict as assert } from "node:assert";
import puppeteer from "puppeteer-core";

const [origin, repository, shots] = process.argv.slice(2);
const WIDTHS = [360, 1280];
const TIMEOUT_MS = 30_000;

const browser = await puppeteer.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-dev-shm-usage"],
});

/** Opens a tab of this width and collects all errors of its page. */
async function openTab(width, withScripts) {
  const page = await browser.newPage();
  const errors = [];
  page.on("console", (message) => {
    if (["error", "warn"].includes(message.type())) errors.push(`console: ${message.text()}`);
  });
  page.on("pageerror", (error) => errors.push(`script: ${error.message}`));
  page.on("requestfailed", (request) => errors.push(`request: ${request.url()}`));
  page.on("response", (response) => {
    const icon = response.url().endsWith("/favicon.ico");
    if (response.status() >= 400 && !icon) errors.push(`${response.status()}: ${response.url()}`);
  });
  await page.setViewport({ width, height: 900, isMobile: width < 500, hasTouch: width < 500 });
  await page.setJavaScriptEnabled(withScripts);
  return { page, errors };
}

/** Asserts that no element is wider than the page and that no text is tiny. */
async function assertReadable(page, width) {
  const found = await page.evaluate(() => ({
    wide: document.documentElement.scrollWidth,
    out: [...document.querySelectorAll("main *")]
      .filter((node) => node.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
      .map((node) => node.outerHTML.slice(0, 80)),
    small: [...document.querySelectorAll("main *")].filter((node) => parseFloat(getComputedStyle(node).fontSize) < 11)
      .length,
  }));
  assert.ok(found.wide <= width, `${found.wide} pixels wide at ${width}: ${found.out}`);
  assert.deepEqual(found.out, [], `elements wider than ${width} pixels`);
  assert.equal(found.small, 0, "text smaller than 11 pixels");
}

const text = (page, key) => page.$eval(`[data-k="${key}"]`, (node) => node.textContent);

for (const width of WIDTHS) {
  const { page, errors } = await openTab(width, true);
  await page.goto(`${origin}/status`, { waitUntil: "networkidle0" });
  const before = { uptime: await text(page, "uptime"), events: await text(page, "events") };
  const node = await page.$('[data-k="uptime"]');
  const changed = (key, old) =>
    page.waitForFunction((key, old) => document.querySelector(`[data-k="${key}"]`).textContent !== old, { timeout: TIMEOUT_MS },
      key, old);
  await changed("uptime", before.uptime);
  await changed("events", before.events);
  await page.waitForFunction(() => document.getElementById("live").textContent.startsWith("Live"), { timeout: TIMEOUT_MS });
  console.log(`status at ${width}: up ${before.uptime} -> ${await text(page, "uptime")}, events ${before.events} -> ${await text(page, "events")}, in place: ${await node.evaluate((node) => node.isConnected)}`);
  await assertReadable(page, width);
  assert.match(await text(page, "ready"), /^ready$/);
  await page.screenshot({ path: `${shots}/status-${width}.png`, fullPage: true });
  assert.deepEqual(errors, []);
  await page.close();
}

// A server that does not respond is not shown as ready, and is again when it responds.
{
  const { page } = await openTab(WIDTHS[1], true);
  await page.goto(`${origin}/status`, { waitUntil: "networkidle0" });
  const isShown = (text, rating) =>
    page.waitForFunction((text, rating) => {
      const state = document.querySelector('[data-k="ready"]');
      return state.textContent === text && state.parentElement.className === rating;
    }, { timeout: TIMEOUT_MS }, text, rating);
  await isShown("ready", "good");
  await page.setOfflineMode(true);
  await isShown("not responding", "bad");
  await page.screenshot({ path: `${shots}/status-not-responding.png`, fullPage: true });
  await page.setOfflineMode(false);
  await isShown("ready", "good");
  await page.close();
}

for (const width of WIDTHS) {
  const { page, errors } = await openTab(width, false);
  for (const [path, name] of [["/status", "status"], [repository, "repository"], ["/", "landing"]]) {
    await page.goto(origin + path, { waitUntil: "load" });
    const body = await page.content();
    assert.ok(body.includes("</main>"), `${path} without script`);
    if (name === "status") assert.ok(body.includes("This service is") && /data-k="events">\d/.test(body), "values without script");
    if (name === "repository") assert.ok(body.includes("<h2>Replication</h2>"), "replication without script");
    await page.screenshot({ path: `${shots}/${name}-${width}-no-script.png`, fullPage: true });
  }
  assert.deepEqual(errors, []);
  await page.close();
}

for (const width of WIDTHS) {
  const { page, errors } = await openTab(width, true);
  await page.goto(origin + repository, { waitUntil: "networkidle0" });
  await assertReadable(page, width);
  await page.screenshot({ path: `${shots}/repository-${width}.png`, fullPage: true });
  assert.deepEqual(errors, []);
  await page.close();
}

await browser.close();
console.log("all pages passed");
