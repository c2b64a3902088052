/** The weight of a view that is opened for the first time: requests, scripts, data. The figures are printed. */
import assert from "node:assert/strict";
import { gzipSync } from "node:zlib";
import { openSaving } from "../harness.mjs";

const KIB = 1024;
const PAGE = "/content/demo/en/trieste";
/**
 * What a view may load when it is opened for the first time: the page, the style sheet, scripts and one data request.
 * The facts about pictures come from a query, which is a request more.
 */
const MOST_REQUESTS = 6;
const VIEWS = [
  { name: "sites", address: "/sites.html/content/demo/en", ready: (page) => page.getByText("Slow days").waitFor() },
  { name: "editor", address: `/editor.html${PAGE}.html`, ready: (page) => page.getByLabel("Description").waitFor() },
  { name: "assets", address: "/assets.html/content/dam/demo", ready: (page) => page.getByText("The harbor of Muggia").waitFor(), facts: 1 },
  { name: "asset", address: "/assets.html/content/dam/demo/harbor.jpg?show=detail", ready: (page) => page.getByLabel("Description").waitFor(), facts: 1 },
  { name: "versions", address: `/versions.html${PAGE}`, ready: (page) => page.getByText("Where to sleep").waitFor() },
  { name: "queue", address: "/queue.html", ready: (page) => page.getByRole("region", { name: "Publish" }).waitFor() },
  { name: "workflows", address: "/workflows.html", ready: (page) => page.getByText("Approve the text").waitFor() },
  { name: "launches", address: "/launches.html", ready: (page) => page.getByText("no changes yet").waitFor() },
  { name: "launch", address: "/launches.html/spring-2027", ready: (page) => page.getByRole("button", { name: /trieste/ }).waitFor() },
  { name: "permissions", address: `/permissions.html${PAGE}`, ready: (page) => page.getByText("Set here").waitFor() },
  { name: "users", address: "/users.html", ready: (page) => page.getByText("replication").waitFor() },
  { name: "user", address: "/users.html/user/bea", ready: (page) => page.getByText("left in May").waitFor() },
  { name: "packages", address: "/packages.html", ready: (page) => page.getByText("46 MiB").waitFor() },
  { name: "mounts", address: "/mounts.html", ready: (page) => page.getByText("900 files disappeared").waitFor() },
  { name: "operations", address: "/operations.html/jobs", ready: (page) => page.getByText("the password is wrong").waitFor() },
  { name: "search", address: "/search.html", ready: (page) => page.getByText("What are you looking for?").waitFor() },
];

async function expectLight(world, view, language) {
  const { context } = world;
  // A page of its own, which has nothing in its cache.
  const page = await context.newPage();
  const requests = [];
  page.on("response", (response) => {
    const url = new URL(response.url());
    // The previewed page is the site's, the stream of changes has no end, and the icon is the browser's wish.
    const isStream = response.headers()["content-type"] === "text/event-stream";
    const isOurs = response.frame() === page.mainFrame() && !url.pathname.startsWith("/content/") && !url.pathname.endsWith(".svg");
    if (isOurs && !isStream) requests.push({ path: url.pathname, body: response.body().catch(() => Buffer.alloc(0)) });
  });
  await openSaving({ ...world, page }, view.address);
  if (language === "en") await view.ready(page);
  else await page.getByRole("main").locator(":scope > *").first().waitFor();
  await page.waitForLoadState("load");
  const sizes = await Promise.all(requests.map(async ({ path, body }) => ({ path, bytes: gzipSync(await body, { level: 9 }).length })));
  const scripts = sizes.filter(({ path }) => path.endsWith(".js"));
  const data = sizes.filter(({ path }) => path.startsWith("/api/")).map(({ path }) => path.slice("/api/v1/".length));
  const bytesOf = (isCounted) => scripts.filter(isCounted).reduce((sum, { bytes }) => sum + bytes, 0);
  const isInitial = ({ path }) => /\/index-/.test(path);
  const isOfLanguage = ({ path }) => /\/de-/.test(path);
  const [initial, texts] = [bytesOf(isInitial), bytesOf(isOfLanguage)];
  const rest = bytesOf((one) => !isInitial(one) && !isOfLanguage(one));
  const all = sizes.reduce((sum, { bytes }) => sum + bytes, 0);
  const kib = (bytes) => (bytes / KIB).toFixed(1).padStart(5);
  console.log(
    `        ${view.name.padEnd(11)} ${language} ${sizes.length} requests ${kib(all)} KiB gzip: initial script ${kib(initial)}, view ${kib(rest)}, texts ${kib(texts)}; data ${data.join(", ")}`,
  );
  const list = sizes.map(({ path }) => path).join(" ");
  const facts = view.facts ?? 0;
  assert.ok(initial <= 60 * KIB, `the initial script of ${view.name}`);
  assert.ok(rest <= 150 * KIB, `the script of ${view.name}`);
  assert.ok(sizes.length - facts <= MOST_REQUESTS, `${view.name}: ${list}`);
  assert.equal(data.filter((one) => one === "reads").length, 1, list);
  assert.ok(data.length - facts <= 1, `${view.name} reads its data at once: ${list}`);
  await page.close();
}

export async function the_first_view_of_every_screen_is_light(world) {
  for (const view of VIEWS) await expectLight(world, view, "en");
}

export async function the_first_view_in_german_is_light(world) {
  await world.context.addInitScript(() => localStorage.setItem("tympan.language", "de"));
  for (const view of VIEWS.slice(0, 2)) await expectLight(world, view, "de");
}
