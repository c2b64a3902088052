/** The daily tasks with the keyboard alone: no test here touches the mouse. */
import assert from "node:assert/strict";
import { openSaving, until } from "../harness.mjs";

const PAGE = "/content/demo/en/trieste";
const EDITOR = `/editor.html${PAGE}.html`;
const ROOT = `${PAGE}/jcr:content/root`;
const at = (component) => `${EDITOR}?component=${encodeURIComponent(component)}`;
/** More than the controls of any screen. */
const MOST_TABS = 120;

const valueAt = (state, path, name) => path.split("/").filter(Boolean).reduce((one, part) => one?.children.get(part), state.root)?.properties[name];

/** Presses Tab until an element has the focus. */
async function tabTo(page, locator, key = "Tab") {
  await locator.first().waitFor({ state: "attached" });
  const focused = locator.and(page.locator(":focus"));
  for (let pressed = 0; pressed < MOST_TABS; pressed += 1) {
    if ((await focused.count()) > 0) return;
    await page.keyboard.press(key);
  }
  assert.fail(`${locator} cannot be reached with ${key}`);
}

/** Reaches a control with Tab and presses Enter on it. */
async function press(page, locator) {
  await locator.and(page.locator(":enabled, a")).first().waitFor();
  await tabTo(page, locator);
  await page.keyboard.press("Enter");
}

const button = (page, name) => page.getByRole("button", { name, exact: true });
const dialog = (page) => page.getByRole("dialog");

export async function keys_create_an_article_from_its_template(world) {
  const { page } = world;
  await openSaving(world, "/sites.html/content/demo/en");
  await page.getByText("Slow days").waitFor();
  await press(page, button(page, "Create page"));
  await tabTo(page, dialog(page).getByRole("textbox", { name: "Title" }));
  await page.keyboard.type("Night trains");
  await page.keyboard.press("Enter");
  await page.getByRole("row").filter({ hasText: "Night trains" }).getByText("Draft").waitFor();
}

export async function keys_write_a_text_with_a_link_and_a_list(world) {
  const { page, state } = world;
  await openSaving(world, at(`${ROOT}/intro`));
  await tabTo(page, page.getByRole("textbox", { name: "Text" }));
  await page.keyboard.press("Control+a");
  await page.keyboard.press("Delete");
  await page.keyboard.type("- By ferry");
  await page.keyboard.press("Control+a");
  await page.keyboard.press("Control+k");
  await tabTo(page, dialog(page).getByRole("textbox"));
  await page.keyboard.type("/content/demo/en/alps");
  await page.keyboard.press("Enter");
  await until(() => /<ul><li>(<p>)?<a href="\/content\/demo\/en\/alps.html">By ferry<\/a>/.test(valueAt(state, `${ROOT}/intro`, "text")));
}

export async function keys_put_a_picture_from_the_disk_on_the_page(world) {
  const { page, state } = world;
  await openSaving(world, at(`${ROOT}/image`));
  await press(page, button(page, "Choose a picture or file"));
  const waiting = page.waitForEvent("filechooser");
  await press(page, button(page, "Upload from disk"));
  await (await waiting).setFiles([{ name: "pier.png", mimeType: "image/png", buffer: Buffer.from("picture pier.png") }]);
  await until(() => valueAt(state, `${ROOT}/image`, "fileReference") === "/content/dam/demo/pier.png");
}

export async function keys_show_the_page_as_on_a_phone(world) {
  const { page } = world;
  await openSaving(world, EDITOR);
  await page.frameLocator("iframe").getByText("Tidewater Magazine").waitFor();
  await tabTo(page, page.locator(".devices input"));
  for (let step = 0; step < 3; step += 1) await page.keyboard.press("ArrowRight");
  await page.frames()[1].waitForFunction(() => innerWidth === 390);
}

export async function keys_publish_a_page_now_later_and_no_more(world) {
  const { page } = world;
  await openSaving(world, EDITOR);
  await page.getByLabel("Description").waitFor();
  await press(page, button(page, "Publish"));
  await page.getByText("Publishing started for").waitFor();
  await press(page, button(page, "Publish later, or unpublish"));
  await tabTo(page, dialog(page).getByRole("radio"));
  await page.keyboard.press("ArrowRight");
  await press(page, dialog(page).getByRole("button", { name: "Schedule" }));
  await page.getByText("will be published on").waitFor();
  await press(page, button(page, "Publish later, or unpublish"));
  await press(page, dialog(page).getByRole("button", { name: "Unpublish" }));
  await page.getByText("Unpublishing started for").waitFor();
}

export async function keys_restore_an_older_version(world) {
  const { page } = world;
  await openSaving(world, EDITOR);
  await press(page, page.getByRole("link", { name: /^Modified/ }));
  await press(page, page.getByRole("listitem").filter({ hasText: "grace: activated" }).getByRole("button", { name: "Restore" }));
  await press(page, dialog(page).getByRole("button", { name: "Restore" }));
  await page.getByText("Restored version 1.0").waitFor();
}

export async function keys_find_a_page_and_open_it(world) {
  const { page } = world;
  await openSaving(world, "/sites.html/content/demo/en");
  await page.getByText("Slow days").waitFor();
  await press(page, page.getByRole("banner").getByRole("link", { name: "Search" }));
  await page.getByRole("combobox", { name: "Search for" }).and(page.locator(":focus")).waitFor();
  await page.keyboard.type("ferry");
  await page.keyboard.press("Enter");
  await press(page, page.getByRole("link", { name: /Islands without cars/ }));
  await page.waitForURL(/\/editor\.html\//);
}

export async function keys_rename_a_page(world) {
  const { page } = world;
  await openSaving(world, EDITOR);
  await page.getByLabel("Description").waitFor();
  await press(page, button(page, "More actions"));
  const move = page.getByRole("menuitem", { name: "Move or rename…" });
  await tabTo(page, move, "ArrowDown");
  await page.keyboard.press("Enter");
  await tabTo(page, dialog(page).getByLabel("Name in the address"));
  await page.keyboard.press("Control+a");
  await page.keyboard.type("gulf");
  await page.keyboard.press("Enter");
  await page.waitForURL(/editor\.html\/content\/demo\/en\/gulf\.html/);
}
