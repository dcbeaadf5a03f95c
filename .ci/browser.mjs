// Visits the pages of a running server: node browser.mjs ORIGIN REPOSITORY_PATH FOLDER_FOR_SCREENSHOTS
import { strict as assert } from "node:assert";
import puppeteer from "puppeteer-core";

const [origin, repository, shots] = process.argv.slice(2);
const WIDTHS = [360, 1280];
const PATIENCE = 30_000;

const browser = await puppeteer.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-dev-shm-usage"],
});

/** A new tab of a width; everything that goes wrong in it is gathered. */
async function tab(width, script) {
  const page = await browser.newPage();
  const complaints = [];
  page.on("console", (message) => {
    if (["error", "warn"].includes(message.type())) complaints.push(`console: ${message.text()}`);
  });
  page.on("pageerror", (error) => complaints.push(`script: ${error.message}`));
  page.on("requestfailed", (request) => complaints.push(`request: ${request.url()}`));
  page.on("response", (response) => {
    const icon = response.url().endsWith("/favicon.ico");
    if (response.status() >= 400 && !icon) complaints.push(`${response.status()}: ${response.url()}`);
  });
  await page.setViewport({ width, height: 900, isMobile: width < 500, hasTouch: width < 500 });
  await page.setJavaScriptEnabled(script);
  return { page, complaints };
}

/** Nothing sticks out at the side, and text is not tiny. */
async function readable(page, width) {
  const found = await page.evaluate(() => ({
    wide: document.documentElement.scrollWidth,
    out: [...document.querySelectorAll("main *")]
      .filter((node) => node.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
      .map((node) => node.outerHTML.slice(0, 80)),
    small: [...document.querySelectorAll("main *")].filter((node) => parseFloat(getComputedStyle(node).fontSize) < 11)
      .length,
  }));
  assert.ok(found.wide <= width, `${found.wide} pixels wide at ${width}: ${found.out}`);
  assert.deepEqual(found.out, [], `something sticks out at ${width}`);
  assert.equal(found.small, 0, "tiny text");
}

const text = (page, key) => page.$eval(`[data-k="${key}"]`, (node) => node.textContent);

for (const width of WIDTHS) {
  const { page, complaints } = await tab(width, true);
  await page.goto(`${origin}/status`, { waitUntil: "networkidle0" });
  const before = { uptime: await text(page, "uptime"), events: await text(page, "events") };
  const node = await page.$('[data-k="uptime"]');
  const changed = (key, old) =>
    page.waitForFunction((key, old) => document.querySelector(`[data-k="${key}"]`).textContent !== old, { timeout: PATIENCE },
      key, old);
  await changed("uptime", before.uptime);
  await changed("events", before.events);
  await page.waitForFunction(() => document.getElementById("live").textContent.startsWith("Live"), { timeout: PATIENCE });
  console.log(`status at ${width}: up ${before.uptime} -> ${await text(page, "uptime")}, events ${before.events} -> ${await text(page, "events")}, in place: ${await node.evaluate((node) => node.isConnected)}`);
  await readable(page, width);
  assert.match(await text(page, "ready"), /^ready$/);
  await page.screenshot({ path: `${shots}/status-${width}.png`, fullPage: true });
  assert.deepEqual(complaints, []);
  await page.close();
}

for (const width of WIDTHS) {
  const { page, complaints } = await tab(width, false);
  for (const [path, name] of [["/status", "status"], [repository, "repository"], ["/", "landing"]]) {
    await page.goto(origin + path, { waitUntil: "load" });
    const body = await page.content();
    assert.ok(body.includes("</main>"), `${path} without script`);
    if (name === "status") assert.ok(body.includes("This service is") && /data-k="events">\d/.test(body), "values without script");
    if (name === "repository") assert.ok(body.includes("Where it is"), "replication without script");
    await page.screenshot({ path: `${shots}/${name}-${width}-no-script.png`, fullPage: true });
  }
  assert.deepEqual(complaints, []);
  await page.close();
}

for (const width of WIDTHS) {
  const { page, complaints } = await tab(width, true);
  await page.goto(origin + repository, { waitUntil: "networkidle0" });
  await readable(page, width);
  await page.screenshot({ path: `${shots}/repository-${width}.png`, fullPage: true });
  assert.deepEqual(complaints, []);
  await page.close();
}

// A server that goes away is noticed, and the page says so; that is not an error of the page.
await browser.close();
console.log("all pages are well");
