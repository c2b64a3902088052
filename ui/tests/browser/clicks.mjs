/** The clicks that daily tasks take, from the screen where one begins: a test for each, which fails above the aim. */
import assert from "node:assert/strict";
import { openSaving, until } from "../harness.mjs";

const PAGE = "/content/demo/en/trieste";
const EDITOR = `/editor.html${PAGE}.html`;
const ROOT = `${PAGE}/jcr:content/root`;
const at = (component) => `${EDITOR}?component=${encodeURIComponent(component)}`;
const preview = (page) => page.frameLocator("iframe");
const button = (page, name) => page.getByRole("button", { name, exact: true });

const valueAt = (state, path, name) => path.split("/").filter(Boolean).reduce((one, part) => one?.children.get(part), state.root)?.properties[name];

/** Opens an address, does a task, and checks how often the mouse was pressed, on the previewed page too. */
async function expectClicks(world, { address, ready, task, most }) {
  const { page, context } = world;
  let clicks = 0;
  let isCounting = false;
  await context.exposeBinding("notePress", () => (clicks += isCounting ? 1 : 0));
  await context.addInitScript(() => addEventListener("pointerdown", () => globalThis.notePress(), true));
  await openSaving(world, address);
  await ready(page);
  isCounting = true;
  await task(page, world);
  console.log(`        ${clicks} of at most ${most} clicks`);
  assert.ok(clicks > 0 && clicks <= most, `${clicks} clicks, at most ${most} are allowed`);
}

export const clicks_to_create_an_article_from_its_template = (world) =>
  expectClicks(world, {
    most: 2,
    address: "/sites.html/content/demo/en",
    ready: (page) => page.getByText("Slow days").waitFor(),
    task: async (page) => {
      await button(page, "Create page").click();
      await page.getByRole("dialog").getByRole("textbox", { name: "Title" }).fill("Night trains");
      await page.getByRole("dialog").getByRole("button", { name: "Create" }).click();
      await page.getByRole("row").filter({ hasText: "Night trains" }).getByText("Draft").waitFor();
    },
  });

export const clicks_to_write_a_text_with_a_link_and_a_list = (world) =>
  expectClicks(world, {
    most: 4,
    address: at(`${ROOT}/intro`),
    ready: (page) => page.getByRole("textbox", { name: "Text" }).waitFor(),
    task: async (page, { state }) => {
      await page.getByRole("textbox", { name: "Text" }).click();
      await page.keyboard.press("Control+a");
      await page.keyboard.type("By ferry");
      await page.keyboard.press("Control+a");
      await button(page, "Bulleted list").click();
      await button(page, "Link").click();
      await page.getByRole("dialog", { name: "Link" }).getByRole("textbox").fill("/content/demo/en/alps");
      await page.getByRole("button", { name: "Set link" }).click();
      await until(() => /<ul><li>(<p>)?<a href="\/content\/demo\/en\/alps.html">By ferry<\/a>/.test(valueAt(state, `${ROOT}/intro`, "text")));
    },
  });

export const clicks_to_put_a_picture_from_the_disk_on_the_page = (world) =>
  expectClicks(world, {
    most: 3,
    address: EDITOR,
    ready: (page) => preview(page).locator(`[data-tympan-path="${ROOT}/image"]`).waitFor(),
    task: async (page, { state }) => {
      await preview(page).locator(`[data-tympan-path="${ROOT}/image"]`).click();
      await button(page, "Choose a picture or file").click();
      const waiting = page.waitForEvent("filechooser");
      const upload = button(page, "Upload from disk");
      await upload.and(page.locator(":enabled")).waitFor();
      await upload.click();
      await (await waiting).setFiles([{ name: "pier.png", mimeType: "image/png", buffer: Buffer.from("picture pier.png") }]);
      await until(() => valueAt(state, `${ROOT}/image`, "fileReference") === "/content/dam/demo/pier.png");
    },
  });

export const clicks_to_see_the_page_as_on_a_phone = (world) =>
  expectClicks(world, {
    most: 1,
    address: EDITOR,
    ready: (page) => preview(page).getByText("Tidewater Magazine").waitFor(),
    task: async (page) => {
      await page.locator('.devices label[title^="Phone"]').click();
      await page.frames()[1].waitForFunction(() => innerWidth === 390);
    },
  });

export const clicks_to_publish_a_page_with_its_new_pictures = (world) => {
  const path = "/content/dam/demo/harbor.jpg";
  world.state.companions = [{ path, title: "The harbor", status: "never", kind: "asset", ticked: true, allowed: true, referrer: PAGE }];
  return expectClicks(world, {
    most: 1,
    address: EDITOR,
    ready: (page) => page.getByLabel("Description").waitFor(),
    task: async (page, { state }) => {
      await button(page, "Publish").click();
      await page.getByText("Publishing started for").waitFor();
      await page.getByText("With 1 other item").waitFor();
      assert.deepEqual(state.writes.findLast((write) => write.path === "/api/v1/replication").body.paths, [path, PAGE]);
    },
  });
};

export const clicks_to_publish_a_page_later = (world) =>
  expectClicks(world, {
    most: 3,
    address: EDITOR,
    ready: (page) => page.getByLabel("Description").waitFor(),
    task: async (page) => {
      await button(page, "Publish later, or unpublish").click();
      await page.getByRole("dialog").getByLabel("Later").click();
      await button(page, "Schedule").click();
      await page.getByText("will be published on").waitFor();
    },
  });

export const clicks_to_unpublish_a_page = (world) =>
  expectClicks(world, {
    most: 2,
    address: EDITOR,
    ready: (page) => page.getByLabel("Description").waitFor(),
    task: async (page) => {
      await button(page, "Publish later, or unpublish").click();
      await button(page, "Unpublish").click();
      await page.getByText("Unpublishing started for").waitFor();
    },
  });

export const clicks_to_restore_an_older_version = (world) =>
  expectClicks(world, {
    most: 3,
    address: EDITOR,
    ready: (page) => page.getByLabel("Description").waitFor(),
    task: async (page) => {
      await page.getByRole("link", { name: /^Modified/ }).click();
      await page.getByRole("listitem").filter({ hasText: "grace: activated" }).getByRole("button", { name: "Restore" }).click();
      await page.getByRole("dialog", { name: "Restore version 1.0?" }).getByRole("button", { name: "Restore" }).click();
      await page.getByText("Restored version 1.0").waitFor();
    },
  });

export const clicks_to_find_a_page_and_open_it = (world) =>
  expectClicks(world, {
    most: 2,
    address: "/sites.html/content/demo/en",
    ready: (page) => page.getByText("Slow days").waitFor(),
    task: async (page) => {
      await page.getByRole("banner").getByRole("link", { name: "Search" }).click();
      await page.getByRole("combobox", { name: "Search for" }).and(page.locator(":focus")).waitFor();
      await page.keyboard.type("ferry");
      await page.keyboard.press("Enter");
      await page.getByRole("link", { name: /Islands without cars/ }).click();
      await page.waitForURL(/\/editor\.html\//);
    },
  });

export const clicks_to_rename_a_page_with_its_links_and_no_dead_address = (world) => {
  world.state.console.usedBy = { [PAGE]: [{ path: "/content/demo/en/alps/jcr:content", property: "link", kind: "path" }] };
  return expectClicks(world, {
    most: 3,
    address: EDITOR,
    ready: (page) => page.getByLabel("Description").waitFor(),
    task: async (page, { state }) => {
      await button(page, "More actions").click();
      await page.getByRole("menuitem", { name: "Move or rename…" }).click();
      await page.getByRole("dialog").getByLabel("Name in the address").fill("gulf");
      await button(page, "Move").click();
      await page.waitForURL(/editor\.html\/content\/demo\/en\/gulf\.html/);
      const [move, redirect] = state.writes.find(({ path }) => path === "/api/v1/batch").operations;
      assert.equal(move.rewrite, true);
      assert.equal(redirect.node.children["jcr:content"].properties["cq:redirectTarget"], "/content/demo/en/gulf");
    },
  });
};
