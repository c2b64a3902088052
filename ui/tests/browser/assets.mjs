/** The assets console, uploads, and the picker. */
import assert from "node:assert/strict";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expectSoon, lastCall, lastSave, open, until } from "../harness.mjs";

const DEMO = "/assets.html/content/dam/demo";
const grid = (page) => page.getByRole("grid", { name: "Assets" });
const card = (page, name) => grid(page).getByRole("gridcell").filter({ hasText: name });
const panel = (page) => page.getByRole("region", { name: "Uploads" });
const picture = (name, text = `picture ${name}`, mimeType = "image/jpeg") => ({ name, mimeType, buffer: Buffer.from(text) });
const choose = (page, files) => page.locator('input[data-upload="files"]').setInputFiles(files);
const stored = (state) => [...state.root.children.get("content").children.get("dam").children.get("demo").children.keys()];

export async function assets_are_shown_as_cards_list_and_columns(world) {
  const { page } = world;
  await open(world, "/sites.html/content/demo");
  await page.getByRole("navigation", { name: "Main" }).getByRole("link", { name: "Assets" }).click();
  await page.getByRole("heading", { name: "Assets", exact: true }).waitFor();
  await grid(page).getByRole("link", { name: /Tidewater/ }).click();
  await card(page, "The harbor of Muggia").getByText("JPEG · 1200 × 800 · 240 kB").waitFor();
  await card(page, "broken.jpg").getByText("No preview").waitFor();
  await page.getByRole("button", { name: "List" }).click();
  await card(page, "timetable.pdf").getByText("81 kB").waitFor();
  await page.getByRole("button", { name: "Columns" }).click();
  await page.getByRole("link", { name: "broken.jpg" }).focus();
  await page.getByRole("complementary", { name: "Preview" }).getByText("the JPEG ends after 12 bytes").waitFor();
  await page.reload();
  await page.getByRole("button", { name: "Columns", pressed: true }).waitFor();
}

export async function thousands_of_assets_are_read_and_drawn_in_parts(world) {
  const { page } = world;
  const asked = [];
  page.on("request", (request) => /\/api\/v1\/(pages|reads)/.test(request.url()) && asked.push(request.url()));
  await open(world, "/assets.html/content/dam/large");
  await page.getByText("3,000 entries").waitFor();
  await card(page, "picture-0001.jpg").waitFor();
  await page.evaluate(() => scrollTo(0, document.body.scrollHeight));
  await card(page, "picture-3000.jpg").waitFor();
  assert.ok((await grid(page).getByRole("link").count()) < 120);
  assert.ok(asked.length < 8, `${asked.length} requests`);
}

export async function files_are_uploaded_in_one_commit_each(world) {
  const { page, state } = world;
  await open(world, DEMO);
  await card(page, "harbor").waitFor();
  await choose(page, [picture("new boat.jpg")]);
  await panel(page).getByText("1 file uploaded").waitFor();
  await card(page, "new boat.jpg").getByText("640 × 480").waitFor();
  const { operations } = lastCall(state).body;
  const [put, move] = [operations[0], operations.at(-1)];
  assert.ok(
    operations.every(({ node }) => node?.children === undefined),
    "a node with children in the request would lose those that it has",
  );
  assert.deepEqual([put.op, put.path, put.node.type], ["put", "/content/dam/demo/new boat.jpg", "dam:Asset"]);
  assert.deepEqual([move.op, move.to], ["move", "/content/dam/demo/new boat.jpg/jcr:content/renditions/original"]);
  assert.ok(!stored(state).some((name) => name.startsWith(".upload-")), "nothing is left beside the asset");
}

export async function odd_files_are_taken_or_refused_with_a_reason(world) {
  const { page, state } = world;
  await open(world, DEMO);
  await card(page, "harbor").waitFor();
  const long = `${"ä".repeat(150)}.jpg`;
  await choose(page, [
    picture("empty.jpg", ""),
    picture("no picture.jpg", "text that is called a picture"),
    picture(long),
    picture("🚤 regatta 👩‍👩‍👧.jpg"),
    picture("a:b[1]*.jpg"),
  ]);
  await panel(page).getByText("1 of 5 could not be uploaded").waitFor();
  await panel(page).getByText("The file is empty (0 bytes).").waitFor();
  await card(page, "no picture.jpg").getByText("No preview").waitFor();
  const names = stored(state);
  assert.ok(names.includes("🚤 regatta 👩‍👩‍👧.jpg"));
  assert.ok(names.includes("a-b-1-.jpg"));
  const cut = names.find((name) => name.startsWith("ää"));
  assert.ok(Buffer.byteLength(cut) <= 200 && cut.endsWith("ä.jpg"), `${Buffer.byteLength(cut)} bytes`);
  assert.ok(!names.includes("empty.jpg"));
  await expectSoon(() => panel(page).getByRole("button", { name: "Try again: empty.jpg" }).count(), 0);
}

export async function many_files_at_once_all_arrive(world) {
  const { page, state } = world;
  await open(world, DEMO);
  await card(page, "harbor").waitFor();
  await choose(
    page,
    Array.from({ length: 40 }, (_, at) => picture(`many-${at}.jpg`)),
  );
  await panel(page).getByText("40 files uploaded").waitFor({ timeout: 60_000 });
  assert.equal(stored(state).filter((name) => name.startsWith("many-")).length, 40);
}

export async function a_cut_connection_is_taken_up_again_where_it_broke(world) {
  const { page, state } = world;
  await open(world, DEMO);
  await card(page, "harbor").waitFor();
  // Three chunks; the connection breaks before the second one is received.
  const directory = await mkdtemp(join(tmpdir(), "tympan-ui-"));
  const large = join(directory, "large.jpg");
  await writeFile(large, "x".repeat(9 * 1024 * 1024));
  // The browser repeats some of these requests itself before it reports a failure.
  Object.assign(state, { cutUploads: 5, cutAfter: 1 });
  await choose(page, large);
  await panel(page).getByText("1 file uploaded").waitFor({ timeout: 60_000 });
  assert.equal(state.cutUploads, 0, "the connection broke off as often as it should");
  assert.equal(state.writes.filter(({ verb }) => verb === "UPLOAD").length, 3, "no chunk was received twice");
  const original = state.root.children.get("content").children.get("dam").children.get("demo").children.get("large.jpg").children.get("jcr:content").children.get("renditions").children.get("original");
  assert.equal(original.children.get("jcr:content").bytes.length, 9 * 1024 * 1024);
  await rm(directory, { recursive: true });
}

export async function a_refused_upload_can_be_tried_again_and_a_running_one_canceled(world) {
  const { page, state } = world;
  await open(world, DEMO);
  await card(page, "harbor").waitFor();
  let isRefused = true;
  await page.route("**/content/dam/demo", (route) =>
    isRefused ? route.fulfill({ status: 507, contentType: "application/json", body: '{"detail":"the disk is full"}' }) : route.continue(),
  );
  await choose(page, [picture("again.jpg")]);
  await panel(page).getByText("the disk is full").waitFor();
  isRefused = false;
  await panel(page).getByRole("button", { name: "Try again: again.jpg" }).click();
  await card(page, "again.jpg").waitFor();
  await page.unroute("**/content/dam/demo");
  let release;
  const held = new Promise((resolve) => (release = resolve));
  await page.route("**/content/dam/demo", async (route) => {
    await held;
    await route.continue().catch(() => {});
  });
  await choose(page, [picture("never.jpg")]);
  await panel(page).getByRole("button", { name: "Cancel never.jpg" }).click();
  await panel(page).getByText("Canceled").waitFor();
  release();
  assert.ok(!stored(state).includes("never.jpg"));
}

export async function names_and_contents_that_exist_are_asked_about(world) {
  const { page, state } = world;
  await open(world, DEMO);
  await card(page, "harbor").waitFor();
  await choose(page, [picture("harbor.jpg", "another harbor"), picture("copy of ferry.jpg", "the same bytes")]);
  await panel(page).getByText("exists already in /content/dam/demo").waitFor();
  await panel(page).getByRole("button", { name: "Keep both" }).click();
  await panel(page).getByText("is already stored, with the same content").waitFor();
  await panel(page).getByText("/content/dam/demo/ferry.jpg").waitFor();
  await panel(page).getByRole("button", { name: "Use the stored one" }).click();
  await card(page, "harbor-2.jpg").waitFor();
  assert.ok(!stored(state).includes("copy of ferry.jpg"));
  await choose(page, [picture("noon.jpg", "a better noon")]);
  await panel(page).getByRole("button", { name: "Replace" }).click();
  await panel(page).getByText("Replaced").waitFor();
  const [{ op, to, replace }] = lastCall(state).body.operations;
  assert.deepEqual({ op, to, replace }, { op: "move", to: "/content/dam/demo/noon.jpg/jcr:content/renditions/original", replace: true });
}

export async function metadata_is_edited_and_the_focal_point_moved_by_keys(world) {
  const { page, state } = world;
  await open(world, DEMO);
  await grid(page).getByRole("link", { name: /harbor of Muggia/ }).click();
  await page.getByRole("heading", { name: "The harbor of Muggia" }).waitFor();
  await page.getByLabel("Description").fill("A ferry leaves the harbor.");
  await page.getByLabel("Creator").fill("Ada; Bea");
  await page.getByRole("button", { name: "Remove the tag travel:coast" }).click();
  await page.getByRole("tab", { name: "Focal point" }).click();
  await page.getByRole("button", { name: /Focal point: 50 percent/ }).focus();
  await page.keyboard.press("Shift+ArrowRight");
  await page.keyboard.press("ArrowUp");
  await page.keyboard.press("Control+s");
  await page.getByText("Saved", { exact: true }).waitFor();
  const { query, body } = lastCall(state);
  assert.deepEqual(query, { path: "/content/dam/demo/harbor.jpg/jcr:content" });
  assert.deepEqual(body.children.metadata.properties, {
    "dc:description": { type: "String", value: "A ferry leaves the harbor." },
    "dc:creator": { type: "String", values: ["Ada", "Bea"] },
    "cq:tags": null,
    "dam:focalX": { type: "Double", value: 0.6 },
    "dam:focalY": { type: "Double", value: 0.49 },
  });
  await page.getByRole("tab", { name: "Renditions" }).click();
  await page.getByText("fits 319 × 319").waitFor();
  await page.getByRole("tab", { name: "Versions" }).click();
  await page.getByRole("button", { name: "Restore version 1.1" }).waitFor();
}

export async function several_assets_are_edited_and_deleted_with_a_warning(world) {
  const { page, state } = world;
  await open(world, DEMO);
  await card(page, "noon.jpg").getByRole("checkbox").check();
  await card(page, "night.jpg").getByRole("checkbox").check();
  await page.getByRole("button", { name: "Edit together" }).click();
  const dialog = page.getByRole("dialog", { name: "Edit 2 assets" });
  await dialog.getByLabel("Copyright").fill("Tidewater");
  await dialog.getByRole("button", { name: "Change 2 assets" }).click();
  await page.getByText("Changed 2 assets").waitFor();
  assert.deepEqual(lastCall(state).body.children.metadata.properties, { "dc:rights": { type: "String", value: "Tidewater" } });
  await card(page, "noon.jpg").getByRole("checkbox").check();
  await page.getByRole("button", { name: "Delete" }).click();
  await page.getByRole("dialog", { name: "Delete “noon.jpg”?" }).getByText("No references found.").waitFor();
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await page.getByText("Deleted “noon.jpg”").waitFor();
  assert.ok(!stored(state).includes("noon.jpg"));
}

export async function assets_are_found_by_words_type_and_orientation(world) {
  const { page } = world;
  await open(world, "/assets.html/content/dam");
  await page.getByText("3 entries").waitFor();
  await page.keyboard.press("/");
  await page.keyboard.type("muggia");
  await card(page, "The harbor of Muggia").waitFor();
  await page.getByText("1 found").waitFor();
  await page.waitForURL(/words=muggia/);
  await page.goto(`${world.origin}/assets.html/content/dam/demo`);
  await page.getByRole("button", { name: "Filters" }).click();
  await page.getByLabel("Orientation").selectOption("Portrait");
  await page.getByText("1 found").waitFor();
  await card(page, "morning.jpg").waitFor();
  await page.getByRole("button", { name: "Clear filters" }).click();
  await page.getByLabel("State").selectOption("Processing failed");
  await card(page, "broken.jpg").waitFor();
  await page.reload();
  await card(page, "broken.jpg").waitFor();
}

export async function without_rights_nothing_can_be_uploaded_or_changed(world) {
  const { page, state } = world;
  state.readOnly = ["/content/dam/closed"];
  await open(world, "/assets.html/content/dam/closed");
  await card(page, "seal.jpg").waitFor();
  await page.getByText("You may not add files to this folder.").waitFor();
  for (const name of ["Upload", "New folder"]) await page.getByRole("button", { name, exact: true }).and(page.locator(":disabled")).waitFor();
  await card(page, "seal.jpg").getByRole("checkbox").check();
  for (const name of ["Publish", "Edit", "Move", "Delete"]) await page.getByRole("button", { name, exact: true }).and(page.locator(":disabled")).waitFor();
  await page.getByRole("button", { name: "Clear selection" }).click();
  await grid(page).getByRole("link", { name: /seal/ }).click();
  await page.getByText("You may look at this asset, but not change it.").waitFor();
  for (const name of ["Replace file", "Publish", "Save"]) await page.getByRole("button", { name, exact: true }).and(page.locator(":disabled")).waitFor();
  await page.getByLabel("Title").and(page.locator(":disabled")).waitFor();
}

const IMAGE = `/editor.html/content/demo/en/trieste.html?component=${encodeURIComponent("/content/demo/en/trieste/jcr:content/root/image")}`;

/** Counts the clicks that a person makes; choosing the file in the system's dialog is none of the page. */
async function counted(page, steps) {
  let clicks = 0;
  const click = async (locator) => {
    clicks += 1;
    await locator.click();
  };
  await steps(click);
  return clicks;
}

export async function a_picture_comes_from_the_disk_onto_the_page_in_three_clicks(world) {
  const { page, state } = world;
  await open(world, IMAGE);
  await page.getByRole("textbox", { name: "Image" }).waitFor();
  const clicks = await counted(page, async (click) => {
    await click(page.getByRole("button", { name: "Choose a picture or file" }));
    const waiting = page.waitForEvent("filechooser");
    const upload = page.getByRole("button", { name: "Upload from disk" });
    await upload.and(page.locator(":enabled")).waitFor();
    await click(upload);
    await (await waiting).setFiles([picture("from disk.jpg")]);
    await expectSoon(() => page.getByRole("textbox", { name: "Image" }).inputValue(), "/content/dam/demo/from disk.jpg");
    await click(page.getByRole("button", { name: "Save", exact: true }));
  });
  assert.equal(clicks, 3);
  await until(() => state.writes.some(({ path, operations }) => path === "/api/v1/batch" && operations[0].op === "patch"));
  assert.deepEqual(lastSave(state)[0].patch.properties, { fileReference: "/content/dam/demo/from disk.jpg" });
}

export async function a_picture_is_picked_with_the_keyboard_alone(world) {
  const { page } = world;
  await open(world, IMAGE);
  await page.getByRole("textbox", { name: "Image" }).focus();
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  const picker = page.getByRole("dialog", { name: "Choose a picture or file" });
  await picker.getByRole("searchbox").and(page.locator(":focus")).waitFor();
  await page.keyboard.type("night");
  await picker.getByRole("gridcell").filter({ hasText: "night.jpg" }).waitFor();
  await expectSoon(() => picker.getByRole("gridcell").count(), 1);
  await page.keyboard.press("ArrowDown");
  await picker.getByRole("button", { name: /night/ }).and(page.locator(":focus")).waitFor();
  await page.keyboard.press("Enter");
  await expectSoon(() => page.getByRole("textbox", { name: "Image" }).inputValue(), "/content/dam/demo/night.jpg");
  await page.getByRole("button", { name: "Discard" }).click();
}

export async function a_picker_refuses_files_where_the_user_may_only_read(world) {
  const { page, state } = world;
  state.readOnly = ["/content/dam"];
  await open(world, IMAGE);
  await page.getByRole("button", { name: "Choose a picture or file" }).click();
  const picker = page.getByRole("dialog", { name: "Choose a picture or file" });
  await picker.getByRole("button", { name: /harbor/ }).waitFor();
  await picker.getByRole("button", { name: "Upload from disk" }).and(page.locator(":disabled")).waitFor();
  await page.keyboard.press("Escape");
  await expectSoon(() => picker.count(), 0);
}

export async function a_link_in_a_text_is_chosen_from_pages_and_files(world) {
  const { page } = world;
  await open(world, `/editor.html/content/demo/en/trieste.html?component=${encodeURIComponent("/content/demo/en/trieste/jcr:content/root/intro")}`);
  await page.getByRole("textbox", { name: "Text" }).click();
  await page.keyboard.press("Control+a");
  await page.getByRole("button", { name: "Link", exact: true }).click();
  await page.getByRole("dialog", { name: "Link" }).getByRole("button", { name: "Choose" }).click();
  const picker = page.getByRole("dialog", { name: "Choose a path" });
  await picker.getByRole("tab", { name: "Pictures and files" }).click();
  await picker.getByRole("button", { name: /timetable/ }).click();
  await expectSoon(() => page.getByLabel("URL or path").inputValue(), "/content/dam/demo/timetable.pdf");
  await page.keyboard.press("Escape");
}
