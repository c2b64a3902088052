/** The page editor. */
import assert from "node:assert/strict";
import { expectSoon, lastSave, open } from "../harness.mjs";

const PAGE = "/content/demo/en/trieste";
const ADDRESS = `/editor.html${PAGE}.html`;
const ROOT = `${PAGE}/jcr:content/root`;
const at = (component) => `${ADDRESS}?component=${encodeURIComponent(component)}`;
const preview = (page) => page.frameLocator("iframe");
const item = (page, name) => page.getByRole("treeitem", { name });
const save = (page) => page.getByRole("button", { name: "Save", exact: true }).click();

const savedText = (state) => lastSave(state)[0].patch.properties.text;

export async function page_properties_are_saved_with_what_was_changed(world) {
  const { page, state } = world;
  await open(world, ADDRESS);
  await page.getByLabel("Title").fill("Slower days");
  await page.getByLabel("Hide in navigation").check();
  await page.getByLabel("Add a tag by its id").fill("travel:sea");
  await page.keyboard.press("Enter");
  await page.keyboard.press("Control+s");
  await page.getByText("Page: Title, Tags, Hide in navigation").waitFor();
  await page.getByText("All changes saved").waitFor();
  const properties = {
    "jcr:title": "Slower days",
    "cq:tags": { type: "String", values: ["travel:coast", "travel:slow", "travel:sea"] },
    hideInNav: { type: "Boolean", value: true },
  };
  assert.deepEqual(lastSave(state), [{ op: "patch", path: `${PAGE}/jcr:content`, patch: { properties } }]);
  await page.getByRole("heading", { name: "Slower days" }).waitFor();
}

export async function a_required_field_and_a_range_are_checked_before_saving(world) {
  const { page, state } = world;
  await open(world, ADDRESS);
  await page.getByLabel("Title").fill("");
  await save(page);
  await page.getByText("Title is required.").waitFor();
  await expectSoon(() => page.getByLabel("Title").evaluate((input) => input === document.activeElement), true);
  await page.getByRole("button", { name: "Discard" }).click();

  await page.goto(world.origin + at(`${ROOT}/image`));
  await page.getByRole("tab", { name: "Layout" }).click();
  await page.getByLabel("Width in pixels").fill("5000");
  await page.getByRole("tab", { name: "Image" }).click();
  await save(page);
  await page.getByText("Width in pixels must be between 100 and 2000.").waitFor();
  await expectSoon(() => page.getByLabel("Width in pixels").evaluate((input) => input === document.activeElement), true);
  assert.equal(state.writes.length, 0);
  await page.getByLabel("Width in pixels").fill("500");
  await page.getByText("must be between").waitFor({ state: "detached" });
  await page.getByRole("button", { name: "Discard" }).click();
}

export async function a_click_in_the_preview_selects_the_component(world) {
  const { page } = world;
  await open(world, ADDRESS);
  await preview(page).getByText("Rooms above the boats.").click();
  await item(page, "Where to sleep").and(page.locator('[aria-selected="true"]')).waitFor();
  await expectSoon(() => page.getByLabel("Title").inputValue(), "Where to sleep");
  assert.ok(page.url().includes(encodeURIComponent(`${ROOT}/columns/teaser2`)));
  await expectSoon(() => page.locator(".outline.selected .tag").innerText(), "Teaser “Where to sleep”");
  await preview(page).getByRole("link", { name: "Elsewhere" }).click();
  await preview(page).getByText("Rooms above the boats.").waitFor();
}

export async function a_saved_component_shows_in_the_preview(world) {
  const { page } = world;
  await open(world, at(`${ROOT}/title`));
  await page.getByLabel("Title").fill("A new headline");
  await save(page);
  await preview(page).getByRole("heading", { name: "A new headline" }).waitFor();
  await page.getByText("Title “Slow days on the Gulf of Trieste”: Title").waitFor();
}

export async function drafts_survive_going_from_component_to_component(world) {
  const { page, state } = world;
  await open(world, at(`${ROOT}/title`));
  await page.getByLabel("Title").fill("First draft");
  await item(page, "Where to eat").click();
  await page.getByLabel("Title").fill("Second draft");
  await page.getByRole("tab", { name: "Page", exact: true }).click();
  await page.getByText("Unsaved changes in 2 places").waitFor();
  await page.getByRole("tab", { name: /^Components/ }).click();
  await item(page, "Slow days").click();
  await expectSoon(() => page.getByLabel("Title").inputValue(), "First draft");
  await page.keyboard.press("Control+s");
  await page.getByText("All changes saved").waitFor();
  assert.deepEqual(
    lastSave(state).map(({ path }) => path),
    [`${ROOT}/title`, `${ROOT}/columns/teaser`],
  );
  assert.equal(state.writes.length, 1, "one commit for both");
}

export async function leaving_with_unsaved_changes_is_asked(world) {
  const { page } = world;
  await open(world, "/sites.html/content/demo/en");
  await page.getByRole("link", { name: "Slow days" }).click();
  // The list has labels of its own with "title" in them, and stays until the editor is there.
  await page.getByRole("grid").waitFor({ state: "detached" });
  await page.getByLabel("Title").fill("Not saved");
  await page.getByRole("link", { name: "Queue" }).click();
  await page.getByRole("dialog", { name: "Leave without saving?" }).getByRole("button", { name: "Cancel" }).click();
  await expectSoon(() => page.getByLabel("Title").inputValue(), "Not saved");
  await page.goBack();
  await page.getByRole("button", { name: "Leave without saving" }).click();
  await page.getByRole("grid").waitFor();
}

export async function a_refused_save_shows_the_servers_words_and_keeps_the_draft(world) {
  const { page, state } = world;
  await open(world, ADDRESS);
  await page.getByLabel("Title").fill("Refused");
  state.failNext = "`jcr:title` may not be longer than 6 characters at `/content/demo/en/trieste`";
  await save(page);
  await page.getByText("`jcr:title` may not be longer than 6 characters at `/content/demo/en/trieste`", { exact: true }).waitFor();
  await expectSoon(() => page.getByLabel("Title").inputValue(), "Refused");
  await page.getByText("Unsaved changes").first().waitFor();
  await page.getByRole("button", { name: "Discard" }).click();
}

export async function what_is_typed_while_a_save_runs_is_kept(world) {
  const { page } = world;
  await open(world, ADDRESS);
  let release = () => {};
  const held = new Promise((resolve) => (release = resolve));
  await page.route("**/api/v1/batch", async (route) => {
    await held;
    await route.continue();
  });
  await page.getByLabel("Title").fill("One");
  await save(page);
  await page.getByText("Saving…").waitFor();
  await page.getByLabel("Title").fill("One and two");
  release();
  await page.getByText("Page: Title", { exact: true }).waitFor();
  await expectSoon(() => page.getByLabel("Title").inputValue(), "One and two");
  await page.getByText("Unsaved changes", { exact: true }).first().waitFor();
  await page.getByRole("button", { name: "Discard" }).click();
  await expectSoon(() => page.getByLabel("Title").inputValue(), "One");
}

export async function components_are_added_moved_and_deleted(world) {
  const { page, state } = world;
  await open(world, at(`${ROOT}/title`));
  await page.getByRole("button", { name: "Add" }).click();
  const dialog = page.getByRole("dialog", { name: "Add component" });
  await dialog.getByRole("searchbox").fill("teas");
  await dialog.getByText("Teaser", { exact: true }).click();
  await dialog.getByRole("button", { name: "Add Teaser" }).click();
  await page.getByText("Added Teaser").waitFor();
  const teaser = { type: "nt:unstructured", properties: { "sling:resourceType": "demo/components/teaser" } };
  assert.deepEqual(lastSave(state), [
    { op: "patch", path: ROOT, patch: {} },
    { op: "put", path: `${ROOT}/teaser`, node: teaser },
    { op: "order", path: `${ROOT}/teaser`, place: "after", sibling: "title" },
  ]);
  const added = page.locator('[role="treeitem"][aria-selected="true"]');
  await expectSoon(() => added.getAttribute("aria-posinset"), "2");
  await page.getByRole("button", { name: "Move down" }).click();
  await page.locator('[role="treeitem"][aria-selected="true"][aria-posinset="3"]').waitFor();
  assert.deepEqual(lastSave(state), [{ op: "order", path: `${ROOT}/teaser`, place: "after", sibling: "intro" }]);
  await added.focus();
  await page.keyboard.press("Alt+ArrowUp");
  await page.locator('[role="treeitem"][aria-selected="true"][aria-posinset="2"]').waitFor();
  await page.getByLabel("Title").fill("a draft of what is deleted");
  await added.focus();
  await page.keyboard.press("Delete");
  await page.getByText("Deleted Teaser").waitFor();
  await page.getByText("All changes saved").waitFor();
}

export async function the_tree_is_walked_with_keys(world) {
  const { page } = world;
  await open(world, at(ROOT));
  await page.locator('[role="treeitem"][aria-selected="true"]').focus();
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowDown");
  const becomes = (path) => page.locator(`[role="treeitem"][aria-selected="true"][data-path="${path}"]:focus`).waitFor();
  await becomes(`${ROOT}/intro`);
  await page.keyboard.press("ArrowLeft");
  await becomes(ROOT);
  await page.keyboard.press("ArrowLeft");
  await expectSoon(() => page.getByRole("treeitem").count(), 1);
}

export async function a_component_without_dialog_can_be_read(world) {
  const { page } = world;
  await open(world, at(`${ROOT}/legacy`));
  await page.getByText("This component has no dialog.").waitFor();
  await page.getByText("a, b").waitFor();
}

export async function entries_of_a_list_are_changed_moved_added_and_removed_in_place(world) {
  const { page, state } = world;
  const path = `${ROOT}/slideshow`;
  await open(world, at(path));
  await page.getByRole("button", { name: "1 Twenty to seven" }).click();
  await page.getByLabel("Caption").fill("Ten to seven");
  await page.getByRole("button", { name: "1 Ten to seven" }).click();
  await page.getByRole("button", { name: "Move Slides 3 up" }).click();
  await page.getByRole("button", { name: "Remove Slides 3" }).click();
  await page.getByRole("group", { name: "Slides" }).getByRole("button", { name: "Add", exact: true }).click();
  await page.getByLabel("Caption").fill("Night");
  await save(page);
  await page.getByText("Picture is required.").waitFor();
  await page.getByRole("textbox", { name: "Picture" }).fill("/content/dam/demo/stars.jpg");
  await save(page);
  await page.getByText("Slideshow “A day in pictures”: Slides").waitFor();
  const added = { type: "nt:unstructured", properties: { caption: "Night", fileReference: "/content/dam/demo/stars.jpg" } };
  const slides = { item0: { properties: { caption: "Ten to seven" } }, item1: null, item3: added };
  assert.deepEqual(lastSave(state), [{ op: "patch", path, patch: { children: { slides: { children: slides } } } }]);
  await page.getByRole("button", { name: "Move Slides 3 up" }).click();
  await page.keyboard.press("Control+s");
  await preview(page).getByText("The last boat").waitFor();
  await page.getByText("All changes saved").waitFor();
  assert.deepEqual(lastSave(state), [
    { op: "patch", path, patch: {} },
    { op: "order", path: `${path}/slides/item3`, place: "after", sibling: "item0" },
  ]);
  await expectSoon(() => preview(page).locator("ol li").allInnerTexts(), ["Ten to seven", "Night", "The last boat"]);
}

export async function rich_text_is_written_as_clean_html(world) {
  const { page, state } = world;
  // The browser reports what the policy blocks even in the inert document that pasted HTML is cleaned in.
  world.expectedFault = /^(Executing inline event handler|Applying inline style) violates/;
  await open(world, at(`${ROOT}/columns/teaser`));
  const text = page.getByRole("textbox", { name: "Text" });
  await text.click();
  await page.keyboard.press("Control+a");
  await page.keyboard.type("Plain ");
  await page.getByRole("button", { name: "Bold" }).click();
  await page.keyboard.type("strong");
  await page.getByRole("button", { name: "Bold" }).click();
  await page.evaluate(() => {
    const data = new DataTransfer();
    data.setData(
      "text/html",
      '<p class="x" onclick="alert(1)"> and <i style="color:red">soft</i><script>alert(2)</' +
        'script><a href="javascript:alert(3)">bad</a></p>',
    );
    document.activeElement.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
  });
  await save(page);
  await page.getByText("Teaser “Where to eat”: Text").waitFor();
  const html = savedText(state).replace(/\s+/g, " ");
  assert.match(html, /Plain <strong>strong<\/strong>/);
  assert.match(html, /<em>soft<\/em>bad/);
  assert.doesNotMatch(html, /class=|style=|on\w+=|script/);
}

export async function rich_text_takes_links(world) {
  const { page, state } = world;
  await open(world, at(`${ROOT}/columns/teaser`));
  await page.getByRole("textbox", { name: "Text" }).click();
  await page.keyboard.press("Control+a");
  await page.getByRole("button", { name: "Link", exact: true }).click();
  const dialog = page.getByRole("dialog", { name: "Link" });
  await dialog.getByRole("textbox").fill("javascript:alert(1)");
  await dialog.getByRole("button", { name: "Set link" }).click();
  await dialog.getByText("Only http, https, mailto and tel links are allowed.").waitFor();
  await dialog.getByRole("textbox").fill("/content/demo/en/food.html");
  await dialog.getByRole("button", { name: "Set link" }).click();
  await save(page);
  await page.getByText("Teaser “Where to eat”: Text").waitFor();
  assert.match(savedText(state), /<a href="\/content\/demo\/en\/food\.html">Three kitchens without a menu\.<\/a>/);
}

export async function rich_text_with_other_markup_is_edited_as_source(world) {
  const { page, state } = world;
  await open(world, at(`${ROOT}/columns/embed`));
  const source = page.getByRole("textbox", { name: "Text" });
  await expectSoon(() => source.inputValue(), /<table class="times">/);
  await source.fill((await source.inputValue()).replace("9:10", "9:40"));
  await save(page);
  await page.getByText("Text: Text").waitFor();
  assert.equal(savedText(state), '<table class="times"><tbody><tr><td>Muggia</td><td>9:40</td></tr></tbody></table>');
}

export async function activating_saves_first(world) {
  const { page, state } = world;
  await open(world, ADDRESS);
  await page.getByLabel("Title").fill("Saved and activated");
  await page.getByRole("button", { name: "Publish", exact: true }).click();
  await page.getByRole("button", { name: "Save and publish" }).click();
  await page.getByText("Publishing started for “Saved and activated”").waitFor();
  await page.locator(".what").getByText("Live", { exact: true }).waitFor();
  assert.deepEqual(
    state.writes.map(({ path }) => path),
    ["/api/v1/batch", "/api/v1/replication"],
  );
}

export async function a_path_is_chosen_by_walking(world) {
  const { page } = world;
  await open(world, at(`${ROOT}/columns/teaser`));
  await page.getByRole("button", { name: "Choose a path" }).click();
  const picker = page.getByRole("dialog", { name: "Choose a path" });
  await picker.getByText("Where to eat").waitFor();
  await picker.getByText("The long way over the Alps").click();
  await picker.getByRole("button", { name: "Use this path" }).click();
  await expectSoon(() => page.getByRole("textbox", { name: "Link" }).inputValue(), "/content/demo/en/alps");
  await page.getByRole("button", { name: "Discard" }).click();
}

export async function a_picker_opens_where_and_for_what_the_dialog_says(world) {
  const { page } = world;
  await open(world, ADDRESS);
  await page.getByRole("tab", { name: "Publication" }).click();
  await page.getByRole("button", { name: "Choose a page" }).click();
  const picker = page.getByRole("dialog", { name: "Choose a page" });
  // The field is empty, so that the root of the dialog is shown: its pages, and neither assets nor tags.
  await picker.getByText("Where to eat").waitFor();
  await expectSoon(() => picker.getByText("harbor.jpg").count(), 0);
  await picker.getByText("The long way over the Alps").click();
  await picker.getByRole("button", { name: "Use this path" }).click();
  await expectSoon(() => page.getByRole("textbox", { name: "Redirect to" }).inputValue(), "/content/demo/en/alps");
  await page.getByRole("button", { name: "Discard" }).click();
}

export async function the_preview_takes_the_width_of_a_device(world) {
  const { page } = world;
  await open(world, ADDRESS);
  await preview(page).getByText("Tidewater Magazine").waitFor();
  const becomes = (width) => page.frames()[1].waitForFunction((wanted) => innerWidth === wanted, width);
  await page.locator('.devices label[title^="Phone"]').click();
  await becomes(390);
  await page.locator('.devices label[title^="Desktop"]').click();
  await becomes(1280);
  await preview(page).getByText("Rooms above the boats.").click();
  await item(page, "Where to sleep").and(page.locator('[aria-selected="true"]')).waitFor();
}

export async function a_page_that_is_not_there_says_so(world) {
  const { page } = world;
  await open(world, "/editor.html/content/demo/nowhere.html");
  await page.getByText("there is no node at `/content/demo/nowhere`", { exact: true }).waitFor();
}
