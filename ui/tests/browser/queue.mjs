/** The replication queue. */
import assert from "node:assert/strict";
import { expectSoon, open } from "../harness.mjs";

export async function a_blocked_agent_says_why(world) {
  const { page } = world;
  await open(world, "/queue.html");
  const agent = page.getByRole("region", { name: "Publish" });
  await agent.getByText("Blocked", { exact: true }).waitFor();
  await agent.getByText("connection refused by `127.0.0.1:4503`; the next attempt is in 20 s", { exact: true }).waitFor();
  await agent.getByText("3 items").waitFor();
  await page.getByRole("region", { name: "Preview" }).getByText("Disabled").waitFor();
}

export async function an_item_is_tried_again_or_canceled(world) {
  const { page } = world;
  await open(world, "/queue.html");
  await page.getByRole("button", { name: "Retry Publish /content/demo/en/hotels now" }).click();
  await page.getByText("attempt 4").waitFor();
  await page.getByRole("button", { name: "Cancel Unpublish /content/demo/en/winter" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Cancel item" }).click();
  await page.getByText("2 items").waitFor();
  await expectSoon(() => page.getByRole("link", { name: "/content/demo/en/winter" }).count(), 0);
}

export async function a_queue_that_cannot_be_read_says_so(world) {
  const { page, state } = world;
  state.agents = [];
  await open(world, "/queue.html");
  await page.getByText("No agents").waitFor();
  await page.route("**/api/v1/queue", (route) =>
    route.fulfill({ status: 503, contentType: "application/json", body: '{"error":"state.db is locked by pid 12"}' }),
  );
  await page.getByRole("button", { name: "Reload" }).click();
  await page.getByText("state.db is locked by pid 12", { exact: true }).waitFor();
}
