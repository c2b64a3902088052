/**
 * What the browser tests stand on: a browser, a fresh mock author per test, and checks that every test makes:
 * no error in the page, nothing blocked by the Content-Security-Policy.
 *
 * `CHROMIUM` names the browser. `UI_SHOTS` names a directory for screenshots; without it none are taken. With
 * `UI_DELAY_MS` each answer takes up to that many milliseconds more: tests that look too early fail.
 */
import assert from "node:assert/strict";
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { isDeepStrictEqual } from "node:util";
import AxeBuilder from "@axe-core/playwright";
import { chromium } from "playwright-core";
import { startMock } from "./mock/server.mjs";

const LIMIT_MS = 15_000;
const LEAST_TEXT_PX = 14;
const FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  "--no-first-run",
];

/** Runs the tests one after the other and exits with 1 if one of them failed. */
export async function run(tests) {
  const wanted = process.argv[2];
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: FLAGS });
  let failed = 0;
  let passed = 0;
  for (const [name, test] of Object.entries(tests)) {
    if (wanted && !name.includes(wanted)) continue;
    try {
      await runOne(browser, test);
      passed += 1;
      console.log(`ok      ${name}`);
    } catch (error) {
      failed += 1;
      console.log(`FAILED  ${name}\n${error.stack}`);
    }
  }
  await browser.close();
  console.log(`${passed} passed, ${failed} failed`);
  process.exit(failed === 0 ? 0 : 1);
}

async function runOne(browser, test) {
  const mock = await startMock();
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, locale: "en-US", reducedMotion: "reduce" });
  const page = await context.newPage();
  page.setDefaultTimeout(LIMIT_MS);
  const faults = [];
  page.on("pageerror", (error) => faults.push(`error in the page: ${error.stack}`));
  page.on("console", (message) => {
    // A refused request is what several tests are about; the browser reports each as an error.
    if (message.type() === "error" && !message.text().startsWith("Failed to load resource")) faults.push(message.text());
  });
  try {
    const world = { page, context, mock, origin: mock.origin, state: mock.state, expectedFault: null };
    await test(world);
    assert.deepEqual(
      faults.filter((fault) => !world.expectedFault?.test(fault)),
      [],
    );
  } catch (error) {
    if (faults.length > 0) error.stack += `\nfaults: ${faults.join("\n")}`;
    await shoot(page, "failure").catch(() => {});
    throw error;
  } finally {
    await context.close();
    await mock.close();
  }
}

/** Opens an address as a signed-in user who saves with the button. */
export async function open({ page, context, origin, state }, address) {
  await context.addInitScript(() => localStorage.getItem("tympan.autosave") ?? localStorage.setItem("tympan.autosave", "off"));
  state.isSignedIn = true;
  await page.goto(origin + address);
}

/** Opens an address as a signed-in user whose edits are saved as they are made, which is the default. */
export async function openSaving({ page, origin, state }, address) {
  state.isSignedIn = true;
  await page.goto(origin + address);
}

/** Counts the clicks of a user from now on; the returned function tells how many there were. */
export async function countClicks(page) {
  await page.evaluate(() => {
    globalThis.clicks = 0;
    addEventListener("pointerdown", () => (globalThis.clicks += 1), true);
  });
  return () => page.evaluate(() => globalThis.clicks);
}

/** Fails on serious and critical findings of axe in the whole page; the previewed page is not ours. */
export function expectAccessible(page, where) {
  return expectNoFindings(new AxeBuilder({ page }), where);
}

/** Fails when words and what is behind them have too little contrast. */
export function expectReadable(page, where) {
  return expectNoFindings(new AxeBuilder({ page }).withRules("color-contrast"), where);
}

async function expectNoFindings(axe, where) {
  // The legacy mode differs in frames only, which are left out; the other one opens a page more for each analysis.
  const { violations } = await axe.exclude("iframe").setLegacyMode().analyze();
  const bad = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
  const lines = bad.flatMap(({ id, nodes }) => nodes.map((one) => `${id}: ${one.html}\n  ${one.failureSummary}`));
  assert.equal(lines.join("\n"), "", `axe finds fault with ${where}`);
}

/** Fails when the page is wider than its window. */
export async function expectNoSideScroll(page, where) {
  const [content, room] = await page.evaluate(() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]);
  assert.ok(content <= room, `${where} is ${content} px wide in a window of ${room} px`);
}

/** Fails when a visible text is smaller than 14 px. */
export async function expectLegible(page, where) {
  const small = await page.evaluate((least) => {
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      const size = Number.parseFloat(getComputedStyle(node.parentElement).fontSize);
      const isShown = node.parentElement.checkVisibility({ visibilityProperty: true }) && !node.parentElement.closest(".unseen, [aria-hidden=true]");
      if (/\p{L}|\d/u.test(node.data) && isShown && size < least) found.push(`${size} px: ${node.data.trim()}`);
    }
    return found;
  }, LEAST_TEXT_PX);
  assert.deepEqual(small, [], `${where} has small text`);
}

/** Takes a screenshot if `UI_SHOTS` is set. */
export async function shoot(page, name) {
  const directory = process.env.UI_SHOTS;
  if (!directory) return;
  await mkdir(directory, { recursive: true });
  await page.screenshot({ path: join(directory, `${name}.png`) });
}

/** Returns the last write to the API. */
export function lastCall(state) {
  const { verb, path, query, body } = state.writes.findLast((write) => write.verb !== undefined) ?? {};
  assert.ok(verb, "nothing was written");
  return { verb, path, query, body };
}

/**
 * Waits until what `read` answers equals `expected`, or matches it where that is a regular expression: what follows a
 * click is drawn when the server has answered, and nothing else says when that is.
 */
export async function expectSoon(read, expected, message) {
  const end = Date.now() + LIMIT_MS;
  for (;;) {
    const actual = await read();
    const isSo = expected instanceof RegExp ? expected.test(actual) : isDeepStrictEqual(actual, expected);
    if (isSo) return;
    if (Date.now() > end) {
      if (expected instanceof RegExp) assert.match(actual, expected, message);
      assert.deepEqual(actual, expected, message);
    }
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** Waits until something is so in the mock, which tells nobody by itself. */
export async function until(isSo) {
  const end = Date.now() + LIMIT_MS;
  while (!isSo()) {
    if (Date.now() > end) throw new Error(`never was: ${isSo}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

/** Returns the operations of the last save. */
export function lastSave(state) {
  const write = state.writes.at(-1);
  assert.equal(write?.path, "/api/v1/batch", "nothing was saved");
  return write.operations.map(({ ifMatch, ...operation }) => {
    assert.ok(operation.op !== "patch" || ifMatch, "a save without a condition");
    return operation;
  });
}

/** Returns the write that a test caused last, with its form as an object (lists for repeated names). */
export function lastWrite(state) {
  const write = state.writes.at(-1);
  assert.ok(write, "nothing was written");
  const form = {};
  for (const [name, value] of write.form) {
    if (name === "_charset_" || name === ":http-equiv-accept") continue;
    form[name] = name in form ? [form[name], value].flat() : value;
  }
  return { path: write.path, form };
}
