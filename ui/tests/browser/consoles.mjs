/** Versions, launches, permissions, users, packages and search. */
import assert from "node:assert/strict";
import { expectSoon, lastCall, open } from "../harness.mjs";

const TRIESTE = "/content/demo/en/trieste";
const dialog = (page, name) => page.getByRole("dialog", { name });

export async function versions_are_listed_and_compared(world) {
  const { page } = world;
  await open(world, `/versions.html${TRIESTE}`);
  const list = page.getByRole("region", { name: "Versions" });
  await list.getByText("before the new pictures").waitFor();
  await list.getByText("launch-2025").waitFor();
  const comparison = page.getByRole("region", { name: "Comparison" });
  await comparison.getByText("jcr:content/root/columns/teaser2").waitFor();
  await expectSoon(() => comparison.locator("dd").first().locator("del, ins").allInnerTexts(), ["in", "on the Gulf of"]);
  await expectSoon(() => comparison.getByText("cq:lastModified").count(), 0, "notes of saving are no differences");
  await comparison.getByLabel("From").selectOption("1.0");
  await comparison.getByLabel("To", { exact: true }).selectOption("1.0");
  await page.getByText("No differences").waitFor();
  assert.match(page.url(), /from=1\.0&to=1\.0/);
}

export async function versions_are_kept_labeled_and_restored(world) {
  const { page, state } = world;
  await open(world, `/versions.html${TRIESTE}`);
  await page.getByRole("button", { name: "Create version" }).click();
  await dialog(page, "Create version").getByLabel("Comment").fill("for the record");
  await page.keyboard.press("Enter");
  await page.getByText("admin: for the record").waitFor();
  await page.getByRole("button", { name: "Label version 1.3" }).click();
  await dialog(page, "Label version 1.3").getByLabel("Label", { exact: true }).fill("launch-2025");
  await page.keyboard.press("Enter");
  await page.getByText("the version 1.0 has the label `launch-2025` already").waitFor();
  await dialog(page, "Label version 1.3").getByLabel("Move the label").check();
  await dialog(page, "Label version 1.3").getByRole("button", { name: "Label" }).click();
  await page.getByRole("list", { name: "Labels of version 1.3" }).waitFor();
  await page.getByRole("button", { name: "Remove label launch-2025" }).click();
  await page.getByText("launch-2025").first().waitFor({ state: "detached" });
  await page.getByRole("listitem").filter({ hasText: "grace: activated" }).getByRole("button", { name: "Restore" }).click();
  await dialog(page, "Restore version 1.0?").getByRole("button", { name: "Restore" }).click();
  await page.getByText("Restored version 1.0").waitFor();
  const calls = state.writes.filter(({ path }) => path?.startsWith("/api/v1/versions")).slice(-2);
  assert.deepEqual(
    calls.map(({ path, body }) => [path, body]),
    [
      ["/api/v1/versions", { path: TRIESTE, comment: "before restoring" }],
      ["/api/v1/versions/restore", { path: TRIESTE, version: "1.0" }],
    ],
  );
}

export async function a_launch_begins_at_a_page_and_the_editor_stays_in_it(world) {
  const { page, state } = world;
  await open(world, "/sites.html/content/demo/en");
  await page.getByRole("button", { name: "More about this folder" }).click();
  await page.getByRole("menuitem", { name: "Create launch" }).click();
  const form = dialog(page, "New launch");
  await form.getByLabel("Name").fill("my launch");
  await form.getByRole("button", { name: "Create" }).click();
  await form.getByText("a name may contain only letters, digits and `-_./`").waitFor();
  await form.getByLabel("Name").fill("autumn");
  await form.getByRole("button", { name: "Create" }).click();
  await page.getByText("changes are not on the site").waitFor();
  assert.match(page.url(), /launch=autumn/);
  await page.getByRole("link", { name: "Slow days" }).click();
  await page.waitForURL(/editor\.html.*launch=autumn/);
  await page.getByRole("grid").waitFor({ state: "detached" });
  await page.getByLabel("Title").fill("Autumn days");
  await page.keyboard.press("Control+s");
  await page.getByText("All changes saved").waitFor();
  assert.equal(lastCall(state).query.branch, "autumn");
  const activate = page.getByRole("button", { name: "Publish", exact: true });
  await expectSoon(() => activate.isDisabled(), true);
  assert.equal(await activate.getAttribute("title"), "Nothing can be published in a launch. Merge it first.");
  await expectSoon(() => page.locator("iframe").getAttribute("src"), /tympan-branch=autumn/);
  await page.getByRole("button", { name: "Leave" }).click();
  await page.getByText("changes are not on the site").waitFor({ state: "detached" });
  await activate.and(page.locator(":enabled")).waitFor();
  assert.doesNotMatch(page.url(), /launch=/);
}

export async function a_part_of_a_launch_is_merged_and_conflicts_are_decided(world) {
  const { page, state } = world;
  state.console.conflicts = [{ path: `${TRIESTE}/jcr:content`, kind: "changeChangedProperty", property: "jcr:title" }];
  await open(world, "/launches.html");
  await page.getByText("no changes yet").waitFor();
  await page.getByRole("link", { name: "spring-2027" }).click();
  await page.getByRole("button", { name: new RegExp(TRIESTE) }).click();
  await page.getByText("Where to sleep").waitFor();
  await page.getByLabel(`Select ${TRIESTE}`).check();
  await page.getByRole("button", { name: "Merge 1 selected" }).click();
  const merge = dialog(page, "Merge and resolve conflicts");
  const conflict = merge.getByRole("group", { name: `${TRIESTE}/jcr:content` });
  await conflict.getByText("on the Gulf of").first().waitFor();
  await merge.getByRole("button", { name: "Merge" }).click();
  await conflict.getByText("Choose one of the two.").waitFor();
  await conflict.getByLabel("Keep the site").check();
  await merge.getByRole("button", { name: "Merge" }).click();
  await page.getByText("Merged 1 document").waitFor();
  assert.deepEqual(lastCall(state).body, {
    name: "spring-2027",
    only: [TRIESTE],
    decisions: { [`${TRIESTE}/jcr:content`]: "theirs" },
  });
}

export async function promoting_over_changes_of_the_site_asks_twice(world) {
  const { page, state } = world;
  await open(world, "/launches.html/spring-2027");
  await page.getByRole("button", { name: "Promote" }).click();
  await dialog(page, "Replace the site with “spring-2027”?").getByRole("button", { name: "Promote" }).click();
  await page.getByRole("button", { name: "Discard and promote" }).click();
  await page.getByText("Promoted “spring-2027”").waitFor();
  assert.deepEqual(lastCall(state).body, { name: "spring-2027", replace: true });
  await page.getByRole("button", { name: "Delete the launch" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await page.waitForURL(/\/launches\.html$/);
  assert.ok(!state.console.branches.some(({ name }) => name === "spring-2027"));
}

export async function permissions_say_where_they_come_from_and_why(world) {
  const { page, state } = world;
  await open(world, `/permissions.html${TRIESTE}`);
  const entries = page.getByRole("region", { name: "Entries" });
  await entries.getByText("Set here").waitFor();
  await entries.getByText("glob: /archive/*").waitFor();
  await entries.getByRole("link", { name: "/", exact: true }).waitFor();
  await page.getByLabel("What can").fill("ada");
  await page.getByRole("button", { name: "Explain" }).click();
  await page.getByRole("row", { name: /ada can read it/ }).getByText("for content-authors (ada is a member)").waitFor();
  await page.getByRole("row", { name: /ada cannot delete it/ }).getByText(`Entry 2 at ${TRIESTE}, for ada.`).waitFor();
  await page.getByRole("row", { name: /ada cannot publish it/ }).getByText("nothing is granted by default").waitFor();

  await page.getByRole("button", { name: "Add an entry" }).click();
  const form = dialog(page, "Add an entry");
  await form.getByLabel("User or group").fill("nobody");
  await form.getByRole("button", { name: "Add" }).click();
  await form.getByText("there is no user or group `nobody`").waitFor();
  await form.getByLabel("User or group").fill("dam-users");
  await form.getByLabel("Deny").check();
  await form.getByLabel("Read", { exact: true }).uncheck();
  await form.getByLabel("Publish and unpublish").check();
  await form.getByLabel("Path restriction").fill("/news/*");
  await form.getByRole("button", { name: "Add" }).click();
  await page.getByText("Added the entry").waitFor();
  assert.deepEqual(lastCall(state).body, {
    principal: "dam-users",
    allow: false,
    privileges: ["crx:replicate"],
    restrictions: { "rep:glob": ["/news/*"] },
  });
  await entries.getByRole("button", { name: "Remove the entry for dam-users" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Remove" }).click();
  await page.getByText("Removed the entry").waitFor();
  assert.equal(state.console.entries.length, 2);
}

export async function users_are_made_disabled_and_put_in_groups(world) {
  const { page, state } = world;
  await open(world, "/users.html");
  await page.getByText("disabled").waitFor();
  await page.getByRole("searchbox").fill("zzz");
  await page.getByText("No users match “zzz”").waitFor();
  await page.getByRole("button", { name: "New user" }).click();
  const form = dialog(page, "New user");
  await form.getByLabel("Name").fill("dora");
  await form.getByLabel("New password").fill("short");
  await form.getByRole("button", { name: "Create" }).click();
  await form.getByText("at least 8 characters").waitFor();
  await form.getByLabel("New password").fill("long enough");
  await form.getByText("The passwords do not match.").waitFor();
  await form.getByLabel("Repeat the password").fill("long enough");
  await form.getByRole("button", { name: "Create" }).click();
  await page.getByRole("heading", { name: "dora" }).waitFor();
  await page.getByLabel("Group", { exact: true }).fill("content-authors");
  await page.getByRole("button", { name: "Add to group" }).click();
  await page.getByRole("link", { name: "content-authors" }).waitFor();
  await page.getByRole("button", { name: "Disable" }).click();
  await dialog(page, "Disable “dora”?").getByLabel("Reason").fill("on leave");
  await dialog(page, "Disable “dora”?").getByRole("button", { name: "Disable" }).click();
  await page.getByText("This user cannot log in: on leave").waitFor();
  await page.getByRole("button", { name: "Enable" }).click();
  await page.getByText("This user cannot log in").waitFor({ state: "detached" });
  await page.getByRole("link", { name: "content-authors" }).click();
  await page.getByRole("button", { name: "Remove dora" }).click();
  await page.getByText("Removed “dora”").waitFor();
  assert.deepEqual(state.console.users.find(({ name }) => name === "dora").groups, []);
}

export async function ones_own_password_takes_the_present_one(world) {
  const { page } = world;
  await open(world, "/users.html/user/admin");
  await page.getByText("This is your account.").waitFor();
  await page.getByRole("button", { name: "Set password" }).click();
  const form = dialog(page, "Set password for “admin”");
  await form.getByLabel("Current password").fill("wrong");
  await form.getByLabel("New password").fill("a new secret");
  await form.getByLabel("Repeat the password").fill("a new secret");
  await form.getByRole("button", { name: "Set" }).click();
  await form.getByText("the current password is wrong").waitFor();
  await form.getByLabel("Current password").fill("secret");
  await form.getByRole("button", { name: "Set" }).click();
  await page.getByText("Changed the password of “admin”").waitFor();
}

export async function packages_show_what_they_would_change_before_they_are_installed(world) {
  const { page, state } = world;
  await open(world, "/packages.html");
  await page.getByText("installed yesterday by admin").waitFor();
  await page.getByRole("button", { name: "Upload" }).click();
  const form = dialog(page, "Upload a package");
  await form.getByLabel("Package file").setInputFiles({ name: "new.zip", mimeType: "application/zip", buffer: Buffer.from("PK") });
  await form.getByRole("button", { name: "Preview changes" }).click();
  await form.getByText("/content/demo/en/new").waitFor();
  await form.getByRole("button", { name: "Install" }).click();
  await dialog(page, "Installed new").getByText("pages 2").waitFor();
  await page.keyboard.press("Escape");
  const site = page.getByRole("listitem").filter({ hasText: "46 MiB" });
  await site.getByRole("button", { name: "Uninstall" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Uninstall" }).click();
  await page.getByText("restored 12").waitFor();
  await page.keyboard.press("Escape");
  await site.getByText("not installed").waitFor();
  await page.getByRole("button", { name: "Build" }).click();
  const build = dialog(page, "Build a package");
  await build.getByLabel("Name").fill("mine");
  await build.getByLabel("Paths, one per line").fill("/content/demo/en/\n/apps/demo");
  const download = page.waitForEvent("download");
  await build.getByRole("button", { name: "Build and download" }).click();
  assert.equal((await download).suggestedFilename(), "mine-1.0.zip");
  const { query, body } = state.writes.at(-1);
  assert.equal(query.id, "my_packages:mine:1.0");
  assert.match(body, /<filter root="\/content\/demo\/en"\/>\n {2}<filter root="\/apps\/demo"\/>/);
}

export async function search_completes_marks_and_narrows(world) {
  const { page } = world;
  await open(world, "/sites.html/content/demo/en");
  await page.getByRole("link", { name: "Search" }).click();
  await page.getByText("What are you looking for?").waitFor();
  await page.keyboard.type("fer");
  await page.getByRole("option", { name: "ferry" }).waitFor();
  await page.keyboard.press("ArrowDown");
  await page.locator('[role="option"][aria-selected="true"]').waitFor();
  await page.keyboard.press("Enter");
  const results = page.getByRole("region", { name: "Results" });
  await results.getByRole("link", { name: "Islands without cars" }).waitFor();
  await expectSoon(() => results.locator("mark").allInnerTexts(), ["ferry", "ferry", "ferry"]);
  await results.getByText("every hour & nobody").waitFor();
  await page.getByRole("radiogroup", { name: "Type" }).getByText("Assets", { exact: true }).click();
  await results.getByRole("link", { name: "ferry.jpg" }).waitFor();
  await expectSoon(() => results.getByRole("listitem").count(), 1);
  await page.getByText("Pages and assets", { exact: true }).click();
  await results.getByRole("link", { name: "Slow days on the Gulf of Trieste" }).click();
  await page.waitForURL(/\/editor\.html\/content\/demo\/en\/trieste\.html/);
}

export async function a_search_without_hits_offers_a_correction(world) {
  const { page } = world;
  await open(world, "/search.html?text=fary&type=cq:Page");
  await page.getByText("Nothing found for “fary”").waitFor();
  await page.getByRole("button", { name: "Did you mean “ferry”?" }).click();
  await page.getByRole("link", { name: "Slow days on the Gulf of Trieste" }).waitFor();
}

export async function the_screens_are_reached_from_a_narrow_window(world) {
  const { page } = world;
  await page.setViewportSize({ width: 390, height: 844 });
  await open(world, "/sites.html/content/demo/en");
  await page.getByRole("button", { name: "Main menu" }).click();
  await page.getByRole("menuitemradio", { name: "Packages" }).click();
  await page.getByRole("heading", { name: "Packages" }).waitFor();
}
