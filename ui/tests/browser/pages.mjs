/** A page as a whole: parts brought back from versions, moves with a redirect, languages, and the sheet of keys. */
import assert from "node:assert/strict";
import { expectAccessible, expectSoon, lastCall, openSaving, shoot, until } from "../harness.mjs";

const PAGE = "/content/demo/en/trieste";
const ADDRESS = `/editor.html${PAGE}.html`;
const VERSIONS = `/versions.html${PAGE}`;

export async function a_part_of_a_page_is_restored_from_a_version(world) {
  const { page, state } = world;
  await openSaving(world, `${VERSIONS}?from=1.1`);
  await page.getByRole("button", { name: "Restore this part jcr:content" }).click();
  await page.getByRole("dialog", { name: "Restore this part?" }).getByRole("button", { name: "Restore" }).click();
  await page.getByText("Restored a part from version 1.1").waitFor();
  assert.deepEqual(lastCall(state), { verb: "POST", path: "/api/v1/versions/restore", query: {}, body: { path: PAGE, version: "1.1", part: "jcr:content" } });
  assert.equal(state.console.versions.at(-1).comment, "before restoring", "the present state was kept first");
  // What was added since cannot be restored, and two versions are only compared.
  await expectSoon(() => page.getByRole("button", { name: /^Restore this part|^Bring back/ }).count(), 1);
  await page.getByLabel("To", { exact: true }).selectOption("1.2");
  await expectSoon(() => page.getByRole("button", { name: /^Restore this part/ }).count(), 0);
}

export async function two_states_of_a_page_are_compared_as_drawn(world) {
  const { page } = world;
  await openSaving(world, `${VERSIONS}?from=1.1`);
  await page.getByRole("tab", { name: "Pages" }).click();
  const frame = (title) => page.frameLocator(`iframe[title="${title}"]`);
  await frame("Version 1.1").getByText("Rooms above the boats.").waitFor();
  await frame("Current page").getByText("Rooms above the boats.").waitFor();
  const added = frame("Current page").locator('[data-tympan-path$="/teaser2"]');
  await expectSoon(() => added.evaluate((one) => one.style.outlineColor), "rgb(26, 127, 75)");
  await expectAccessible(page, "the comparison of pages");
  await shoot(page, "versions-pages");
}

export async function a_live_page_is_renamed_with_its_references_and_leaves_a_redirect(world) {
  const { page, state } = world;
  state.console.usedBy = { [PAGE]: [{ path: "/content/demo/en/alps/jcr:content", property: "link", kind: "path" }] };
  await openSaving(world, ADDRESS);
  await page.getByRole("button", { name: "More actions" }).click();
  await page.getByRole("menuitem", { name: "Move or rename…" }).click();
  const dialog = page.getByRole("dialog", { name: /^Move or rename/ });
  await dialog.getByRole("link", { name: "/content/demo/en/alps" }).waitFor();
  await dialog.getByLabel("Name in the address").fill("gulf/of");
  await dialog.getByRole("button", { name: "Move" }).click();
  await dialog.getByText("A name must not contain `/`.").waitFor();
  await dialog.getByLabel("Name in the address").fill("gulf");
  await shoot(page, "move");
  await dialog.getByRole("button", { name: "Move" }).click();
  await page.waitForURL(/editor\.html\/content\/demo\/en\/gulf\.html/);
  const [move, redirect, order] = state.writes.find(({ path }) => path === "/api/v1/batch").operations;
  assert.deepEqual(move, { op: "move", from: PAGE, to: "/content/demo/en/gulf", rewrite: true });
  assert.equal(redirect.node.children["jcr:content"].properties["cq:redirectTarget"], "/content/demo/en/gulf");
  assert.deepEqual(order, { op: "order", path: PAGE, place: "first" });
  await until(() => state.writes.filter(({ path }) => path === "/api/v1/replication").length === 2);
  assert.deepEqual(
    state.writes.filter(({ path }) => path === "/api/v1/replication").map(({ body }) => body),
    [
      { action: "activate", paths: ["/content/demo/en/gulf"], deep: true },
      { action: "activate", paths: [PAGE] },
    ],
  );
}

/** Returns the texts of controls that are not in the pseudo-language. */
const untranslated = (page) =>
  page.evaluate(() => {
    const controls = document.querySelectorAll("button, a.button, [role=tab], [role=menuitem], legend, nav a, h2, footer span");
    return [...controls]
      .filter((one) => one.offsetParent !== null && !one.closest("[role=tree], .account, .outlines"))
      .map((one) => one.getAttribute("aria-label") ?? one.textContent.trim())
      .filter((text) => /\p{L}/u.test(text) && !text.includes("⟦"));
  });

export async function controls_are_translatable(world) {
  const { page, context } = world;
  await context.addInitScript(() => localStorage.setItem("tympan.language", "pseudo"));
  await openSaving(world, ADDRESS);
  await page.getByText("⟦Áll çháñgés sávéd", { exact: false }).waitFor();
  // Labels and tabs of the form come from the dialog in content.
  const own = (texts) => texts.filter((text) => !["Basic", "Publication", "Add", "Move Tags 1 up"].includes(text) && !/Tags/.test(text));
  assert.deepEqual(own(await untranslated(page)), []);
  await page.getByRole("button", { name: /Públísh látér/ }).click();
  await page.getByRole("dialog").waitFor();
  assert.deepEqual(own(await untranslated(page)), []);
  await page.goto(world.origin + "/queue.html");
  await page.getByText("⟦Qúéúé", { exact: false }).first().waitFor();
  await page.getByRole("button", { name: /Rétry/ }).first().waitFor();
  assert.deepEqual(
    (await untranslated(page)).filter((text) => !["Publish", "Preview"].includes(text)),
    [],
  );
}

export async function the_interface_speaks_german(world) {
  const { page } = world;
  await openSaving(world, ADDRESS);
  await page.getByRole("button", { name: "Account: admin" }).click();
  await page.getByRole("menuitemradio", { name: "Deutsch" }).click();
  await page.getByText("Alle Änderungen gespeichert").waitFor();
  await page.getByRole("button", { name: "Veröffentlichen", exact: true }).waitFor();
  assert.equal(await page.evaluate(() => document.documentElement.lang), "de");
  await expectSoon(() => page.getByText(/^Geändert vor 2 Stunden von ada$/).count(), 1);
  await shoot(page, "editor-german");
}

export async function the_keys_are_listed(world) {
  const { page } = world;
  await openSaving(world, ADDRESS);
  await page.getByLabel("Title").fill("What?");
  assert.equal(await page.getByRole("dialog").count(), 0, "a question mark in a text is a text");
  await page.getByRole("button", { name: "Undo", exact: true }).focus();
  await page.keyboard.press("?");
  const sheet = page.getByRole("dialog", { name: "Keyboard shortcuts" });
  await sheet.getByText("Move into the container above", { exact: false }).waitFor();
  await expectAccessible(page, "the sheet of keys");
  await shoot(page, "keys");
  await page.keyboard.press("Escape");
  await expectSoon(() => sheet.count(), 0);
}

export async function what_a_user_may_not_do_is_disabled_with_the_reason(world) {
  const { page, state } = world;
  state.denied = { edit: true, activate: true };
  await openSaving(world, `${ADDRESS}?panel=components`);
  await page.getByText("You may read this page, but not change it.").waitFor();
  await expectSoon(() => page.getByRole("button", { name: "Add", exact: true }).isDisabled(), true);
  const activate = page.getByRole("button", { name: "Publish", exact: true });
  await expectSoon(() => activate.isDisabled(), true);
  assert.equal(await activate.getAttribute("title"), "You have no right to publish this page.");
}
