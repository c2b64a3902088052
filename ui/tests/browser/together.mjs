/** Several editors on one page: changes of others, clashes, and drafts that survive the tab. */
import assert from "node:assert/strict";
import { expectSoon, lastSave, open, until } from "../harness.mjs";

const PAGE = "/content/demo/en/trieste";
const CONTENT = `${PAGE}/jcr:content`;
const ROOT = `${CONTENT}/root`;
const ADDRESS = `/editor.html${PAGE}.html`;
const at = (component) => `${ADDRESS}?component=${encodeURIComponent(component)}`;
const save = (page) => page.getByRole("button", { name: "Save", exact: true }).click();
const clashDialog = (page) => page.getByRole("dialog", { name: "Conflicting changes" });

/** Holds back the feed, so that the save itself meets the change. */
const deafen = (page) =>
  page.route("**/api/v1/changes*", (route) =>
    route.request().headers().accept?.includes("event-stream") ? route.abort() : route.continue(),
  );

export async function others_changes_show_and_are_named(world) {
  const { page, mock, state } = world;
  await open(world, at(`${ROOT}/title`));
  await page.getByLabel("Title").waitFor();
  await until(() => state.clients.size === 1);
  mock.editAs("bea", `${ROOT}/title`, { "jcr:title": "Bea was here" });
  await page.getByText("bea changed this page since you opened it").waitFor();
  await page.getByText("Title “Slow days on the Gulf of Trieste”", { exact: false }).first().waitFor();
  await page.frameLocator("iframe").getByRole("heading", { name: "Bea was here" }).waitFor();
  await page.waitForFunction(() => [...document.querySelectorAll("input")].some((one) => one.value === "Bea was here"));
  await page.getByText("All changes saved").waitFor();
  await page.getByRole("button", { name: "Close message" }).click();
  await page.getByText("bea changed this page").waitFor({ state: "detached" });
}

export async function different_properties_merge_without_a_question(world) {
  const { page, mock, state } = world;
  await deafen(page);
  await open(world, ADDRESS);
  await page.getByLabel("Title").fill("My title");
  mock.editAs("bea", CONTENT, { "jcr:description": "Bea's description" });
  await save(page);
  await page.getByText("All changes saved").waitFor();
  await expectSoon(() => page.getByLabel("Description").inputValue(), "Bea's description");
  assert.deepEqual(lastSave(state)[0].patch, { properties: { "jcr:title": "My title" } });
  assert.equal(state.writes.length, 2, "refused once, then saved over the new state");
}

export async function a_clash_is_decided_property_by_property(world) {
  const { page, mock, state } = world;
  await deafen(page);
  await open(world, ADDRESS);
  await page.getByLabel("Title").fill("My title");
  await page.getByLabel("Description").fill("My description");
  mock.editAs("bea", CONTENT, { "jcr:title": "Bea's title" });
  mock.editAs("cem", CONTENT, { "jcr:description": "Cem's description" });
  await save(page);
  const dialog = clashDialog(page);
  await dialog.getByText("bea and cem changed the same content as you.", { exact: false }).waitFor();
  const title = dialog.getByRole("group", { name: "Page: Title" });
  await title.getByText("Bea's", { exact: false }).waitFor();
  await title.getByText("bea", { exact: true }).waitFor();
  await title.getByText("just now").waitFor();
  await title.getByText("Slow days on the Gulf of Trieste", { exact: true }).waitFor();
  await dialog.getByText("2 unresolved").waitFor();
  await dialog.getByRole("button", { name: "Save" }).click();
  await dialog.getByText("Choose one of the two.").first().waitFor();
  await title.getByLabel("Keep mine").check();
  await dialog.getByRole("group", { name: "Page: Description" }).getByLabel("Take theirs").check();
  await dialog.getByText("All resolved").waitFor();
  await dialog.getByRole("button", { name: "Save" }).click();
  await page.getByText("Page: Title", { exact: true }).waitFor();
  assert.deepEqual(lastSave(state)[0].patch, { properties: { "jcr:title": "My title" } });
  await expectSoon(() => page.getByLabel("Title").inputValue(), "My title");
  await expectSoon(() => page.getByLabel("Description").inputValue(), "Cem's description");
}

export async function a_clash_can_wait_and_nothing_is_lost(world) {
  const { page, mock, state } = world;
  await deafen(page);
  await open(world, ADDRESS);
  await page.getByLabel("Title").fill("My title");
  mock.editAs("bea", CONTENT, { "jcr:title": "Bea's title" });
  await save(page);
  await clashDialog(page).getByRole("button", { name: "Continue editing" }).click();
  await expectSoon(() => page.getByLabel("Title").inputValue(), "My title");
  await page.getByRole("button", { name: "Compare" }).click();
  await clashDialog(page).getByLabel("Take theirs").check();
  await clashDialog(page).getByRole("button", { name: "Save" }).click();
  await page.getByText("No changes left to save").waitFor();
  await expectSoon(() => page.getByLabel("Title").inputValue(), "Bea's title");
  assert.equal(state.writes.length, 1, "taking theirs writes nothing");
}

export async function a_change_that_comes_while_deciding_is_met_again(world) {
  const { page, mock, state } = world;
  await deafen(page);
  await open(world, ADDRESS);
  await page.getByLabel("Title").fill("My title");
  mock.editAs("bea", CONTENT, { "jcr:title": "Bea's title" });
  await save(page);
  await clashDialog(page).getByLabel("Keep mine").check();
  mock.editAs("cem", CONTENT, { "jcr:title": "Cem's title" });
  await clashDialog(page).getByRole("button", { name: "Save" }).click();
  await clashDialog(page).getByText("cem", { exact: true }).waitFor();
  await clashDialog(page).getByLabel("Keep mine").check();
  await clashDialog(page).getByRole("button", { name: "Save" }).click();
  await page.getByText("Page: Title", { exact: true }).waitFor();
  assert.deepEqual(lastSave(state)[0].patch, { properties: { "jcr:title": "My title" } });
}

export async function a_clash_shows_at_once_when_the_feed_tells_of_it(world) {
  const { page, mock, state } = world;
  await open(world, ADDRESS);
  await page.getByLabel("Title").fill("My title");
  await until(() => state.clients.size === 1);
  mock.editAs("bea", CONTENT, { "jcr:title": "Bea's title" });
  await page.getByText("Another user changed what you are editing").waitFor();
  await expectSoon(() => page.getByLabel("Title").inputValue(), "My title");
  await page.getByRole("button", { name: "Discard" }).click();
  await page.waitForFunction(() => [...document.querySelectorAll("input")].some((one) => one.value === "Bea's title"));
}

export async function a_component_that_is_gone_gives_the_text_back(world) {
  const { page, mock, state } = world;
  await deafen(page);
  await open(world, at(`${ROOT}/title`));
  await page.getByLabel("Title").fill("A headline worth keeping");
  mock.removeAs("bea", `${ROOT}/title`);
  await save(page);
  const dialog = clashDialog(page);
  await dialog.getByText("A headline worth keeping").waitFor();
  await dialog.getByText("bea", { exact: true }).waitFor();
  await dialog.getByLabel("Discard my changes to it").check();
  await dialog.getByRole("button", { name: "Save" }).click();
  await page.getByText("All changes saved").waitFor();
  assert.equal(state.writes.length, 1);
}

export async function drafts_survive_a_closed_tab(world) {
  const { page, context, state } = world;
  await open(world, ADDRESS);
  await page.getByLabel("Title").fill("Typed before the crash");
  await page.waitForFunction(() => Object.keys(localStorage).some((key) => key.startsWith("tympan.drafts")));
  await page.close({ runBeforeUnload: false });
  world.page = await context.newPage();
  await world.page.goto(world.origin + ADDRESS);
  await world.page.getByText("Your unsaved changes were restored").waitFor();
  await expectSoon(() => world.page.getByLabel("Title").inputValue(), "Typed before the crash");
  await save(world.page);
  await world.page.getByText("Page: Title", { exact: true }).waitFor();
  assert.equal(lastSave(state)[0].patch.properties["jcr:title"], "Typed before the crash");
  await world.page.waitForFunction(() => !Object.keys(localStorage).some((key) => key.startsWith("tympan.drafts")));
}

export async function drafts_brought_back_clash_with_what_was_saved_meanwhile(world) {
  const { page, context, mock } = world;
  await open(world, ADDRESS);
  await page.getByLabel("Title").fill("Left behind");
  await page.waitForFunction(() => Object.keys(localStorage).some((key) => key.startsWith("tympan.drafts")));
  await page.close();
  mock.editAs("bea", CONTENT, { "jcr:title": "Bea's title" });
  world.page = await context.newPage();
  await world.page.goto(world.origin + ADDRESS);
  await world.page.getByRole("button", { name: "Compare" }).click();
  await clashDialog(world.page).getByText("bea", { exact: true }).waitFor();
  await clashDialog(world.page).getByRole("button", { name: "Continue editing" }).click();
  await world.page.getByRole("button", { name: "Discard changes" }).click();
  await world.page.waitForFunction(() => [...document.querySelectorAll("input")].some((one) => one.value === "Bea's title"));
}
