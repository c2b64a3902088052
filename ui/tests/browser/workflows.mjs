/** Workflows: the inbox, the models with their faults, and steps that failed. */
import assert from "node:assert/strict";
import { expectSoon, lastCall, open } from "../harness.mjs";

const row = (page, name) => page.getByRole("listitem", { name, exact: true });
const UNKNOWN = "names the unknown process `com.example.StampProcess`; known processes are NoopProcess, LockProcess";

export async function a_faulty_model_says_so_with_its_reason(world) {
  const { page } = world;
  await open(world, "/workflows.html");
  await page.getByRole("tab", { name: /Models.*2/ }).click();
  await page.waitForURL(/show=models/);
  const legacy = row(page, "Old approval");
  await legacy.getByText("Cannot be started").waitFor();
  await legacy.getByText(UNKNOWN, { exact: false }).waitFor();
  await row(page, "broken").getByText("has no step of type START", { exact: false }).waitFor();
  await expectSoon(() => row(page, "Review").getByText("Cannot be started").count(), 0);
  const names = await page.getByRole("tabpanel").getByRole("listitem").locator("strong").allTextContents();
  assert.deepEqual(names, ["broken", "Old approval", "Review"]);
}

export async function the_inbox_warns_of_faulty_models(world) {
  const { page, state } = world;
  await open(world, "/workflows.html");
  const sign = page.getByRole("alert");
  await sign.getByText("2 workflow models cannot be started.").waitFor();
  await sign.getByText(UNKNOWN, { exact: false }).waitFor();
  await row(page, "Stamp it").getByText("new workflows of this model cannot be started", { exact: false }).waitFor();
  await expectSoon(() => row(page, "Approve the text").getByText("cannot be started", { exact: false }).count(), 0);
  state.console.models = state.console.models.filter(({ fault }) => fault === undefined);
  await page.getByRole("button", { name: "Reload" }).click();
  await sign.waitFor({ state: "detached" });
  await row(page, "Stamp it").getByText("cannot be started", { exact: false }).waitFor({ state: "detached" });
}

export async function a_step_is_completed_by_the_way_that_is_chosen(world) {
  const { page, state } = world;
  await open(world, "/workflows.html");
  await row(page, "Approve the text").getByRole("button", { name: "Complete" }).click();
  await page.getByLabel("Next step").selectOption("rework");
  await page.getByLabel("Comment").fill("The ferry leaves at nine.");
  await page.getByRole("dialog").getByRole("button", { name: "Complete", exact: true }).click();
  await row(page, "Approve the text").waitFor({ state: "detached" });
  const { path, body } = lastCall(state);
  assert.equal(path, "/api/v1/workflows/complete");
  assert.deepEqual(body, { item: "3", route: "rework", comment: "The ferry leaves at nine." });
}

export async function a_step_is_given_away_or_sent_back(world) {
  const { page, state } = world;
  await open(world, "/workflows.html");
  await row(page, "Stamp it").getByRole("button", { name: "Delegate" }).click();
  const dialog = page.getByRole("dialog");
  await page.getByLabel("User or group").fill("nobody");
  await dialog.getByRole("button", { name: "Delegate", exact: true }).click();
  await dialog.getByText("there is no user or group `nobody`", { exact: true }).waitFor();
  await page.getByLabel("User or group").fill("dam-users");
  await dialog.getByRole("button", { name: "Delegate", exact: true }).click();
  await row(page, "Stamp it").getByText("for dam-users").waitFor();

  await row(page, "Look at a page").getByRole("button", { name: "Send back" }).click();
  await dialog.getByText("No step was completed before this one.").waitFor();
  await dialog.getByRole("button", { name: "Cancel" }).click();
  await row(page, "Approve the text").getByRole("button", { name: "Send back" }).click();
  await page.getByLabel("Back to").selectOption("collect");
  await dialog.getByRole("button", { name: "Send back", exact: true }).click();
  await row(page, "Approve the text").waitFor({ state: "detached" });
  assert.deepEqual(lastCall(state).query, { item: "3", to: "collect" });
}

export async function a_failed_step_is_carried_out_again(world) {
  const { page } = world;
  await open(world, "/workflows.html");
  await page.getByRole("tab", { name: /Failed steps.*1/ }).click();
  await row(page, "Activate").getByText("the agent `publish` is disabled").waitFor();
  await page.getByRole("button", { name: "Restart" }).click();
  await page.getByText("No failed steps").waitFor();
}

export async function failed_steps_are_shown_to_administrators_only(world) {
  const { page, state } = world;
  state.console.failedSteps = null;
  await open(world, "/workflows.html");
  await row(page, "Approve the text").waitFor();
  await expectSoon(() => page.getByRole("tab", { name: /Failed/ }).count(), 0);
  await page.goto(`${world.origin}/workflows.html?show=failed`);
  await page.getByText("Only administrators can see failed steps").waitFor();
}
