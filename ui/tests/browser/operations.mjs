/** The section for administrators. */
import assert from "node:assert/strict";
import { expectSoon, lastCall, open } from "../harness.mjs";

const region = (page, name) => page.getByRole("region", { name, exact: true });

export async function operations_are_hidden_from_others(world) {
  const { page, state } = world;
  state.isAdministrator = false;
  await open(world, "/operations.html/jobs");
  await page.getByText("There is no screen at this address").waitFor();
  assert.equal(await page.getByRole("link", { name: "Operations" }).count(), 0);
  assert.deepEqual(state.writes, []);
}

export async function operations_pause_a_queue(world) {
  const { page, state } = world;
  await open(world, "/sites.html/content/demo/en");
  await page.getByRole("link", { name: "Operations" }).click();
  const assets = region(page, "Assets");
  await assets.getByText("2 jobs run; 14 jobs wait.").waitFor();
  await assets.getByRole("button", { name: "Pause" }).click();
  await assets.getByText("14 jobs wait until somebody resumes the queue.").waitFor();
  assert.equal(state.operations.queues[1].paused, true);
  await assets.getByRole("button", { name: "Resume" }).click();
  await assets.getByRole("button", { name: "Pause" }).waitFor();
  assert.equal(state.operations.queues[1].paused, false);
}

export async function operations_change_how_many_jobs_run_at_once(world) {
  const { page, state } = world;
  await open(world, "/operations.html/jobs");
  await region(page, "Assets").getByRole("button", { name: "Settings" }).click();
  await page.getByLabel("Jobs at once").fill("many");
  await page.getByRole("button", { name: "Save" }).click();
  await page.getByText("`queue.maxparallel` must be a number, not `many`").waitFor();
  await page.getByLabel("Jobs at once").fill("5");
  await page.getByRole("button", { name: "Save" }).click();
  await expectSoon(() => state.operations.queues[1].maxParallel, 5);
  assert.deepEqual(lastCall(state).body, { queue: "Assets", set: "queue.maxparallel=5" });
}

export async function operations_retry_a_failed_job(world) {
  const { page, state } = world;
  await open(world, "/operations.html/jobs");
  const job = page.getByRole("listitem", { name: "Job 501" });
  await job.getByText("the picture `broken.jpg` ends after 3 of 1,204 lines").waitFor();
  await job.getByRole("button", { name: "Retry" }).click();
  await expectSoon(() => job.count(), 0);
  await region(page, "Assets").getByText("2 jobs run; 15 jobs wait.").waitFor();
  await page.getByRole("button", { name: "Remove job 502" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Remove job" }).click();
  await page.getByText("No job failed for good.").waitFor();
  assert.deepEqual(lastCall(state).body, { id: "502" });
}

export async function operations_edit_an_agent(world) {
  const { page, state } = world;
  await open(world, "/operations.html/replication");
  await region(page, "Publish").getByRole("button", { name: "Edit" }).click();
  await page.getByLabel("Target").fill("ftp://elsewhere");
  await page.getByRole("button", { name: "Save" }).click();
  await page.getByText("`ftp://elsewhere` is not the address of an agent").waitFor();
  await page.getByLabel("Target").fill("https://publish.example.org/bin/receive");
  await page.getByLabel("Only these paths").fill("/content/demo\n/content/dam/demo");
  await page.getByLabel("Enabled").uncheck();
  await page.getByRole("button", { name: "Save" }).click();
  await region(page, "Publish").getByText("This agent is switched off.").waitFor();
  const [agent] = state.operations.agents;
  assert.deepEqual([agent.target, agent.paths, agent.enabled], ["https://publish.example.org/bin/receive", ["/content/demo", "/content/dam/demo"], false]);
}

export async function operations_tell_the_queue_of_an_agent_in_words(world) {
  const { page, state } = world;
  await open(world, "/operations.html/replication");
  const second = region(page, "Second publisher");
  await second.getByText("was tried 3 times without success").waitFor();
  await second.getByRole("button", { name: "Test" }).click();
  await page.getByText("The target does not accept this agent").waitFor();
  await second.getByRole("button", { name: "Clear" }).click();
  await page.getByRole("dialog").getByText("1 item will never be sent to the target.").waitFor();
  await page.getByRole("dialog").getByRole("button", { name: "Remove items" }).click();
  await expectSoon(() => state.operations.agents[1].items.length, 0);
  await region(page, "Dispatcher").getByText("The queue of this agent is at the publisher.").waitFor();
}

export async function operations_show_the_health_of_components(world) {
  const { page } = world;
  await open(world, "/operations.html/health");
  await page.getByText("Everything works, but something needs a look.").waitFor();
  // What needs somebody stands first.
  await expectSoon(() => region(page, "Components").getByRole("listitem").first().innerText(), /^Agents\s+Needs a look\s+agent `publish2` is blocked/);
}

export async function operations_show_the_configuration_in_force(world) {
  const { page } = world;
  await open(world, "/operations.html/configuration");
  await page.getByText("5 settings").waitFor();
  await page.getByText("postgres://tympan:***@db/tympan").waitFor();
  await page.getByLabel("Only those that somebody set").check();
  await page.getByText("4 settings").waitFor();
  await page.getByLabel("Filter").fill("token");
  await page.getByText("1 setting", { exact: true }).waitFor();
  await page.getByText("line 3 is not JSON").waitFor();
}

export async function operations_explain_an_uncached_address(world) {
  const { page } = world;
  await open(world, "/operations.html/caches");
  await page.getByLabel("Address", { exact: true }).fill("/content/demo/en.html?utm_source=mail");
  await page.getByRole("button", { name: "Explain" }).click();
  await page.getByText("This address is not cached: each request goes to the publisher.").waitFor();
  await page.getByRole("status").getByText("request contained a query string", { exact: true }).waitFor();
  for (const [address, sentence] of [
    ["/content/demo/en.html", "Visitors get this address from the cache."],
    ["/content/demo/en/trieste.html", "This address can be cached, but is not in the cache now."],
    ["/crx/de", "Visitors are refused."],
  ]) {
    await page.getByLabel("Address", { exact: true }).fill(address);
    await page.keyboard.press("Enter");
    await page.getByText(sentence).waitFor();
  }
  await page.getByLabel("Address", { exact: true }).fill("elsewhere");
  await page.getByRole("button", { name: "Explain" }).click();
  await page.getByText("`elsewhere` is not an address").waitFor();
}

export async function operations_flush_paths(world) {
  const { page, state } = world;
  await open(world, "/operations.html/caches");
  const form = region(page, "Flush");
  await form.getByRole("button", { name: "Flush" }).click();
  await form.getByText("Enter a path.").waitFor();
  await form.getByLabel("Paths, one per line").fill("/content/demo/en\n/content/demo/de");
  await form.getByRole("button", { name: "Flush" }).click();
  await page.getByText("Flushed 2 paths").waitFor();
  const { path, body } = lastCall(state);
  assert.equal(path, "/api/v1/operations/caches/flush");
  assert.deepEqual([body.dispatcher, body.refetch, body.tree], ["edge-1", "true", "false"]);
}

export async function operations_show_caches(world) {
  const { page, state } = world;
  await open(world, "/operations.html/caches");
  await region(page, "edge-1").getByText("91.4 %").first().waitFor();
  await region(page, "edge-1").getByRole("row", { name: "response sets a cookie 130" }).waitFor();
  await region(page, "edge-2").getByText("connection refused").waitFor();
  await region(page, "Fragment cache").getByRole("button", { name: "Empty" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Empty it" }).click();
  await page.getByText("Removed 2,140 fragments").waitFor();
  assert.equal(state.operations.caches.fragments.entries, 0);
}

export async function operations_show_how_fast_pages_are(world) {
  const { page } = world;
  await open(world, "/operations.html/performance");
  const times = region(page, "Page times");
  await times.getByText("80 %, goal 70 %", { exact: true }).waitFor();
  // 7 % of the pages took half a second or more, of which 1 % may.
  await times.getByText("6 %, goal 1 %, missed").waitFor();
  await page.getByRole("button", { name: /news\.html/ }).click();
  await page.getByRole("img", { name: /^Flame graph of .*news\.html/ }).waitFor();
  await expectSoon(() => region(page, "Slowest pages").getByRole("row").nth(1).innerText(), /^teaser\/teaser\.html .*390 ms\s+390 ms\s+24/);
  await region(page, "The last hour").getByText("As a table").click();
  await region(page, "The last hour").getByRole("columnheader", { name: "95 % within" }).waitFor();
}

export async function operations_restore_one_page_from_a_backup(world) {
  const { page, state } = world;
  await open(world, "/operations.html/backup");
  await page.getByText("cannot reach the vault: connection refused").waitFor();
  await page.getByRole("button", { name: "Restore a page" }).click();
  const dialog = page.getByRole("dialog");
  assert.equal(await dialog.getByRole("button", { name: "Restore this page" }).isDisabled(), true);
  for (const name of ["demo", "en"]) await dialog.getByRole("list", { name: "Pages below" }).getByRole("button", { name }).click();
  await dialog.getByRole("button", { name: "autumn" }).waitFor();
  await dialog.getByRole("button", { name: "Restore this page" }).click();
  await dialog.getByText("is not a page whose values are all text").waitFor();
  await dialog.getByRole("button", { name: "autumn" }).click();
  await dialog.getByText("No pages below this one.").waitFor();
  await dialog.getByRole("button", { name: "Restore this page" }).click();
  await dialog.getByRole("link", { name: "Open /content/demo/en/autumn" }).waitFor();
  assert.equal(state.operations.restored, "/content/demo/en/autumn");
  assert.deepEqual(lastCall(state).body, { state: "5f0e9a31bb", path: "/content/demo/en/autumn" });
}

export async function operations_start_a_backup(world) {
  const { page, state } = world;
  await open(world, "/operations.html/backup");
  await page.getByRole("button", { name: "Save now" }).click();
  await page.getByRole("button", { name: "Running" }).waitFor();
  assert.equal(lastCall(state).path, "/api/v1/backup/runs");
}

export async function operations_show_logs(world) {
  const { page } = world;
  await open(world, "/operations.html/logs");
  await page.getByText("3 lines").waitFor();
  await page.getByLabel("Only lines that contain").fill("LOGIN");
  await page.getByRole("button", { name: "Filter" }).click();
  await page.getByText("1 line", { exact: false }).waitFor();
  await page.getByText("/login/link?token=***").waitFor();
  await page.getByLabel("Only lines that contain").fill("");
  await page.getByLabel("File").selectOption("access.log");
  await page.getByText("Mozilla/5.0").waitFor();
}

export async function operations_run_maintenance_and_rebuild_an_index(world) {
  const { page, state } = world;
  await open(world, "/operations.html/maintenance");
  const blobs = page.getByRole("listitem", { name: "Blob garbage" });
  await blobs.getByText("1 failed").waitFor();
  await blobs.getByRole("button", { name: "Run now" }).click();
  await blobs.getByText("It is running.").waitFor();
  assert.deepEqual(lastCall(state).query, { name: "maintenance/blobs" });
  const index = page.getByRole("listitem", { name: "resourceType" });
  await index.getByText("4,210 entries").waitFor();
  await index.getByRole("button", { name: "Rebuild" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Rebuild" }).click();
  await index.getByText("Waiting").waitFor();
}

export async function operations_control_workflows(world) {
  const { page } = world;
  await open(world, "/operations.html/workflows");
  const running = page.getByRole("listitem", { name: "Workflow 3" });
  await running.getByRole("button", { name: "Suspend" }).click();
  await running.getByText("Suspended").waitFor();
  await running.getByRole("button", { name: "Resume" }).click();
  await running.getByText("Running").waitFor();
  await running.getByRole("button", { name: "End", exact: true }).click();
  await page.getByRole("dialog").getByRole("button", { name: "End workflow" }).click();
  await running.getByText("Ended early").waitFor();
  const model = page.getByRole("listitem", { name: "Review", exact: true });
  await model.getByRole("button", { name: "Start" }).click();
  await page.getByLabel("For the node").fill("/content/nowhere");
  await page.getByRole("dialog").getByRole("button", { name: "Start" }).click();
  await page.getByText("there is no node at `/content/nowhere`").waitFor();
  await page.getByLabel("For the node").fill("/content/demo/en");
  await page.getByRole("dialog").getByRole("button", { name: "Start" }).click();
  await page.getByRole("listitem", { name: "Workflow 99" }).getByText("/content/demo/en").waitFor();
}

export async function operations_show_a_model_as_a_diagram(world) {
  const { page } = world;
  await open(world, "/operations.html/workflows");
  await page.getByRole("listitem", { name: "Review", exact: true }).getByRole("button", { name: "Diagram" }).click();
  const diagram = page.getByRole("group", { name: "Diagram of Review" });
  await diagram.locator("text", { hasText: "Activate the page" }).waitFor();
  await expectSoon(() => diagram.getByRole("listitem").allTextContents(), ["Begin is followed by Write the text", "Write the text is followed by Approved?", "Approved? is followed by Activate the page", "Approved? is followed by Tell the author", "Activate the page is followed by Done", "Tell the author is followed by Write the text"]);
  await page.getByText("has no step of type START").waitFor();
}
