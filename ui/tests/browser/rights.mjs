/** What a user may not do is not offered: no enabled control ends in a refusal, and no administration is shown. */
import assert from "node:assert/strict";
import { expectSoon, open } from "../harness.mjs";

const PAGE = "/content/demo/en/trieste";
const SCREENS = [
  { name: "sites", address: "/sites.html/content/demo/en", ready: (page) => page.getByText("Slow days").waitFor() },
  {
    name: "selected pages",
    address: "/sites.html/content/demo/en",
    ready: async (page) => {
      await page.getByLabel("Select Where to eat").check();
      await page.getByRole("toolbar", { name: "Selected pages" }).waitFor();
    },
  },
  { name: "page", address: `/editor.html${PAGE}.html`, ready: (page) => page.getByLabel("Description").waitFor() },
  {
    name: "component",
    address: `/editor.html${PAGE}.html?component=${encodeURIComponent(`${PAGE}/jcr:content/root/title`)}`,
    ready: (page) => page.getByText("You may read this page, but not change it.").waitFor(),
  },
  { name: "assets", address: "/assets.html/content/dam/demo", ready: (page) => page.getByText("The harbor of Muggia").waitFor() },
  { name: "asset", address: "/assets.html/content/dam/demo/harbor.jpg?show=detail", ready: (page) => page.getByText("You may look at this asset").waitFor() },
  { name: "versions", address: `/versions.html${PAGE}`, ready: (page) => page.getByText("Where to sleep").waitFor() },
];

/** Makes the user one who may only read. */
function readOnly(state) {
  state.readOnly = ["/content"];
  state.denied = { edit: true, activate: true };
}

/** What is below the top bar: enabled buttons and entries of menus, and of a dialog if one is open. */
const controls = (page) => page.locator("main button:enabled, dialog[open] button:enabled, [role=menuitem]:not([aria-disabled=true]):not(:disabled)");

/**
 * Returns what was written, without what only tells where the user is, and without the start of a workflow: whoever may read
 * a model and a page may start it, and its steps have the rights of those who complete them.
 */
const changesOf = (state) => state.writes.filter(({ path }) => !/presence|\/query|spellcheck|\/workflows$/.test(path ?? ""));

const nameOf = (control) => control.evaluate((one) => (one.getAttribute("aria-label") ?? one.textContent ?? "").trim());

export async function a_reader_meets_no_enabled_control_that_fails(world) {
  const { page, state } = world;
  readOnly(state);
  const tried = [];
  for (const { name, address, ready } of SCREENS) {
    await open(world, address);
    await ready(page);
    const names = new Set(await Promise.all((await controls(page).all()).map(nameOf)));
    for (const label of names) {
      await open(world, address);
      await ready(page);
      const control = controls(page).filter({ visible: true }).and(page.getByRole("button", { name: label, exact: true }).or(page.getByText(label, { exact: true })));
      if ((await control.count()) === 0) continue;
      await control.first().click();
      tried.push(`${name}: ${label}`);
      // What a menu or dialog offers then is tried too.
      for (const inside of await page.locator("dialog[open] button.primary:enabled, dialog[open] button.danger:enabled").all()) if (await inside.isVisible()) await inside.click();
      assert.deepEqual(changesOf(state), [], `${name}: “${label}” is offered, but not allowed`);
    }
    const entries = page.locator("main [aria-haspopup=menu]:enabled").filter({ visible: true });
    await open(world, address);
    await ready(page);
    for (let at = 0; at < (await entries.count()); at += 1) {
      for (const entry of ["", ...(await entriesOf(page, entries.nth(at)))]) {
        if (entry === "") continue;
        await open(world, address);
        await ready(page);
        await entries.nth(at).click();
        await page.getByRole("menuitem", { name: entry, exact: true }).click();
        tried.push(`${name}: menu: ${entry}`);
        for (const inside of await page.locator("dialog[open] button.primary:enabled, dialog[open] button.danger:enabled").all()) if (await inside.isVisible()) await inside.click();
        assert.deepEqual(changesOf(state), [], `${name}: “${entry}” is offered, but not allowed`);
      }
      await open(world, address);
      await ready(page);
    }
  }
  console.log(`        ${tried.length} controls tried`);
  assert.ok(tried.length > 20);
}

/** Opens a menu and returns its enabled entries. */
async function entriesOf(page, trigger) {
  await trigger.click();
  const entries = page.locator("[role=menuitem]:not([aria-disabled=true]):not(:disabled)");
  await entries.first().waitFor({ timeout: 1000 }).catch(() => {});
  const names = await Promise.all((await entries.all()).map(nameOf));
  await page.keyboard.press("Escape");
  return names;
}

export async function an_editor_sees_no_administration(world) {
  const { page, state } = world;
  const places = page.getByRole("navigation", { name: "Main" }).getByRole("link");
  await open(world, "/sites.html/content/demo/en");
  await expectSoon(() => places.allInnerTexts(), ["Sites", "Assets", "Launches", "Queue", "Workflows", "Users", "Packages", "Mounts", "Operations"]);
  // Whoever may only read somewhere is no administrator.
  state.readOnly = ["/content/elsewhere"];
  await page.reload();
  await expectSoon(() => places.allInnerTexts(), ["Sites", "Assets", "Launches", "Queue", "Workflows"]);
  await page.getByRole("button", { name: "Create page" }).and(page.locator(":enabled")).waitFor();
  await open(world, `/editor.html${PAGE}.html`);
  await page.getByLabel("Description").waitFor();
  await page.getByRole("button", { name: "More actions" }).click();
  await page.getByRole("menuitem", { name: "Versions" }).waitFor();
  await expectSoon(() => page.getByRole("menuitem", { name: "Permissions" }).count(), 0);
}
