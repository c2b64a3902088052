/** The sites console. */
import assert from "node:assert/strict";
import { expectAccessible, expectSoon, lastCall, lastWrite, open, shoot, until } from "../harness.mjs";

const EN = "/sites.html/content/demo/en";
const rows = (page) => page.locator('[role="rowgroup"] [role="row"]');
const row = (page, name) => rows(page).filter({ hasText: name });

export async function pages_are_listed_with_their_status(world) {
  const { page } = world;
  await open(world, EN);
  await page.getByRole("heading", { name: "English" }).waitFor();
  await expectSoon(() => rows(page).count(), 8);
  await row(page, "Slow days").getByText("Modified", { exact: true }).waitFor();
  await row(page, "Slow days").getByText("ada", { exact: true }).waitFor();
  await row(page, "Rooms above").getByText("Failed", { exact: true }).waitFor();
  await page.getByRole("navigation", { name: "Breadcrumb" }).getByRole("link", { name: "Tidewater Magazine" }).click();
  await page.getByRole("heading", { name: "Tidewater Magazine" }).waitFor();
  await page.goBack();
  await page.getByRole("heading", { name: "English" }).waitFor();
}

export async function titles_open_the_editor_and_arrows_the_pages_below(world) {
  const { page } = world;
  await open(world, "/sites.html/content/demo");
  await page.getByRole("link", { name: "Pages below English" }).click();
  await page.getByRole("link", { name: "Where to eat" }).click();
  await page.waitForURL(/\/editor\.html\/content\/demo\/en\/food\.html$/);
  await page.getByRole("link", { name: "Back to Sites" }).click();
  await page.waitForURL(/\/sites\.html\/content\/demo\/en$/);
}

export async function rows_are_filtered_and_sorted(world) {
  const { page } = world;
  await open(world, EN);
  await rows(page).first().waitFor();
  await page.keyboard.press("/");
  await page.keyboard.type("where eat");
  await page.getByText("1 of 8").waitFor();
  await expectSoon(() => rows(page).count(), 1);
  await page.getByRole("searchbox").fill("zzz");
  await page.getByRole("button", { name: "Clear filter" }).click();
  await page.getByRole("button", { name: "Title" }).click();
  await page.locator('[role="columnheader"][aria-sort="ascending"]').waitFor();
  await expectSoon(() => rows(page).first().innerText(), /^A page with/);
  await page.getByRole("button", { name: "Title" }).click();
  await expectSoon(() => rows(page).first().innerText(), /^Winter/);
}

export async function thousands_of_rows_are_read_and_drawn_in_parts(world) {
  const { page } = world;
  const asked = [];
  page.on("request", (request) => /\/api\/v1\/(pages|reads)/.test(request.url()) && asked.push(request.url()));
  await open(world, `${EN}/archive`);
  await row(page, "story-0001").waitFor();
  assert.equal(asked.length, 1);
  assert.ok((await rows(page).count()) < 100);
  await page.evaluate(() => scrollTo(0, 5600));
  await row(page, "story-0105").waitFor();
  assert.equal(asked.length, 2, "one request for the rows below, not for all of them");
  await page.evaluate(() => scrollTo(0, document.body.scrollHeight));
  await row(page, "story-2500").waitFor();
  assert.ok(asked.length <= 4, `the end is one request away, not ${asked.length}`);
  await page.getByRole("button", { name: "Title" }).click();
  await page.getByText("2,500 entries").waitFor();
  await rows(page).first().focus();
  await page.keyboard.press("End");
  await row(page, "story-2500").waitFor();
  await page.waitForFunction(() => document.activeElement?.getAttribute("aria-rowindex") === "2501");
  assert.ok((await rows(page).count()) < 100, `${await rows(page).count()} rows in the document`);
}

export async function a_long_list_is_sorted_by_the_server_and_filtered_here(world) {
  const { page } = world;
  const asked = [];
  page.on("request", (request) => /\/api\/v1\/(pages|reads)/.test(request.url()) && asked.push(new URL(request.url()).searchParams));
  await open(world, `${EN}/archive`);
  await row(page, "story-0001").waitFor();
  await page.getByRole("button", { name: "Modified" }).click();
  await row(page, "story-2500").waitFor();
  assert.equal(asked.at(-1).get("sort"), "modified");
  await page.getByRole("button", { name: "Modified" }).click();
  await row(page, "story-0001").waitFor();
  await page.keyboard.press("/");
  await page.keyboard.type("story 1234");
  await page.getByText("1 of 2,500").waitFor();
  await row(page, "story-1234").waitFor();
}

export async function the_list_follows_what_others_do(world) {
  const { page, mock, state } = world;
  await open(world, EN);
  await rows(page).first().waitFor();
  await until(() => state.clients.size === 1);
  mock.editAs("bea", "/content/demo/en/food/jcr:content", { "jcr:title": "Where Bea eats" });
  await row(page, "Where Bea eats").waitFor();
  mock.removeAs("bea", "/content/demo/en/winter");
  await page.getByText("7 entries").waitFor();
}

export async function keys_move_select_and_open(world) {
  const { page } = world;
  await open(world, EN);
  await rows(page).first().focus();
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("Shift+ArrowDown");
  await page.getByText("2 selected").waitFor();
  await page.keyboard.press("Escape");
  await page.getByText("8 entries").waitFor();
  await page.keyboard.press("ArrowUp");
  await page.keyboard.press("Enter");
  await page.waitForURL(/\/editor\.html\/content\/demo\/en\/alps\.html$/);
}

export async function arrows_lead_down_and_back_up_without_losing_the_row(world) {
  const { page } = world;
  await open(world, EN);
  await row(page, "Archive").focus();
  await page.keyboard.press("ArrowRight");
  await row(page, "story-0001").and(page.locator(":focus")).waitFor();
  await page.keyboard.press("ArrowLeft");
  await row(page, "Archive").and(page.locator(":focus")).waitFor();
}

export async function activation_is_followed_until_the_page_is_live(world) {
  const { page, state } = world;
  await open(world, EN);
  await row(page, "Where to eat").getByRole("checkbox").check();
  await page.getByRole("button", { name: "Publish", exact: true }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Publish", exact: true }).click();
  await page.getByText("Publishing started for “Where to eat”").waitFor();
  await row(page, "Where to eat").getByText("Live", { exact: true }).waitFor();
  assert.deepEqual(lastWrite(state), { path: "/content/demo/en/food", form: { ":operation": "activate", ":deep": "false" } });
}

export async function pages_are_published_after_the_pictures_that_they_need(world) {
  const { page, state } = world;
  const picture = { path: "/content/dam/demo/harbor.jpg", title: "The harbor", status: "never", kind: "asset", ticked: true, allowed: true, referrer: `${EN}/food` };
  const tag = { ...picture, path: "/content/cq:tags/travel/coast", title: "Coast", kind: "tag" };
  state.companions = [picture, tag, { ...picture, path: "/conf/demo/template", kind: "template", title: null, allowed: false }, { ...tag, path: "/content/dam/demo/old.jpg", status: "live", ticked: false }];
  await open(world, EN);
  await row(page, "Where to eat").getByRole("checkbox").check();
  await row(page, "Winter at").getByRole("checkbox").check();
  await page.getByRole("button", { name: "Publish", exact: true }).click();
  const dialog = page.getByRole("dialog", { name: "Publish 2 pages" });
  await expectSoon(() => dialog.getByRole("checkbox", { name: /harbor|Coast/ }).evaluateAll((all) => all.map((one) => one.checked)), [true, true]);
  await expectSoon(() => dialog.getByRole("checkbox", { name: /template/ }).isDisabled(), true);
  await expectSoon(() => dialog.getByText("old.jpg").count(), 0);
  await expectAccessible(page, "the publication of pages");
  await shoot(page, "sites-publish-companions");
  await dialog.getByRole("checkbox", { name: /Coast/ }).uncheck();
  await dialog.getByRole("button", { name: "Publish with 1 item" }).click();
  await page.getByText("Publishing started for 2 pages").waitFor();
  const published = state.writes.map(({ path, body, form }) => body?.paths?.join() ?? (form?.get?.(":operation") ? path : form && path)).filter(Boolean);
  assert.deepEqual(published, [picture.path, "/content/demo/en/food", "/content/demo/en/winter"]);
}

export async function activation_can_take_the_pages_below(world) {
  const { page, state } = world;
  await open(world, EN);
  await row(page, "Archive").getByRole("checkbox").check();
  await page.getByRole("button", { name: "Publish", exact: true }).click();
  await page.getByLabel("Also publish all pages below").check();
  await page.getByRole("dialog").getByRole("button", { name: "Publish", exact: true }).click();
  await page.getByText("Publishing started for “Archive”").waitFor();
  assert.equal(lastWrite(state).form[":deep"], "true");
}

export async function a_refused_page_stays_selected_with_the_servers_words(world) {
  const { page, state } = world;
  await open(world, EN);
  await row(page, "Slow days").getByRole("checkbox").check();
  await row(page, "Rooms above").getByRole("checkbox").check();
  state.failNext = "disk full: 12 KiB left in `store/`";
  await page.getByRole("button", { name: "Unpublish" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Unpublish" }).click();
  await page.getByText("Slow days on the Gulf of Trieste: disk full: 12 KiB left in `store/`").waitFor();
  await page.getByText("1 selected").waitFor();
  await row(page, "Rooms above").getByText("Unpublished").waitFor();
}

export async function a_page_is_created_from_a_title(world) {
  const { page, state } = world;
  await open(world, EN);
  await page.getByRole("button", { name: "Create page" }).click();
  const dialog = page.getByRole("dialog", { name: "Create page" });
  await dialog.getByRole("button", { name: "Create" }).click();
  await dialog.getByText("Enter a title.").waitFor();
  await dialog.getByRole("textbox", { name: "Title" }).fill("Alps");
  await dialog.getByText("A page named `alps` already exists here.").waitFor();
  await dialog.getByRole("textbox", { name: "Title" }).fill("Über the Hills");
  await expectSoon(() => dialog.getByLabel("Name").inputValue(), "ueber-the-hills");
  await page.keyboard.press("Enter");
  await row(page, "Über the Hills").getByText("Draft").waitFor();
  const at = "/content/demo/en/ueber-the-hills";
  const properties = { "jcr:title": "Über the Hills", "cq:template": "/apps/demo/templates/story" };
  const { verb, query, body } = lastCall(state);
  assert.deepEqual([verb, query.path], ["PUT", at]);
  assert.deepEqual(body, { type: "cq:Page", children: { "jcr:content": { type: "cq:PageContent", properties } } });
  await page.getByRole("link", { name: "Über the Hills" }).click();
  await page.frameLocator("iframe").getByText("Begin here.").waitFor();
}

export async function only_allowed_templates_are_offered_with_a_preview(world) {
  const { page } = world;
  await open(world, EN);
  await page.getByRole("button", { name: "Create page" }).click();
  const dialog = page.getByRole("dialog", { name: "Create page" });
  await dialog.getByRole("group", { name: "Preview of Story" }).getByText("text", { exact: true }).waitFor();
  await expectSoon(() => dialog.getByRole("radio").count(), 1);
  await page.goto(`${world.origin}/sites.html/content/empty`);
  await page.getByRole("button", { name: "Create page" }).first().click();
  await page.getByText("No template is allowed here.").waitFor();
  await page.getByRole("button", { name: "Create", exact: true }).and(page.locator(":disabled")).waitFor();
}

export async function a_page_in_an_empty_section_takes_the_parents_template(world) {
  const { page, state } = world;
  state.root.children.delete("apps");
  await open(world, "/sites.html/content/empty");
  await page.getByText("Nothing here yet").waitFor();
  await page.getByRole("button", { name: "Create page" }).first().click();
  await page.getByRole("textbox", { name: "Title" }).fill("First");
  await page.getByRole("dialog").getByRole("button", { name: "Create", exact: true }).click();
  await row(page, "First").waitFor();
  assert.equal(lastCall(state).body.children["jcr:content"].properties["sling:resourceType"], "demo/components/page");
}

export async function pages_are_renamed_moved_and_copied(world) {
  const { page, state } = world;
  await open(world, EN);
  await row(page, "Where to eat").getByRole("checkbox").check();
  await page.getByRole("button", { name: "Move or rename" }).click();
  const dialog = page.getByRole("dialog", { name: "Move or rename page" });
  await dialog.getByLabel("Name").fill("alps");
  await dialog.getByRole("button", { name: "Move" }).click();
  await dialog.getByText("there is a node `/content/demo/en/alps` already; nothing was moved", { exact: true }).waitFor();
  await dialog.getByLabel("Name").fill("kitchens");
  await dialog.getByRole("button", { name: "Move" }).click();
  await row(page, "kitchens").waitFor();

  await row(page, "kitchens").getByRole("checkbox").check();
  await page.getByRole("button", { name: "Copy" }).click();
  await page.getByRole("button", { name: "Choose" }).click();
  const picker = page.getByRole("dialog", { name: "Choose a path" });
  await picker.getByRole("button", { name: "One level up" }).click();
  await picker.getByText("Deutsch").click();
  await picker.getByRole("button", { name: "Use this path" }).click();
  await page.getByRole("dialog", { name: "Copy page" }).getByRole("button", { name: "Copy" }).click();
  await page.getByText("Copied “Where to eat” to /content/demo/de/kitchens-copy").waitFor();
  assert.equal(lastCall(state).path, "/api/v1/nodes/copy");
  assert.deepEqual(lastCall(state).body, { from: "/content/demo/en/kitchens", to: "/content/demo/de/kitchens-copy" });
}

export async function deleting_asks_first(world) {
  const { page, state } = world;
  await open(world, EN);
  await row(page, "Winter").getByRole("checkbox").check();
  await page.getByRole("button", { name: "Delete" }).click();
  await page.getByRole("dialog").getByText("/content/demo/en/winter").waitFor();
  await page.keyboard.press("Escape");
  assert.equal(state.writes.length, 0);
  await page.getByRole("button", { name: "Delete" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await page.getByText("Deleted “Winter at the lake”").waitFor();
  await expectSoon(() => row(page, "Winter").count(), 0);
}

export async function what_is_about_to_be_deleted_or_moved_tells_where_it_is_used(world) {
  const { page } = world;
  await open(world, EN);
  await row(page, "Where to eat").getByRole("checkbox").check();
  await page.getByRole("button", { name: "Delete" }).click();
  await page.getByRole("dialog").getByText("Used in 1 place").waitFor();
  await page.getByRole("dialog").getByRole("link", { name: "/content/demo/en/trieste" }).waitFor();
  await page.keyboard.press("Escape");
  await page.getByRole("button", { name: "Move or rename" }).click();
  await page.getByRole("dialog").getByText("will be updated").waitFor();
  await page.getByRole("dialog").getByRole("checkbox", { name: "Update the references" }).uncheck();
  await page.getByRole("dialog").getByText("will still point to the old path").waitFor();
  await page.keyboard.press("Escape");
  await row(page, "Where to eat").getByRole("checkbox").uncheck();
  await row(page, "Winter").getByRole("checkbox").check();
  await page.getByRole("button", { name: "Delete" }).click();
  await page.getByRole("dialog").getByText("No references found.").waitFor();
}

export async function deleted_pages_come_back_from_their_folder(world) {
  const { page, state } = world;
  await open(world, EN);
  await page.getByRole("button", { name: "More about this folder" }).click();
  await page.getByRole("menuitem", { name: "Restore deleted pages" }).click();
  const dialog = page.getByRole("dialog", { name: "Restore deleted pages" });
  await dialog.getByText("last version 1.1").waitFor();
  await dialog.getByLabel("Version of /content/demo/en/autumn").selectOption("1.0");
  await dialog.getByRole("button", { name: "Restore /content/demo/en/autumn" }).click();
  await dialog.getByText("Nothing to restore").waitFor();
  assert.deepEqual(lastCall(state).body, { path: "/content/demo/en/autumn", version: "1.0" });
}

export async function rows_are_ordered_by_keys_and_by_drag(world) {
  const { page, state } = world;
  await open(world, EN);
  await row(page, "The long way").focus();
  await page.keyboard.press("Alt+ArrowDown");
  await page.getByText("The long way over the Alps is now at position 3 of 8").waitFor();
  assert.deepEqual(lastCall(state).body, { path: "/content/demo/en/alps", place: "before", sibling: "hotels" });
  await row(page, "The long way").and(page.locator(":focus")).waitFor();
  await row(page, "Winter").dragTo(row(page, "Slow days"), { targetPosition: { x: 300, y: 6 } });
  await page.getByText("Winter at the lake is now at position 1 of 8").waitFor();
  assert.deepEqual(lastCall(state).body, { path: "/content/demo/en/winter", place: "before", sibling: "trieste" });
}

export async function several_pages_are_moved_at_once(world) {
  const { page, state } = world;
  await open(world, EN);
  await row(page, "Where to eat").getByRole("checkbox").check();
  await row(page, "Rooms above").getByRole("checkbox").check();
  await page.getByRole("button", { name: "Move", exact: true }).click();
  const dialog = page.getByRole("dialog", { name: "Move 2 pages" });
  await dialog.getByText("Used in 1 place.").waitFor();
  await dialog.getByLabel("To folder").fill("/content/demo/de");
  await dialog.getByRole("button", { name: "Move", exact: true }).click();
  await page.getByText("Moved 2 pages").waitFor();
  await page.getByText("6 entries").waitFor();
  const moves = state.writes.filter(({ path }) => path === "/api/v1/nodes/move").map(({ body }) => body);
  assert.deepEqual(moves, [
    { from: "/content/demo/en/food", to: "/content/demo/de/food", rewrite: true },
    { from: "/content/demo/en/hotels", to: "/content/demo/de/hotels", rewrite: true },
  ]);
}

export async function properties_of_several_pages_are_changed_together(world) {
  const { page, state } = world;
  await open(world, EN);
  await row(page, "Where to eat").getByRole("checkbox").check();
  await row(page, "Rooms above").getByRole("checkbox").check();
  await page.getByRole("button", { name: "Properties" }).click();
  const dialog = page.getByRole("dialog", { name: "Properties of 2 pages" });
  await dialog.getByRole("button", { name: "Choose" }).first().click();
  const picker = page.getByRole("dialog", { name: "Choose a tag" });
  await picker.getByRole("searchbox").fill("rail");
  await picker.getByRole("button", { name: /By rail/ }).dblclick();
  await dialog.getByLabel("In the navigation").selectOption("Hidden");
  await dialog.getByRole("button", { name: "Change 2 pages" }).click();
  await page.getByText("Changed 2 pages").waitFor();
  const last = lastCall(state);
  assert.deepEqual([last.verb, last.query], ["PATCH", { path: "/content/demo/en/hotels/jcr:content" }]);
  const tags = { type: "String", values: ["travel:coast", "travel:slow", "travel:rail"] };
  assert.deepEqual(last.body, { properties: { "cq:tags": tags, hideInNav: { type: "Boolean", value: true } } });
}

export async function cards_and_columns_show_the_same_pages(world) {
  const { page } = world;
  await open(world, EN);
  await page.getByRole("button", { name: "Cards" }).click();
  const cards = page.getByRole("grid", { name: "Pages" });
  await cards.getByRole("link", { name: "Where to eat" }).focus();
  await page.keyboard.press("Space");
  await page.getByText("1 selected").waitFor();
  await page.keyboard.press("Escape");
  await page.getByRole("button", { name: "Columns" }).click();
  await page.getByRole("link", { name: "Archive" }).focus();
  await page.keyboard.press("ArrowRight");
  await page.waitForURL(/\/sites\.html\/content\/demo\/en\/archive$/);
  await page.getByRole("link", { name: "Story 0001" }).and(page.locator(":focus")).waitFor();
  assert.ok((await page.getByRole("link", { name: /^Story/ }).count()) < 100, "only the rows near the window are drawn");
  await page.keyboard.press("ArrowLeft");
  await page.getByRole("link", { name: "Archive" }).and(page.locator(":focus")).waitFor();
  await page.reload();
  await page.getByRole("button", { name: "Columns", pressed: true }).waitFor();
}

export async function without_rights_no_button_can_be_pressed_in_vain(world) {
  const { page, state } = world;
  state.readOnly = ["/content/demo"];
  await open(world, EN);
  await row(page, "Where to eat").waitFor();
  const disabled = (name) => page.getByRole("button", { name, exact: true }).and(page.locator(":disabled")).waitFor();
  await disabled("Create page");
  await row(page, "Rooms above").getByRole("checkbox").check();
  for (const name of ["Publish", "Unpublish", "Move or rename", "Properties", "Delete"]) await disabled(name);
}
