/** Editing without a thought of saving: undo and redo, tabs, a cut network, text in place, moving by mouse and keys. */
import assert from "node:assert/strict";
import { expectAccessible, expectSoon, openSaving, until } from "../harness.mjs";

const PAGE = "/content/demo/en/trieste";
const CONTENT = `${PAGE}/jcr:content`;
const ROOT = `${CONTENT}/root`;
const ADDRESS = `/editor.html${PAGE}.html`;
const at = (component) => `${ADDRESS}?component=${encodeURIComponent(component)}`;
const preview = (page) => page.frameLocator("iframe");
const item = (page, name) => page.getByRole("treeitem", { name });
const saved = (page) => page.getByText("All changes saved").waitFor();
const selected = (page) => page.locator('[role="treeitem"][aria-selected="true"]');

/** Returns a node of the mock's content. */
function nodeAt(state, path) {
  return path.split("/").filter(Boolean).reduce((one, name) => one?.children.get(name), state.root);
}

const names = (state, path) => [...nodeAt(state, path).children.keys()];
const undo = (page) => page.getByRole("button", { name: "Undo", exact: true }).first().click();
const redo = (page) => page.getByRole("button", { name: "Redo", exact: true }).click();

/** Marks what the preview shows, to see later what was drawn again. */
const markPreview = (page) =>
  page.frames()[1].evaluate(() => {
    for (const one of document.querySelectorAll("[data-tympan-path]")) one.isOld = true;
    document.documentElement.isOld = true;
    scrollTo(0, 120);
  });

const redrawn = (page) =>
  page.frames()[1].evaluate(() => [
    document.documentElement.isOld ? "same document" : "reloaded",
    ...[...document.querySelectorAll("[data-tympan-path]")].filter((one) => !one.isOld).map((one) => one.getAttribute("data-tympan-path").replace(/.*\//, "")),
  ]);

export async function five_kinds_of_edits_are_undone_after_a_reload_and_done_again(world) {
  const { page, state } = world;
  await openSaving(world, at(`${ROOT}/title`));
  const before = names(state, ROOT);
  // Text, a property, an addition, a move and a deletion.
  await page.getByLabel("Title").fill("A new headline");
  await page.getByLabel("Center").check();
  await saved(page);
  await page.getByRole("button", { name: "Add" }).click();
  await page.getByRole("dialog").getByText("Teaser", { exact: true }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Add Teaser" }).click();
  await page.getByText("Added Teaser").waitFor();
  await selected(page).focus();
  await page.keyboard.press("Alt+ArrowDown");
  await expectSoon(() => names(state, ROOT).slice(0, 3), ["title", "intro", "teaser"]);
  await item(page, "A day in pictures").click();
  await item(page, "A day in pictures").press("Delete");
  await expectSoon(() => names(state, ROOT).includes("slideshow"), false);
  await page.getByText("Deleted Slideshow").waitFor();

  await page.reload();
  await page.getByRole("button", { name: "Undo", exact: true }).and(page.locator(":enabled")).waitFor();
  for (let step = 0; step < 5; step += 1) {
    await page.keyboard.press("Control+z");
    const done = [
      () => names(state, ROOT).includes("slideshow"),
      () => names(state, ROOT)[1] === "teaser",
      () => !names(state, ROOT).includes("teaser"),
      () => nodeAt(state, `${ROOT}/title`).properties.align !== "center",
      () => nodeAt(state, `${ROOT}/title`).properties["jcr:title"] === "Slow days on the Gulf of Trieste",
    ][step];
    await until(done);
  }
  assert.deepEqual(names(state, ROOT), before);
  assert.deepEqual([...nodeAt(state, `${ROOT}/slideshow/slides`).children.keys()], ["item0", "item1", "item2"]);
  assert.equal(nodeAt(state, `${ROOT}/slideshow/slides/item0`).properties["cq:panelTitle"], "kept");
  await expectSoon(() => page.getByRole("button", { name: "Undo", exact: true }).isDisabled(), true);

  for (let step = 0; step < 5; step += 1) await page.keyboard.press("Control+y");
  await until(() => !names(state, ROOT).includes("slideshow"));
  assert.deepEqual(names(state, ROOT).slice(0, 3), ["title", "intro", "teaser"]);
  const { properties } = nodeAt(state, `${ROOT}/title`);
  assert.deepEqual([properties["jcr:title"], properties.align], ["A new headline", "center"]);
}

export async function a_deleted_component_comes_back_with_one_click(world) {
  const { page, state } = world;
  await openSaving(world, at(`${ROOT}/columns`));
  await page.getByRole("button", { name: "Delete component" }).click();
  await page.getByText("Deleted Container").waitFor();
  await page.locator(".toast").getByRole("button", { name: "Undo" }).click();
  await until(() => names(state, ROOT).includes("columns"));
  assert.deepEqual(names(state, `${ROOT}/columns`), ["teaser", "teaser2", "embed"]);
  await preview(page).getByText("Rooms above the boats.").waitFor();
  await expectSoon(() => selected(page).getAttribute("data-path"), `${ROOT}/columns`);
}

export async function an_undo_asks_before_it_replaces_what_another_user_wrote(world) {
  const { page, mock, state } = world;
  await openSaving(world, at(`${ROOT}/title`));
  await page.getByLabel("Title").fill("Mine");
  await saved(page);
  await until(() => state.clients.size === 1);
  mock.editAs("bea", `${ROOT}/title`, { "jcr:title": "Bea's" });
  await expectSoon(() => page.getByLabel("Title").inputValue(), "Bea's");
  await undo(page);
  const dialog = page.getByRole("dialog", { name: "Replace a newer value?" });
  await dialog.getByText("Bea's", { exact: true }).waitFor();
  await dialog.getByRole("button", { name: "Cancel" }).click();
  assert.equal(nodeAt(state, `${ROOT}/title`).properties["jcr:title"], "Bea's");
  await undo(page);
  await dialog.getByRole("button", { name: "Replace" }).click();
  await until(() => nodeAt(state, `${ROOT}/title`).properties["jcr:title"] === "Slow days on the Gulf of Trieste");
}

export async function two_tabs_of_one_user_are_two_editors(world) {
  const { page, context, origin, state } = world;
  await openSaving(world, at(`${ROOT}/title`));
  const other = await context.newPage();
  await other.goto(origin + ADDRESS);
  await other.getByLabel("Description").waitFor();
  // A tab behind another one closes its stream, where the browser says that it is hidden.
  await until(() => state.clients.size > 0);
  await other.bringToFront();
  await other.getByLabel("Description").fill("From the second tab");
  await saved(other);
  await page.bringToFront();
  await page.getByText("You changed this page in another tab").waitFor();
  await page.getByLabel("Title").fill("From the first tab");
  await saved(page);
  await until(() => nodeAt(state, `${ROOT}/title`).properties["jcr:title"] === "From the first tab");
  assert.equal(nodeAt(state, CONTENT).properties["jcr:description"], "From the second tab");
  // Each tab undoes its own edits only.
  await page.keyboard.press("Control+z");
  await until(() => nodeAt(state, `${ROOT}/title`).properties["jcr:title"] === "Slow days on the Gulf of Trieste");
  await expectSoon(() => page.getByRole("button", { name: "Undo", exact: true }).isDisabled(), true);
  assert.equal(nodeAt(state, CONTENT).properties["jcr:description"], "From the second tab");
  await other.bringToFront();
  await undo(other);
  await until(() => nodeAt(state, CONTENT).properties["jcr:description"] === "A week by ferry.");
}

export async function typing_while_the_network_is_cut_is_saved_when_it_is_back(world) {
  const { page, state } = world;
  await openSaving(world, at(`${ROOT}/title`));
  await page.getByLabel("Title").waitFor();
  state.isCut = true;
  await page.getByLabel("Title").fill("Written in a tunnel");
  await page.getByText("Not saved: no connection.", { exact: false }).waitFor();
  await page.getByLabel("Title").fill("Written in a long tunnel");
  assert.equal(state.writes.length, 0);
  state.isCut = false;
  await page.evaluate(() => dispatchEvent(new Event("online")));
  await saved(page);
  assert.equal(nodeAt(state, `${ROOT}/title`).properties["jcr:title"], "Written in a long tunnel");
}

export async function typing_that_the_network_kept_from_the_server_survives_a_reload(world) {
  const { page, state } = world;
  await openSaving(world, at(`${ROOT}/title`));
  await page.getByLabel("Title").waitFor();
  state.isCut = true;
  await page.getByLabel("Title").fill("Not lost");
  await page.getByText("Not saved: no connection.", { exact: false }).waitFor();
  await page.waitForFunction(() => Object.keys(localStorage).some((key) => key.startsWith("tympan.drafts")));
  state.isCut = false;
  page.on("dialog", (dialog) => dialog.accept());
  await page.reload();
  await until(() => nodeAt(state, `${ROOT}/title`).properties["jcr:title"] === "Not lost");
  await page.getByText("Your unsaved changes were restored").waitFor();
}

export async function only_the_changed_component_is_drawn_again(world) {
  const { page } = world;
  await openSaving(world, at(`${ROOT}/columns/teaser`));
  await preview(page).getByText("Three kitchens").waitFor();
  await page.getByLabel("Title").waitFor();
  await markPreview(page);
  const scrolled = await page.frames()[1].evaluate(() => scrollY);
  await page.getByLabel("Title").fill("Where to dine");
  await preview(page).getByRole("heading", { name: "Where to dine" }).waitFor();
  assert.deepEqual(await redrawn(page), ["same document", "teaser"]);
  assert.equal(await page.frames()[1].evaluate(() => scrollY), scrolled, "the page keeps its scroll position");
  // A move draws nothing again.
  await markPreview(page);
  await selected(page).focus();
  await page.keyboard.press("Alt+ArrowDown");
  await expectSoon(() => preview(page).locator(".columns h3").allInnerTexts(), ["Where to sleep", "Where to dine"]);
  assert.deepEqual(await redrawn(page), ["same document"]);
}

export async function a_text_is_edited_on_the_page_itself(world) {
  const { page, state } = world;
  await openSaving(world, ADDRESS);
  await preview(page).getByText("A ferry leaves Muggia").dblclick();
  const text = preview(page).getByRole("textbox", { name: "Text of" });
  await text.waitFor();
  await page.getByRole("toolbar", { name: /Formatting of/ }).first().waitFor();
  // ProseMirror undoes one jump to the start within 200 ms of focus: browsers make such jumps by themselves.
  await page.keyboard.press("Control+Home");
  await page.keyboard.press("Control+Home");
  await page.keyboard.press("Enter");
  await page.keyboard.press("ArrowUp");
  await page.keyboard.type("## Before you go");
  await page.keyboard.press("Enter");
  await page.keyboard.type("/quo");
  await page.getByRole("option", { name: "Quote" }).waitFor();
  await page.keyboard.press("Enter");
  await page.keyboard.type("Slow is **fine** here.");
  await until(() => /<blockquote><p>Slow is <strong>fine<\/strong> here\.<\/p><\/blockquote>/.test(nodeAt(state, `${ROOT}/intro`).properties.text));
  assert.match(nodeAt(state, `${ROOT}/intro`).properties.text, /^<h2>Before you go<\/h2>/);
  await page.keyboard.press("Escape");
  await expectSoon(() => preview(page).getByRole("textbox").count(), 0);
  await preview(page).getByText("Slow is fine here.").waitFor();
  await page.keyboard.press("Control+z");
  await expectSoon(() => preview(page).getByText("Slow is fine here.").count(), 0);
}

export async function a_headline_is_edited_on_the_page_and_the_form_follows(world) {
  const { page, state } = world;
  await openSaving(world, at(`${ROOT}/title`));
  await page.getByLabel("Title").waitFor();
  await item(page, "Slow days").press("F2");
  const headline = preview(page).getByRole("textbox", { name: "Title of" });
  await headline.waitFor();
  await page.keyboard.type("!");
  await expectSoon(() => page.getByLabel("Title").inputValue(), "Slow days on the Gulf of Trieste!");
  await page.keyboard.press("Enter");
  await until(() => nodeAt(state, `${ROOT}/title`).properties["jcr:title"] === "Slow days on the Gulf of Trieste!");
  await preview(page).getByRole("heading", { name: "Slow days on the Gulf of Trieste!" }).waitFor();
}

export async function a_link_is_set_with_the_keyboard_and_a_page_that_is_picked(world) {
  const { page, state } = world;
  await openSaving(world, at(`${ROOT}/columns/teaser`));
  await page.getByRole("textbox", { name: "Text" }).click();
  await page.keyboard.press("Control+a");
  await page.keyboard.press("Control+k");
  const dialog = page.getByRole("dialog", { name: "Link" });
  await dialog.getByRole("textbox").fill("/content/demo/en/trieste");
  await dialog.getByRole("button", { name: "Choose a path" }).click();
  const picker = page.getByRole("dialog", { name: "Choose a path" });
  await picker.getByText("The long way over the Alps").click();
  await picker.getByRole("button", { name: "Use this path" }).click();
  await expectSoon(() => dialog.getByRole("textbox").inputValue(), "/content/demo/en/alps");
  await dialog.getByRole("button", { name: "Set link" }).click();
  await until(() => nodeAt(state, `${ROOT}/columns/teaser`).properties.text === '<p><a href="/content/demo/en/alps.html">Three kitchens without a menu.</a></p>');
}

export async function components_are_moved_between_containers_by_mouse_and_by_keys(world) {
  const { page, state } = world;
  await openSaving(world, at(`${ROOT}/image`));
  await selected(page).focus();
  await page.keyboard.press("Alt+ArrowDown");
  await until(() => names(state, ROOT).indexOf("image") === 3);
  await page.keyboard.press("Alt+ArrowRight");
  await until(() => names(state, `${ROOT}/columns`).includes("image"));
  await expectSoon(() => page.locator(':focus[role="treeitem"]').getAttribute("data-path"), `${ROOT}/columns/image`);
  await page.keyboard.press("Alt+ArrowLeft");
  await until(() => names(state, ROOT).includes("image"));
  await expectSoon(() => page.locator(':focus[role="treeitem"]').getAttribute("data-path"), `${ROOT}/image`);

  await preview(page).getByText("Rooms above the boats.").click();
  await expectSoon(() => selected(page).getAttribute("data-path"), `${ROOT}/columns/teaser2`);
  const grip = await page.locator(".grip").boundingBox();
  const target = await page.locator("iframe").evaluate((frame) => {
    const rect = frame.getBoundingClientRect();
    const one = frame.contentDocument.querySelector("h1").getBoundingClientRect();
    return { x: rect.x + one.x + 40, y: rect.y + one.y + 6 };
  });
  await page.mouse.move(grip.x + 8, grip.y + 8);
  await page.mouse.down();
  await page.mouse.move(target.x, target.y, { steps: 5 });
  await page.locator(".drop").waitFor();
  await page.mouse.up();
  await until(() => names(state, ROOT)[0] === "teaser2");
  await undo(page);
  await until(() => names(state, `${ROOT}/columns`).includes("teaser2"));
}

export async function components_are_copied_cut_pasted_and_doubled(world) {
  const { page, state } = world;
  await openSaving(world, at(`${ROOT}/columns/teaser`));
  await selected(page).focus();
  await page.keyboard.press("Control+d");
  await until(() => names(state, `${ROOT}/columns`)[1] === "teaser_0");
  await expectSoon(() => page.locator(':focus[role="treeitem"]').getAttribute("data-path"), `${ROOT}/columns/teaser_0`);
  await page.keyboard.press("Control+x");
  await item(page, "Slow days").click();
  await item(page, "Slow days").press("Control+v");
  await until(() => names(state, ROOT)[1] === "teaser_0");
  assert.deepEqual(names(state, `${ROOT}/columns`), ["teaser", "teaser2", "embed"]);
}

export async function the_preview_can_be_skipped_and_the_editor_is_accessible(world) {
  const { page } = world;
  await openSaving(world, at(`${ROOT}/columns/teaser`));
  await page.getByRole("textbox", { name: "Text" }).waitFor();
  await page.getByRole("link", { name: "Skip the preview" }).focus();
  await page.keyboard.press("Enter");
  await page.locator('[role="tab"]:focus').waitFor();
  await expectAccessible(page, "the editor with its tools");
}

export async function edits_are_redone_by_the_button_too(world) {
  const { page, state } = world;
  await openSaving(world, at(`${ROOT}/title`));
  await page.getByLabel("Title").fill("Once");
  await saved(page);
  await undo(page);
  await until(() => nodeAt(state, `${ROOT}/title`).properties["jcr:title"] !== "Once");
  await redo(page);
  await until(() => nodeAt(state, `${ROOT}/title`).properties["jcr:title"] === "Once");
  await page.getByText("Redone: Title", { exact: false }).waitFor();
}

export async function who_else_has_the_page_open_is_shown(world) {
  const { page, state } = world;
  state.editors = [
    { user: "bea", since: new Date().toISOString() },
    { user: "admin", since: new Date().toISOString() },
  ];
  await openSaving(world, ADDRESS);
  await page.getByText("Also here: bea and you in another tab").waitFor();
}
