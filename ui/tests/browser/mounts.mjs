/** Mounts of assets. */
import assert from "node:assert/strict";
import { open } from "../harness.mjs";

const mount = (page, name) => page.getByRole("region", { name });

export async function mounts_say_how_they_are(world) {
  const { page } = world;
  await open(world, "/mounts.html");
  await mount(page, "press").getByText("Up to date", { exact: true }).waitFor();
  await mount(page, "press").getByText("4 added, 1 moved").waitFor();
  await mount(page, "films").getByText("Running", { exact: true }).waitFor();
  await mount(page, "films").getByText("reading, 3 of 12").waitFor();
  await mount(page, "films").getByText("1 file skipped").click();
  await mount(page, "films").getByText("it is longer than 64 GiB").waitFor();
  await page.getByText("is not in any place that `tympan.toml` allows").waitFor();
}

export async function a_mount_is_run_paused_and_let_go_on(world) {
  const { page, state } = world;
  await open(world, "/mounts.html");
  const press = mount(page, "press");
  await press.getByRole("button", { name: "Pause" }).click();
  await press.getByText("Paused", { exact: true }).waitFor();
  await press.getByRole("button", { name: "Resume" }).click();
  await press.getByText("Up to date", { exact: true }).waitFor();
  await press.getByRole("button", { name: "Run now" }).click();
  await press.getByText("just now: ").waitFor();
  const calls = state.writes.map(({ path }) => path).filter((path) => path?.startsWith("/api/v1/assets/mounts/"));
  assert.deepEqual(calls.map((path) => path.split("/").at(-1)), ["pause", "resume", "run"]);
}

export async function assets_whose_files_are_gone_go_when_somebody_says_so(world) {
  const { page, state } = world;
  await open(world, "/mounts.html");
  const archive = mount(page, "archive");
  await archive.getByText("Confirmation needed").waitFor();
  await archive.getByRole("button", { name: "Remove assets" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Remove assets" }).click();
  await archive.getByText("900 removed").waitFor();
  assert.equal(state.writes.at(-1).query.acceptRemovals, "true");
}

export async function without_mounts_it_is_told_how_to_make_one(world) {
  const { page, state } = world;
  state.console.mounts = [];
  state.console.faults = [];
  await open(world, "/mounts.html");
  await page.getByText("No mounts").waitFor();
}
