/** Dialogs: every kind of field, what it stores, and fields that the values of others show and hide. */
import assert from "node:assert/strict";
import { expectAccessible, expectSoon, openSaving, shoot } from "../harness.mjs";
import { DIALOGS } from "../mock/content.mjs";

const PAGE = "/content/demo/en/trieste";
const COMPONENT = `${PAGE}/jcr:content/root/every`;
const TYPE = "demo/components/every";
const is = (field, ...values) => ({ field, in: values });
const option = (value, text = value) => ({ value, text });

const FIELDS = [
  { name: "from", kind: "select", label: "Build list using", hasEmptyOption: false, value: "children", options: [option("children", "Child pages"), option("tags", "Tags")] },
  { name: "depth", kind: "number", label: "Depth", step: "1", min: "1", max: "9", value: "1", typeHint: "String", visible: is("from", "children") },
  { name: "tags", kind: "multi", label: "Tags", typeHint: "String[]", field: { name: "tags", kind: "path", picks: "tag" }, required: true, visible: is("from", "tags") },
  { name: "fromPage", kind: "checkbox", label: "Title from page", checkedValue: "true", uncheckedValue: "false", value: "true", typeHint: "String" },
  { name: "jcr:title", kind: "text", label: "Title", placeholder: "Say it", required: true, enabled: { not: is("fromPage", "true") } },
  { name: "linkTarget", kind: "checkbox", label: "New window", checkedValue: "_blank", uncheckedValue: "_self", typeHint: "String" },
  { name: "layout", kind: "radio", label: "Layout", options: [option("fixed"), option("wide")], typeHint: "String" },
  { name: "panels", kind: "select", label: "Open panels", multiple: true, options: [option("one"), option("two"), option("three")], typeHint: "String[]" },
  { name: "libraries", kind: "multi", label: "Libraries", suggestions: [option("site.base")], field: { name: "libraries", kind: "text" }, typeHint: "String[]" },
  { name: "day", kind: "date", label: "Day", dateType: "date", valueFormat: "YYYY-MM-DD", typeHint: "String" },
  { name: "color", kind: "color", label: "Color", suggestions: [option("#ff0000")], typeHint: "String" },
  { name: "text", kind: "richtext", label: "Text", features: { format: ["bold"], lists: ["-"], links: ["-"] } },
  {
    name: "cq:styleIds", kind: "styles", label: "Styles", typeHint: "String[]",
    groups: [{ label: "Size", options: [option("1", "Small"), option("2", "Large")] }, { label: "Marks", multiple: true, options: [option("3", "Dark")] }],
  },
];

const ITEMS = [
  { item: "heading", text: "Source" },
  { item: "field", name: "from" },
  { item: "group", style: "well", title: "Children", visible: is("from", "children"), items: [{ item: "field", name: "depth" }] },
  ...FIELDS.slice(2).map(({ name }) => ({ item: "field", name })),
  { item: "alert", text: "Saved at once." },
];

/** Opens the dialog of a component with all kinds of fields. */
async function openEvery(world) {
  DIALOGS[TYPE] = { title: "Every field", tabs: [{ title: "Properties", fields: FIELDS, items: ITEMS }] };
  let node = world.state.root;
  for (const name of `${PAGE}/jcr:content/root`.split("/").filter(Boolean)) node = node.children.get(name);
  const every = { properties: { "jcr:primaryType": "nt:unstructured", "sling:resourceType": TYPE, "cq:styleIds": ["9"] }, children: new Map() };
  node.children.set("every", every);
  await openSaving(world, `/editor.html${PAGE}.html?component=${encodeURIComponent(COMPONENT)}`);
  await world.page.getByText("Build list using").waitFor();
  return every.properties;
}

export async function each_kind_of_field_stores_what_aem_stores(world) {
  const { page } = world;
  const stored = await openEvery(world);
  await expectAccessible(page);
  await shoot(page, "dialog-every-field");
  await page.getByLabel("Depth").fill("3");
  await page.getByLabel("Title from page").uncheck();
  await page.getByLabel(/^Title\b(?! from)/).fill("By hand");
  await page.getByLabel("New window").check();
  await page.getByLabel("wide").check();
  await page.getByLabel("three").check();
  await page.getByLabel("one", { exact: true }).check();
  await page.getByLabel("Day").fill("2026-03-01");
  await page.getByRole("button", { name: "#ff0000" }).click();
  await page.getByLabel("Size").selectOption({ label: "Large" });
  await page.getByLabel("Dark").check();
  await page.getByText("All changes saved").waitFor();
  await expectSoon(
    () => Object.fromEntries(Object.entries(stored).filter(([name]) => !/^(jcr:primaryType|jcr:last|cq:last|sling:)/.test(name))),
    {
      from: "children",
      depth: "3",
      fromPage: "false",
      "jcr:title": "By hand",
      linkTarget: "_blank",
      layout: "wide",
      panels: ["one", "three"],
      day: "2026-03-01",
      color: "#ff0000",
      // A style that the policy no longer offers stays.
      "cq:styleIds": ["9", "2", "3"],
    },
  );
  await page.getByLabel("New window").uncheck();
  await expectSoon(() => stored.linkTarget, "_self");
}

export async function fields_are_shown_and_enabled_by_the_values_of_others(world) {
  const { page } = world;
  await openEvery(world);
  const title = page.getByLabel(/^Title\b(?! from)/);
  assert.equal(await title.isDisabled(), true);
  assert.equal(await title.getAttribute("placeholder"), "Say it");
  await page.getByLabel("Title from page").uncheck();
  assert.equal(await title.isDisabled(), false);
  await page.getByText("Children", { exact: true }).waitFor();
  assert.equal(await page.getByLabel("Add a tag by its id").count(), 0);
  await page.getByLabel("Build list using").selectOption("tags");
  await page.getByLabel("Add a tag by its id").waitFor();
  assert.equal(await page.getByLabel("Depth").count(), 0);
  assert.equal(await page.getByText("Children", { exact: true }).count(), 0);
  // Only the tools that the dialog allows are there.
  const tools = page.getByRole("toolbar", { name: "Formatting of Text" });
  await tools.getByRole("button", { name: "Bold" }).waitFor();
  assert.equal(await tools.getByRole("button", { name: "Italic" }).count(), 0);
  assert.equal(await tools.getByRole("button", { name: "Bulleted list" }).count(), 0);
}
