/** Every screen, with its dialogs, and how it is reached: for the tests that look at all of them. */
import { until } from "../harness.mjs";

const EDITOR = "/editor.html/content/demo/en/trieste.html";
const teaser = `${EDITOR}?component=${encodeURIComponent("/content/demo/en/trieste/jcr:content/root/columns/teaser")}`;
const image = `${EDITOR}?component=${encodeURIComponent("/content/demo/en/trieste/jcr:content/root/image")}`;

export const SCREENS = [
  { name: "sites", address: "/sites.html/content/demo/en", ready: (page) => page.getByText("Slow days").waitFor() },
  {
    name: "sites-selected",
    address: "/sites.html/content/demo/en",
    ready: async (page) => {
      await page.getByLabel("Select Where to eat").check();
      await page.getByLabel("Select Winter at the lake").check();
    },
  },
  { name: "sites-empty", address: "/sites.html/content/empty", ready: (page) => page.getByText("Nothing here yet").waitFor() },
  { name: "sites-error", address: "/sites.html/content/nowhere", ready: (page) => page.getByText("Could not load the list").waitFor() },
  {
    name: "sites-create",
    address: "/sites.html/content/demo/en",
    ready: async (page) => {
      await page.getByRole("button", { name: "Create page" }).click();
      await page.getByRole("textbox", { name: "Title" }).fill("Night trains");
    },
  },
  {
    name: "sites-activate",
    address: "/sites.html/content/demo/en",
    ready: async (page) => {
      await page.getByLabel("Select Archive").check();
      await page.getByRole("button", { name: "Publish", exact: true }).click();
    },
  },
  { name: "sites-cards", address: "/sites.html/content/demo/en", ready: (page) => page.getByRole("button", { name: "Cards" }).click() },
  { name: "sites-columns", address: "/sites.html/content/demo/en", ready: (page) => page.getByRole("button", { name: "Columns" }).click() },
  { name: "assets", address: "/assets.html/content/dam/demo", ready: (page) => page.getByText("The harbor of Muggia").waitFor() },
  {
    name: "assets-list",
    address: "/assets.html/content/dam/demo",
    ready: async (page) => {
      await page.getByRole("button", { name: "List" }).click();
      await page.getByLabel("Select night.jpg").check();
    },
  },
  { name: "asset", address: "/assets.html/content/dam/demo/harbor.jpg?show=detail", ready: (page) => page.getByLabel("Description").waitFor() },
  {
    name: "asset-focal",
    address: "/assets.html/content/dam/demo/harbor.jpg?show=detail",
    ready: async (page) => {
      await page.getByRole("tab", { name: "Focal point" }).click();
      await page.getByText("16:9").waitFor();
    },
  },
  {
    name: "asset-failed",
    address: "/assets.html/content/dam/demo/broken.jpg?show=detail",
    ready: (page) => page.getByText("There is no preview").waitFor(),
  },
  {
    name: "picker",
    address: image,
    ready: async (page) => {
      await page.getByRole("button", { name: "Choose a picture or file" }).click();
      await page.getByRole("dialog").getByRole("button", { name: /harbor/ }).waitFor();
    },
  },
  {
    name: "menu",
    address: "/sites.html/content/demo",
    ready: async (page) => {
      await page.getByText("Deutsch").waitFor();
      await page.getByRole("button", { name: "Account: admin" }).click();
    },
  },
  { name: "editor-page", address: EDITOR, ready: (page) => page.getByLabel("Description").waitFor() },
  { name: "editor-component", address: teaser, ready: (page) => page.getByRole("textbox", { name: "Text" }).waitFor() },
  {
    name: "editor-invalid",
    address: image,
    ready: async (page) => {
      await page.getByRole("tab", { name: "Layout" }).click();
      await page.getByLabel("Width in pixels").fill("9");
      await page.getByRole("button", { name: "Save", exact: true }).click();
      await page.getByText("must be between").waitFor();
    },
  },
  {
    name: "editor-entries",
    address: `${EDITOR}?component=${encodeURIComponent("/content/demo/en/trieste/jcr:content/root/slideshow")}`,
    ready: async (page) => {
      await page.getByRole("button", { name: "2 Noon" }).click();
      await page.getByLabel("Caption").waitFor();
    },
  },
  {
    name: "editor-add",
    address: teaser,
    ready: async (page) => {
      await page.getByRole("button", { name: "Add", exact: true }).click();
      await page.getByText("Image", { exact: true }).last().click();
    },
  },
  {
    name: "editor-saved",
    address: EDITOR,
    ready: async (page) => {
      await page.getByLabel("Title").fill("Slow days by the sea");
      await page.keyboard.press("Control+s");
      await page.getByText("Page: Title").waitFor();
    },
  },
  {
    name: "editor-clash",
    address: EDITOR,
    ready: async (page, { mock }) => {
      const path = "/content/demo/en/trieste/jcr:content";
      await page.getByLabel("Title").fill("Slow days on the Adriatic");
      await page.getByLabel("Description").fill("Seven days by ferry, and one on foot.");
      mock.editAs("bea", path, { "jcr:title": "Quiet days on the Gulf of Trieste", "jcr:description": "Ten days by ferry." });
      await page.getByText("Another user changed what you are editing").waitFor();
      await page.getByRole("button", { name: "Compare" }).click();
      await page.getByLabel("Keep mine").first().check();
    },
    after: async (page) => {
      await page.getByRole("button", { name: "Continue editing" }).click();
      await page.getByRole("button", { name: "Discard" }).click();
    },
  },
  {
    name: "editor-news",
    address: teaser,
    ready: async (page, { mock, state }) => {
      await page.getByRole("textbox", { name: "Text" }).waitFor();
      await until(() => state.clients.size === 1);
      mock.editAs("bea", "/content/demo/en/trieste/jcr:content/root/title", { "jcr:title": "Slow days on the Gulf of Trieste" });
      await page.getByText("bea changed this page since you opened it").waitFor();
    },
  },
  { name: "versions", address: "/versions.html/content/demo/en/trieste", ready: (page) => page.getByText("Where to sleep").waitFor() },
  { name: "launches", address: "/launches.html", ready: (page) => page.getByText("no changes yet").waitFor() },
  {
    name: "launch",
    address: "/launches.html/spring-2027",
    ready: async (page) => {
      await page.getByRole("button", { name: /trieste/ }).click();
      await page.getByText("Where to sleep").waitFor();
    },
  },
  {
    name: "launch-merge",
    address: "/launches.html/spring-2027",
    ready: async (page, { state }) => {
      state.console.conflicts = [{ path: "/content/demo/en/trieste/jcr:content", kind: "changeChangedProperty", property: "jcr:title" }];
      await page.getByRole("button", { name: "Merge all" }).click();
      await page.getByRole("dialog").getByText("on the Gulf of").first().waitFor();
    },
  },
  { name: "sites-launch", address: "/sites.html/content/demo/en?launch=spring-2027", ready: (page) => page.getByText("Where to eat").waitFor() },
  {
    name: "sites-delete",
    address: "/sites.html/content/demo/en",
    ready: async (page) => {
      await page.getByLabel("Select Where to eat").check();
      const isWide = await page.getByRole("button", { name: "Delete", exact: true }).isVisible();
      if (!isWide) await page.getByRole("button", { name: "More actions" }).click();
      await page.getByRole(isWide ? "button" : "menuitem", { name: "Delete", exact: true }).click();
      await page.getByText("Used in 1 place").waitFor();
    },
  },
  {
    name: "sites-restore",
    address: "/sites.html/content/demo/en",
    ready: async (page) => {
      await page.getByText("Where to eat").waitFor();
      await page.getByRole("button", { name: "More about this folder" }).click();
      await page.getByRole("menuitem", { name: "Restore deleted pages" }).click();
      await page.getByText("last version 1.1").waitFor();
    },
  },
  {
    name: "permissions",
    address: "/permissions.html/content/demo/en/trieste",
    ready: async (page) => {
      await page.getByText("Set here").waitFor();
      await page.getByLabel("What can").fill("ada");
      await page.getByRole("button", { name: "Explain" }).click();
      await page.getByText("ada cannot delete it").waitFor();
    },
  },
  {
    name: "permissions-add",
    address: "/permissions.html/content/demo/en/trieste",
    ready: async (page) => {
      await page.getByRole("button", { name: "Add an entry" }).click();
      await page.getByLabel("User or group").fill("dam-users");
    },
  },
  { name: "users", address: "/users.html", ready: (page) => page.getByText("replication").waitFor() },
  { name: "user", address: "/users.html/user/bea", ready: (page) => page.getByText("left in May").waitFor() },
  {
    name: "user-new",
    address: "/users.html",
    ready: async (page) => {
      await page.getByRole("button", { name: "New user" }).click();
      await page.getByLabel("New password").waitFor();
    },
  },
  { name: "group", address: "/users.html/group/content-authors", ready: (page) => page.getByRole("link", { name: "ada" }).waitFor() },
  { name: "packages", address: "/packages.html", ready: (page) => page.getByText("46 MiB").waitFor() },
  {
    name: "packages-upload",
    address: "/packages.html",
    ready: async (page) => {
      await page.getByRole("button", { name: "Upload" }).click();
      const file = { name: "new.zip", mimeType: "application/zip", buffer: Buffer.from("PK") };
      await page.getByLabel("Package file").setInputFiles(file);
      await page.getByRole("button", { name: "Preview changes" }).click();
      await page.getByText("/content/demo/en/new").waitFor();
    },
  },
  {
    name: "packages-build",
    address: "/packages.html",
    ready: async (page) => {
      await page.getByRole("button", { name: "Build" }).click();
      await page.getByLabel("Paths, one per line").waitFor();
    },
  },
  { name: "search", address: "/search.html?text=ferry", ready: (page) => page.getByText("Islands without cars").waitFor() },
  { name: "search-none", address: "/search.html?text=fary", ready: (page) => page.getByText("Did you mean").waitFor() },
  { name: "search-empty", address: "/search.html", ready: (page) => page.getByText("What are you looking for?").waitFor() },
  { name: "mounts", address: "/mounts.html", ready: (page) => page.getByText("900 files disappeared").waitFor() },
  { name: "workflows", address: "/workflows.html", ready: (page) => page.getByText("Approve the text").waitFor() },
  { name: "workflows-models", address: "/workflows.html?show=models", ready: (page) => page.getByText("Cannot be started").first().waitFor() },
  { name: "workflows-failed", address: "/workflows.html?show=failed", ready: (page) => page.getByText("the agent `publish` is disabled").waitFor() },
  {
    name: "workflows-complete",
    address: "/workflows.html",
    ready: async (page) => {
      await page.getByRole("button", { name: "Complete" }).first().click();
      await page.getByLabel("Comment").fill("Reads well.");
    },
  },
  { name: "operations-jobs", address: "/operations.html/jobs", ready: (page) => page.getByText("the password is wrong").waitFor() },
  {
    name: "operations-queue",
    address: "/operations.html/jobs",
    ready: async (page) => {
      await page.getByRole("button", { name: "Settings" }).first().click();
      await page.getByLabel("Jobs at once").waitFor();
    },
  },
  {
    name: "operations-workflows",
    address: "/operations.html/workflows",
    ready: async (page) => {
      await page.getByRole("button", { name: "Diagram" }).click();
      await page.getByRole("group", { name: "Diagram of Review" }).scrollIntoViewIfNeeded();
    },
  },
  { name: "operations-replication", address: "/operations.html/replication", ready: (page) => page.getByText("Second publisher").waitFor() },
  {
    name: "operations-agent",
    address: "/operations.html/replication",
    ready: async (page) => {
      await page.getByRole("button", { name: "Edit" }).first().click();
      await page.getByLabel("Target").waitFor();
    },
  },
  {
    name: "operations-caches",
    address: "/operations.html/caches",
    ready: async (page) => {
      await page.getByLabel("Address", { exact: true }).fill("/content/demo/en.html?a=b");
      await page.getByRole("button", { name: "Explain" }).click();
      await page.getByText("This address is not cached").waitFor();
    },
  },
  {
    name: "operations-performance",
    address: "/operations.html/performance",
    ready: async (page) => {
      await page.getByRole("button", { name: /news/ }).click();
      await page.getByRole("img", { name: /^Flame graph/ }).waitFor();
    },
  },
  { name: "operations-backup", address: "/operations.html/backup", ready: (page) => page.getByText("cannot reach the vault").waitFor() },
  {
    name: "operations-restore",
    address: "/operations.html/backup",
    ready: async (page) => {
      await page.getByRole("button", { name: "Restore a page" }).click();
      await page.getByRole("list", { name: "Pages below" }).getByRole("button", { name: "demo" }).waitFor();
    },
  },
  { name: "operations-logs", address: "/operations.html/logs", ready: (page) => page.getByText("3 lines").waitFor() },
  { name: "operations-maintenance", address: "/operations.html/maintenance", ready: (page) => page.getByText("900 of 4,210 documents").waitFor() },
  { name: "operations-health", address: "/operations.html/health", ready: (page) => page.getByText("something needs a look").waitFor() },
  { name: "operations-configuration", address: "/operations.html/configuration", ready: (page) => page.getByText("5 settings").waitFor() },
  { name: "queue", address: "/queue.html", ready: (page) => page.getByText("3 items").waitFor() },
];
