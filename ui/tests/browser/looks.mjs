/** Every screen in both themes, wide and narrow: accessible, no wider than its window, and with text of at least 14 px. */
import { expectAccessible, expectLegible, expectNoSideScroll, expectReadable, open, shoot } from "../harness.mjs";
import { SCREENS } from "./screens.mjs";

const WINDOWS = { wide: { width: 1440, height: 900 }, narrow: { width: 390, height: 844 } };

async function look(world, size) {
  const { page, origin } = world;
  await page.setViewportSize(WINDOWS[size]);
  await page.goto(`${origin}/login.html`);
  await page.getByLabel("User").fill("admin");
  await page.getByLabel("Password").fill("wrong");
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByText("wrong user name or password").waitFor();
  await check(page, `login-${size}`);
  for (const { name, address, ready, after } of SCREENS) {
    await open(world, address);
    await ready(page, world);
    if (name.startsWith("editor")) await page.frameLocator("iframe").getByText("Tidewater Magazine").waitFor();
    await check(page, `${name}-${size}`);
    await after?.(page);
    // Unsaved changes would ask before the next screen opens, and come back in the next editor.
    if (name === "editor-invalid") await page.getByRole("button", { name: "Discard" }).click();
  }
}

/** The themes differ in colors only, so what does not depend on colors is checked once. */
async function check(page, name) {
  await expectNoSideScroll(page, name);
  await expectLegible(page, name);
  await shoot(page, `${name}-light`);
  await expectAccessible(page, `${name}-light`);
  await page.emulateMedia({ colorScheme: "dark", reducedMotion: "reduce" });
  await shoot(page, `${name}-dark`);
  await expectReadable(page, `${name}-dark`);
  await page.emulateMedia({ colorScheme: "light", reducedMotion: "reduce" });
}

export const looks_wide = (world) => look(world, "wide");
export const looks_narrow = (world) => look(world, "narrow");
