/** What must not go wrong in a day of work: a browser that is killed, many odd files, a workflow from its start to its end. */
import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expectSoon, lastCall, open, openSaving, shoot, until } from "../harness.mjs";

const PAGE = "/content/demo/en/trieste";
const TITLE = `${PAGE}/jcr:content/root/title`;
const EDITOR = `/editor.html${PAGE}.html?component=${encodeURIComponent(TITLE)}`;
const valueAt = (state, path, name) => path.split("/").filter(Boolean).reduce((one, part) => one?.children.get(part), state.root)?.properties[name];

/** Kills the processes that draw pages, as `kill -9` does. */
async function killRenderers(page) {
  const session = await page.context().browser().newBrowserCDPSession();
  const renderers = async () => (await session.send("SystemInfo.getProcessInfo")).processInfo.filter(({ type }) => type === "renderer").map(({ id }) => id);
  const killed = await renderers();
  for (const id of killed) process.kill(id, "SIGKILL");
  // The browser keeps a renderer ready for the next tab, which must not get one of the dead ones.
  await expectSoon(async () => (await renderers()).filter((id) => killed.includes(id)), []);
  await session.detach();
}

export async function typing_survives_a_tab_that_is_killed(world) {
  const { page, context, state } = world;
  await openSaving(world, EDITOR);
  await page.getByLabel("Title").waitFor();
  // Nothing reaches the server, so that the text is in the browser alone.
  state.isCut = true;
  await page.getByLabel("Title").fill("Typed before the crash");
  await page.waitForFunction(() => JSON.stringify({ ...localStorage }).includes("Typed before the crash"));
  const crashed = page.waitForEvent("crash");
  await killRenderers(page);
  await crashed;
  state.isCut = false;
  const next = await context.newPage();
  await next.goto(world.origin + EDITOR);
  await until(() => valueAt(state, TITLE, "jcr:title") === "Typed before the crash");
  await expectSoon(() => next.getByLabel("Title").inputValue(), "Typed before the crash");
}

export async function what_was_said_to_be_saved_survives_a_browser_that_is_killed(world) {
  const { origin, state, page } = world;
  const browserType = page.context().browser().browserType();
  const profile = await mkdtemp(join(tmpdir(), "tympan-ui-"));
  const options = { executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu"], locale: "en-US" };
  try {
    state.isSignedIn = true;
    const first = await browserType.launchPersistentContext(profile, options);
    const tab = await first.newPage();
    await tab.goto(origin + EDITOR);
    await tab.getByLabel("Title").fill("Said to be saved");
    await tab.getByText("All changes saved").waitFor();
    const session = await first.browser().newBrowserCDPSession();
    const { processInfo } = await session.send("SystemInfo.getProcessInfo");
    const closed = new Promise((resolve) => first.once("close", resolve));
    process.kill(processInfo.find(({ type }) => type === "browser").id, "SIGKILL");
    await closed;
    assert.equal(valueAt(state, TITLE, "jcr:title"), "Said to be saved");

    const second = await browserType.launchPersistentContext(profile, options);
    const again = await second.newPage();
    await again.goto(origin + EDITOR);
    await expectSoon(() => again.getByLabel("Title").inputValue(), "Said to be saved");
    await again.getByText("All changes saved").waitFor();
    await second.close();
  } finally {
    await rm(profile, { recursive: true, force: true, maxRetries: 5 });
  }
}

/** Names that file systems, addresses and JCR treat in their own ways, and contents that are not what they are called. */
const ODD = [
  ["a b.jpg"], ["ä ö ü ß.jpg"], ["ﬁligree.jpg"], ["e\u0301te\u0301.jpg"], ["日本語.jpg"], ["عربي.jpg"], ["🚤.jpg"], ["👩‍👩‍👧.png"],
  ["100%.jpg"], ["a+b.jpg"], ["a&b.jpg"], ["a#b.jpg"], ["a?b.jpg"], ["a=b;c.jpg"], ["it's.jpg"], ["“quoted”.jpg"], ["a,b.jpg"],
  ["a:b[1]*.jpg"], ["a|b.jpg"], ["a<b>.jpg"], ["..hidden.jpg"], [".htaccess"], ["UPPER.JPG"], ["no-extension"], ["two.dots.tar.gz"],
  [`${"x".repeat(180)}.jpg`], [" spaces at the ends .jpg "], ["index.html", "<script>alert(1)</script>", "text/html"], ["no picture.jpg", "text"], ["empty.jpg", ""],
];

export async function thirty_odd_files_arrive_or_say_why_not(world) {
  const { page, state } = world;
  assert.equal(ODD.length, 30);
  const stored = () => [...state.root.children.get("content").children.get("dam").children.get("demo").children.keys()];
  await open(world, "/assets.html/content/dam/demo");
  await page.getByText("The harbor of Muggia").waitFor();
  const before = stored().length;
  const files = ODD.map(([name, text = `picture ${name}`, mimeType = "image/jpeg"]) => ({ name, mimeType, buffer: Buffer.from(text) }));
  await page.locator('input[data-upload="files"]').setInputFiles(files);
  const panel = page.getByRole("region", { name: "Uploads" });
  await panel.getByText("1 of 30 could not be uploaded").waitFor();
  await panel.getByText("The file is empty (0 bytes).").waitFor();
  assert.equal(stored().length - before, 29);
  assert.deepEqual(stored().filter((name) => name.startsWith(".upload-")), []);
  assert.equal(new Set(stored()).size, stored().length);
}

export async function a_workflow_is_started_for_a_page_and_ended(world) {
  const { page, state } = world;
  await openSaving(world, `/editor.html${PAGE}.html`);
  await page.getByLabel("Description").waitFor();
  await page.getByRole("button", { name: "More actions" }).click();
  await page.getByRole("menuitem", { name: "Start a workflow…" }).click();
  const dialog = page.getByRole("dialog", { name: /^Start a workflow/ });
  // Models that cannot be started are not offered.
  await expectSoon(() => dialog.getByRole("combobox").locator("option").allInnerTexts(), ["Review"]);
  await shoot(page, "workflow-start");
  await dialog.getByRole("button", { name: "Start" }).click();
  await page.getByText("Started the workflow “Review”").waitFor();
  const { path, body } = lastCall(state);
  assert.deepEqual([path, body.payload], ["/api/v1/workflows", PAGE]);

  await page.getByRole("link", { name: "Workflows" }).click();
  const step = page.getByRole("listitem", { name: `Look at ${PAGE}`, exact: true });
  await step.getByRole("button", { name: "Complete" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Complete" }).click();
  await step.waitFor({ state: "detached" });
}
