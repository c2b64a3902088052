/** Publication with what a page needs, at a time, and its end; with the clicks that each takes. */
import assert from "node:assert/strict";
import { countClicks, expectAccessible, expectSoon, lastCall, openSaving, shoot, until } from "../harness.mjs";

const PAGE = "/content/demo/en/trieste";
const ADDRESS = `/editor.html${PAGE}.html`;
const PICTURE = "/content/dam/demo/harbor.jpg";
const companion = (path, more = {}) => ({ path, title: null, status: "never", at: null, by: null, kind: "asset", ticked: true, allowed: true, referrer: PAGE, ...more });
const started = (page) => page.getByText("Publishing started for", { exact: false }).waitFor();

export async function a_page_that_needs_nothing_is_published_by_one_click(world) {
  const { page, state } = world;
  await openSaving(world, ADDRESS);
  await page.getByLabel("Title").waitFor();
  const clicks = await countClicks(page);
  await page.getByRole("button", { name: "Publish", exact: true }).click();
  await started(page);
  assert.equal(await clicks(), 1);
  assert.deepEqual(lastCall(state).body, { action: "activate", paths: [PAGE] });
}

export async function what_the_user_may_not_publish_is_shown_before_a_page_that_needs_it(world) {
  const { page, state } = world;
  state.companions = [
    companion(PICTURE, { title: "The harbor" }),
    companion("/content/cq:tags/travel/coast", { kind: "tag" }),
    companion("/conf/demo/template", { kind: "template", allowed: false }),
    companion("/content/demo/en/food", { kind: "page", ticked: false }),
    companion("/content/dam/demo/old.jpg", { status: "live", ticked: false }),
  ];
  await openSaving(world, ADDRESS);
  await page.getByLabel("Title").waitFor();
  const clicks = await countClicks(page);
  await page.getByRole("button", { name: "Publish", exact: true }).click();
  const dialog = page.getByRole("dialog", { name: "Publish “Slow days on the Gulf of Trieste”" });
  await dialog.getByRole("checkbox", { name: /The harbor/ }).waitFor();
  await expectAccessible(page, "the dialog of a publication");
  await shoot(page, "publication");
  await expectSoon(() => dialog.getByRole("checkbox", { name: /harbor|coast/ }).evaluateAll((all) => all.map((one) => one.checked)), [true, true]);
  await expectSoon(() => dialog.getByRole("checkbox", { name: /template/ }).isDisabled(), true);
  await dialog.getByText("You have no right to publish this.").waitFor();
  await expectSoon(() => dialog.getByRole("checkbox", { name: /food/ }).isChecked(), false);
  await expectSoon(() => dialog.getByText("old.jpg").count(), 0);
  await dialog.getByRole("button", { name: "Publish with 2 items" }).click();
  await started(page);
  assert.equal(await clicks(), 2);
  assert.deepEqual(lastCall(state).body, { action: "activate", paths: [PICTURE, "/content/cq:tags/travel/coast", PAGE] });
}

export async function a_publication_is_scheduled_by_three_clicks(world) {
  const { page, state } = world;
  await openSaving(world, ADDRESS);
  await page.getByLabel("Title").waitFor();
  const clicks = await countClicks(page);
  await page.getByRole("button", { name: "Publish later, or unpublish" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Later").click();
  await dialog.getByRole("button", { name: "Schedule" }).click();
  await page.getByText("will be published on", { exact: false }).waitFor();
  assert.equal(await clicks(), 3);
  assert.deepEqual(lastCall(state).body, { action: "activate", paths: [PAGE] });
  const { patch } = state.writes.findLast(({ path }) => path === "/api/v1/batch").operations[0];
  assert.equal(patch.properties.onTime.type, "Date");
  const tomorrow = new Date();
  tomorrow.setDate(tomorrow.getDate() + 1);
  tomorrow.setHours(8, 0, 0, 0);
  assert.equal(new Date(patch.properties.onTime.value).getTime(), tomorrow.getTime());
  assert.equal(patch.properties.offTime, null);

  // The next publication shows the time, and can take it back.
  await page.getByRole("button", { name: "Publish", exact: true }).click();
  await expectSoon(() => dialog.getByLabel("Later").isChecked(), true);
  await dialog.getByLabel("Now").click();
  await dialog.getByLabel("Until").check();
  await dialog.getByLabel("Time of the end").fill("2020-01-01T10:00");
  await dialog.getByRole("button", { name: "Publish", exact: true }).click();
  await dialog.getByText("The end must be after the publication.").waitFor();
  await dialog.getByLabel("Time of the end").fill("2199-01-01T10:00");
  await dialog.getByRole("button", { name: "Publish", exact: true }).click();
  await started(page);
  const again = state.writes.findLast(({ path }) => path === "/api/v1/batch").operations[0].patch.properties;
  assert.equal(again.onTime, null);
  assert.match(again.offTime.value, /^2199-01-01T10:00/);
}

export async function a_page_is_unpublished_by_two_clicks_with_the_links_to_it_shown(world) {
  const { page, state } = world;
  state.console.usedBy = { [PAGE]: [{ path: "/content/demo/en/alps/jcr:content", property: "link", kind: "path" }] };
  await openSaving(world, ADDRESS);
  await page.getByLabel("Title").waitFor();
  const clicks = await countClicks(page);
  await page.getByRole("button", { name: "Publish later, or unpublish" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByText("1 page links here.", { exact: false }).waitFor();
  await dialog.getByRole("link", { name: "/content/demo/en/alps" }).waitFor();
  await dialog.getByRole("button", { name: "Unpublish", exact: true }).click();
  await page.getByText("Unpublishing started for", { exact: false }).waitFor();
  assert.equal(await clicks(), 2);
  assert.deepEqual(lastCall(state).body, { action: "deactivate", paths: [PAGE] });
}

export async function what_was_typed_last_is_saved_before_a_publication(world) {
  const { page, state } = world;
  await openSaving(world, ADDRESS);
  await page.getByLabel("Title").fill("Typed last");
  await page.getByRole("button", { name: "Publish", exact: true }).click();
  await started(page);
  await until(() => state.writes.length === 2);
  assert.deepEqual(
    state.writes.map(({ path }) => path),
    ["/api/v1/batch", "/api/v1/replication"],
  );
}
