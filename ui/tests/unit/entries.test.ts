import { describe, expect, it } from "vitest";
import { checkValues } from "../../src/form/check";
import { formPatch, orderSteps } from "../../src/form/patch";
import { newEntry, openValues, type Entry } from "../../src/form/value";
import type { Dialog, Field } from "../../src/server/answers";

const PICTURES: Field = {
  name: "pictures",
  kind: "multi",
  label: "Pictures",
  field: {
    name: "pictures",
    kind: "group",
    fields: [
      { name: "file", kind: "path", label: "Picture", required: true },
      { name: "alt", kind: "text" },
      { name: "wide", kind: "checkbox" },
      { name: "file@Delete", kind: "hidden", value: "true" },
    ],
  },
};
const ALBUMS: Field = { name: "albums", kind: "multi", field: { name: "albums", kind: "group", fields: [PICTURES] } };
const STORED = [
  { "@name": "item0", file: "/a", alt: "A" },
  { "@name": "item1", file: "/b", wide: true },
  { "@name": "odd", file: "/c" },
];

function dialog(field: Field, stored: Dialog["values"][string]): Dialog {
  return {
    path: "/p",
    resourceType: "t",
    title: "T",
    hasDialog: true,
    values: { [field.name]: stored },
    tabs: [{ title: "One", fields: [field] }],
  };
}

const opened = dialog(PICTURES, STORED);
const patched = (pictures: Entry[]) => formPatch(opened, { pictures }).children?.pictures;
const moved = (pictures: Entry[]) => orderSteps(opened, { pictures }).map(({ path, place }) => `${path} ${JSON.stringify(place)}`);

function three(): [Entry, Entry, Entry] {
  return structuredClone(openValues(opened).pictures) as [Entry, Entry, Entry];
}

describe("lists of entries", () => {
  it("that were not touched are not written", () => {
    expect(patched(three())).toBeUndefined();
    expect(moved(three())).toEqual([]);
  });

  it("write the changed property of the changed entry only", () => {
    const [first, second, third] = three();
    second.values.alt = "B";
    expect(patched([first, second, third])).toEqual({ children: { item1: { properties: { alt: "B" } } } });
  });

  it("delete removed entries by name, and the list with its last one", () => {
    const [, second, third] = three();
    expect(patched([second, third])).toEqual({ children: { item0: null } });
    expect(moved([second, third])).toEqual([]);
    expect(patched([])).toBeNull();
  });

  it("create new entries at the end, under a free name, and then bring them to their place", () => {
    const added = newEntry(PICTURES, ["item0", "item1", "odd"]);
    expect(added.name).toBe("item2");
    added.values.file = "/new";
    expect(patched([added, ...three()])).toEqual({
      children: { item2: { type: "nt:unstructured", properties: { file: "/new" } } },
    });
    expect(moved([added, ...three()])).toEqual(['/p/pictures/item2 "first"']);
  });

  it("change places without being written", () => {
    const [first, second, third] = three();
    expect(moved([second, first, third])).toEqual(['/p/pictures/item1 "first"']);
    expect(moved([first, third, second])).toEqual(['/p/pictures/odd {"after":"item0"}']);
    expect(patched([second, first, third])).toBeUndefined();
  });

  it("name a problem by its place", () => {
    const [first, second, third] = three();
    third.values.file = " ";
    expect([...checkValues(opened, { pictures: [first, second, third] })]).toEqual([["pictures/odd/file", "Picture is required."]]);
  });

  it("may hold lists themselves", () => {
    const nested = dialog(ALBUMS, [{ "@name": "a", pictures: STORED }]);
    const [album] = structuredClone(openValues(nested).albums) as [Entry];
    const [first, second, third] = album.values.pictures as [Entry, Entry, Entry];
    first.values.alt = "AA";
    album.values.pictures = [second, third, first];
    expect(formPatch(nested, { albums: [album] })).toEqual({
      children: { albums: { children: { a: { children: { pictures: { children: { item0: { properties: { alt: "AA" } } } } } } } } },
    });
    expect(orderSteps(nested, { albums: [album] })).toEqual([
      { path: "/p/albums/a/pictures/item1", place: "first" },
      { path: "/p/albums/a/pictures/odd", place: { after: "item1" } },
    ]);
  });
});
