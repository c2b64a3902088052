/** Login, logout, and logins that end while someone works. */
import assert from "node:assert/strict";
import { expectSoon, open } from "../harness.mjs";

const ALPS = "/editor.html/content/demo/en/alps.html";

export async function login_leads_back_to_the_address_asked_for({ page, origin }) {
  await page.goto(`${origin}${ALPS}?panel=components`);
  await page.waitForURL(/\/login\.html\?resource=/);
  await page.getByLabel("User").fill("admin");
  await page.getByLabel("Password").fill("wrong");
  await page.keyboard.press("Enter");
  await page.getByText("wrong user name or password", { exact: true }).waitFor();
  await expectSoon(() => page.getByLabel("Password").inputValue(), "");
  await page.getByLabel("Password").fill("secret");
  await page.keyboard.press("Enter");
  await page.getByRole("tree").waitFor();
  assert.equal(new URL(page.url()).pathname, ALPS);
}

export async function login_never_leads_to_another_server({ page, origin }) {
  await page.goto(`${origin}/login.html?resource=${encodeURIComponent("//evil.example/x")}`);
  await page.getByLabel("User").fill("admin");
  await page.getByLabel("Password").fill("secret");
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("grid").waitFor();
  assert.equal(page.url(), `${origin}/sites.html/content`);
}

export async function a_dead_login_link_is_explained({ page, origin }) {
  await page.goto(`${origin}/login.html?reason=link`);
  await page.getByText("This login link has been used or has expired.", { exact: false }).waitFor();
}

export async function logout_ends_the_session(world) {
  const { page, state } = world;
  await open(world, "/queue.html");
  await page.getByRole("button", { name: "Account: admin" }).click();
  await page.getByRole("menuitem", { name: "Log out" }).click();
  await page.getByRole("button", { name: "Log in" }).waitFor();
  assert.equal(state.isSignedIn, false);
}

export async function an_ended_login_keeps_unsaved_changes(world) {
  const { page, state } = world;
  await open(world, ALPS);
  await page.getByLabel("Title").fill("Kept over the login");
  state.isSignedIn = false;
  state.csrf = "token-2";
  await page.getByRole("button", { name: "Save", exact: true }).click();
  const dialog = page.getByRole("dialog", { name: "Log in again" });
  await dialog.getByLabel("Password").fill("secret");
  await dialog.getByRole("button", { name: "Log in" }).click();
  await page.getByText("Page: Title", { exact: true }).waitFor();
  assert.equal(state.writes.length, 1);
  await expectSoon(() => page.getByLabel("Title").inputValue(), "Kept over the login");
}

export async function a_token_of_an_earlier_login_is_renewed_once(world) {
  const { page, state } = world;
  await open(world, ALPS);
  await page.getByLabel("Title").fill("New token");
  state.csrf = "token-2";
  await page.keyboard.press("Control+s");
  await page.getByText("Page: Title", { exact: true }).waitFor();
  assert.equal(state.writes.length, 1);
}

export async function the_theme_is_kept(world) {
  const { page } = world;
  await open(world, "/queue.html");
  await page.getByRole("button", { name: "Account: admin" }).click();
  await page.getByRole("menuitemradio", { name: "Dark" }).click();
  await page.reload();
  await page.getByRole("heading", { name: "Queue" }).waitFor();
  assert.equal(await page.evaluate(() => getComputedStyle(document.documentElement).colorScheme), "dark");
}

export async function a_server_that_is_gone_is_named_and_asked_again(world) {
  const { page } = world;
  await page.route(/\/api\/v1\/(me|reads)/, (route) => route.abort());
  await open(world, "/sites.html/content");
  await page.getByText("The server cannot be reached.", { exact: false }).waitFor();
  await page.unroute(/\/api\/v1\/(me|reads)/);
  await page.getByRole("button", { name: "Try again" }).click();
  await page.getByRole("grid").waitFor();
}

export async function an_address_without_a_screen_says_so(world) {
  const { page } = world;
  await open(world, "/queue.html/of/nothing");
  await page.getByText("There is no screen at this address").waitFor();
  await page.getByRole("link", { name: "Go to Sites" }).click();
  await page.getByRole("grid").waitFor();
}
