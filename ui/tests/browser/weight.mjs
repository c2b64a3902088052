/** The weight of a view that is opened for the first time: requests, scripts, data. The figures are printed. */
import assert from "node:assert/strict";
import { gzipSync } from "node:zlib";
import { openSaving } from "../harness.mjs";

const KIB = 1024;
const PAGE = "/content/demo/en/trieste";
const VIEWS = [
  { name: "sites", address: "/sites.html/content/demo/en", ready: (page) => page.getByText("Slow days").waitFor(), data: ["privileges", "pages"] },
  { name: "editor", address: `/editor.html${PAGE}.html`, ready: (page) => page.getByLabel("Description").waitFor(), data: ["changes", "page", "dialog"] },
  { name: "versions", address: `/versions.html${PAGE}`, ready: (page) => page.getByText("Where to sleep").waitFor(), data: ["versions", "versions/diff"] },
  { name: "queue", address: "/queue.html", ready: (page) => page.getByRole("region", { name: "Publish" }).waitFor(), data: ["queue"] },
  { name: "operations", address: "/operations.html/jobs", ready: (page) => page.getByText("the password is wrong").waitFor(), data: ["operations/jobs"] },
];

async function expectLight(world, view) {
  const { page } = world;
  const requests = [];
  page.on("response", (response) => {
    const url = new URL(response.url());
    // The previewed page is the site's, the stream of changes has no end, and the icon is the browser's wish.
    const isStream = response.headers()["content-type"] === "text/event-stream";
    const isOurs = response.frame() === page.mainFrame() && !url.pathname.startsWith("/content/") && !url.pathname.endsWith(".svg");
    if (isOurs && !isStream) requests.push({ path: url.pathname, body: response.body() });
  });
  await openSaving(world, view.address);
  await view.ready(page);
  const sizes = await Promise.all(requests.map(async ({ path, body }) => ({ path, bytes: gzipSync(await body, { level: 9 }).length })));
  const scripts = sizes.filter(({ path }) => path.endsWith(".js"));
  const data = sizes.filter(({ path }) => path.startsWith("/api/")).map(({ path }) => path.slice("/api/v1/".length));
  const bytesOf = (isCounted) => scripts.filter(isCounted).reduce((sum, { bytes }) => sum + bytes, 0);
  const isInitial = ({ path }) => /\/(index|shell)-/.test(path);
  const [initial, rest] = [bytesOf(isInitial), bytesOf((one) => !isInitial(one))];
  const files = sizes.length - data.length;
  console.log(
    `        ${view.name}: ${sizes.length} requests, of which data ${data.join(", ")}; initial script ${(initial / KIB).toFixed(1)} KiB, screen ${(rest / KIB).toFixed(1)} KiB gzip`,
  );
  assert.ok(initial <= 60 * KIB, "the initial script");
  assert.ok(rest <= 150 * KIB, "the script of the screen");
  assert.ok(files <= 6, `the page, its style sheet, and four scripts: ${sizes.map(({ path }) => path).join(" ")}`);
  assert.deepEqual(data, ["me", ...view.data]);
}

export const the_first_view_of_sites_is_light = (world) => expectLight(world, VIEWS[0]);
export const the_first_view_of_the_editor_is_light = (world) => expectLight(world, VIEWS[1]);
export const the_first_view_of_versions_is_light = (world) => expectLight(world, VIEWS[2]);
export const the_first_view_of_the_queue_is_light = (world) => expectLight(world, VIEWS[3]);
export const the_first_view_of_operations_is_light = (world) => expectLight(world, VIEWS[4]);
