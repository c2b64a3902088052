import { describe, expect, it } from "vitest";
import { checkValue, checkValues } from "../../src/form/check";
import { formPatch } from "../../src/form/patch";
import { changedFields, fieldOptions, openValues, type Values } from "../../src/form/value";
import type { Dialog, Field, NodePatch } from "../../src/server/answers";

const FIELDS: Field[] = [
  { name: "jcr:title", kind: "text", label: "Title", required: true },
  { name: "text", kind: "richtext" },
  { name: "width", kind: "number", label: "Width", typeHint: "Long", min: 100, max: 2000 },
  { name: "ratio", kind: "number", typeHint: "Double" },
  { name: "lazy", kind: "checkbox", typeHint: "Boolean" },
  { name: "align", kind: "radio", value: "start", options: [{ value: "start", text: "Start" }] },
  { name: "tags", kind: "multi", typeHint: "String[]", field: { name: "tags", kind: "text" } },
  { name: "onTime", kind: "date" },
  { name: "kind", kind: "hidden", value: "plain" },
];

function dialog(values: Dialog["values"], fields = FIELDS, types: Dialog["types"] = {}): Dialog {
  return { path: "/p", resourceType: "t", title: "T", hasDialog: true, values, types, tabs: [{ title: "One", fields }] };
}

function patched(opened: Dialog, edits: Values): NodePatch["properties"] {
  return formPatch(opened, { ...openValues(opened), ...edits }).properties;
}

const STORED = { "jcr:title": "Old", align: "start", kind: "plain" };

describe("patches", () => {
  const cases: [what: string, edits: Values, expected: NodePatch["properties"]][] = [
    ["nothing changed", {}, undefined],
    ["a text", { "jcr:title": "New" }, { "jcr:title": "New" }],
    ["an emptied text", { "jcr:title": "" }, { "jcr:title": null }],
    ["a Long", { width: "640" }, { width: { type: "Long", value: 640 } }],
    ["a Double", { ratio: "1.5" }, { ratio: { type: "Double", value: 1.5 } }],
    ["a box", { lazy: true }, { lazy: { type: "Boolean", value: true } }],
    ["a list", { tags: ["a", "", "b"] }, { tags: { type: "String", values: ["a", "b"] } }],
    ["text as it is", { text: "<p>ü & é</p>" }, { text: "<p>ü & é</p>" }],
  ];
  for (const [what, edits, expected] of cases) it(what, () => expect(patched(dialog(STORED), edits)).toEqual(expected));

  it("remove a list that was emptied", () => {
    expect(patched(dialog({ ...STORED, tags: ["a"] }), { tags: [] })).toEqual({ tags: null });
  });

  it("store an unticked box as false", () => {
    expect(patched(dialog({ ...STORED, lazy: true }), { lazy: false })).toEqual({ lazy: { type: "Boolean", value: false } });
  });

  it("store the defaults that the form showed, with the first change only", () => {
    const bare = dialog({ "jcr:title": "Old" });
    expect(patched(bare, {})).toBeUndefined();
    expect(patched(bare, { "jcr:title": "New" })).toEqual({ "jcr:title": "New", align: "start", kind: "plain" });
  });

  it("store a date with its offset, which reads back as the same moment", () => {
    const date = patched(dialog(STORED), { onTime: "2026-03-01T08:30" })?.onTime as { type: string; value: string };
    expect(date.type).toBe("Date");
    expect(date.value).toMatch(/^2026-03-01T08:30:00\.000[+-]\d\d:\d\d$/);
    expect(openValues(dialog({ onTime: date.value })).onTime).toBe("2026-03-01T08:30");
  });

  it("keep all values of a property that the dialog takes for a single one", () => {
    const opened = dialog({ ...STORED, text: ["a", "b"] });
    expect(openValues(opened).text).toEqual(["a", "b"]);
    expect(patched(opened, { text: ["a", "c"] })).toEqual({ text: { type: "String", values: ["a", "c"] } });
  });

  it("keep the type that a property has where the field asks for a text", () => {
    const opened = dialog({ link: "/a", count: 5 }, [{ name: "link", kind: "path", typeHint: "String" }, { name: "count", kind: "text" }], {
      link: "Path",
      count: "Long",
    });
    expect(patched(opened, { link: "/b", count: "6" })).toEqual({ link: { type: "Path", value: "/b" }, count: { type: "Long", value: 6 } });
    expect(patched(opened, { count: "six" })).toEqual({ count: { type: "Long", value: "six" } });
  });

  it("reach into the children that field names lead to", () => {
    const opened = dialog({}, [{ name: "./image/alt", kind: "text" }]);
    expect(formPatch(opened, { "./image/alt": "A" })).toEqual({ children: { image: { properties: { alt: "A" } } } });
  });

  it("never carry out an instruction hidden in a field's name", () => {
    const opened = dialog({ "jcr:title": "Old" }, [
      { name: "jcr:title", kind: "text" },
      { name: "fileReference@Delete", kind: "hidden", value: "true" },
    ]);
    expect(patched(opened, { "jcr:title": "New" })).toEqual({ "jcr:title": "New" });
  });

  it("hold a choice of several as a list from the beginning", () => {
    const opened = dialog({}, [{ name: "colors", kind: "select", typeHint: "String[]", options: [{ value: "red", text: null }] }]);
    expect(openValues(opened).colors).toEqual([]);
    expect(patched(opened, { colors: ["red"] })).toEqual({ colors: { type: "String", values: ["red"] } });
  });

  it("writes back what it opened as no change, for every kind", () => {
    const opened = dialog({
      ...STORED,
      width: 640,
      ratio: 0.5,
      lazy: "true",
      tags: "one",
      onTime: "2026-03-01T08:30:12.345Z",
      text: "<p>x</p>",
    });
    expect(changedFields(opened, openValues(opened))).toEqual([]);
  });
});

describe("checks", () => {
  const width = FIELDS[2] as Field;
  const cases: [value: string, problem: string | null][] = [
    ["", null],
    ["100", null],
    ["2000", null],
    ["99", "Width must be between 100 and 2000."],
    ["640.5", "Width must be a whole number."],
    ["wide", "Width must be a number."],
    ["1e999", "Width must be a number."],
  ];
  for (const [value, problem] of cases) it(`number \`${value}\``, () => expect(checkValue(width, value)).toBe(problem));

  it("names one limit where there is one", () => {
    expect(checkValue({ name: "n", kind: "number", min: 1 }, "0")).toBe("n must be at least 1.");
    expect(checkValue({ name: "n", kind: "number", max: 1 }, "2")).toBe("n must be at most 1.");
  });

  it("reads limits that come as texts", () => {
    expect(checkValue({ name: "n", kind: "number", min: "100", max: "" }, "9")).toBe("n must be at least 100.");
  });

  it("lets stored values be that nobody touched", () => {
    const opened = dialog({ ...STORED, width: 9 });
    expect(checkValues(opened, openValues(opened)).size).toBe(0);
    expect(checkValues(opened, { ...openValues(opened), width: "8" }).size).toBe(1);
  });

  it("calls a choice by its value where it has no text", () => {
    const field: Field = {
      name: "n",
      kind: "select",
      options: [
        { value: 2, text: null },
        { value: null, text: "None" },
      ],
    };
    expect(fieldOptions(field)).toEqual([
      { value: "2", text: "2" },
      { value: "", text: "None" },
    ]);
  });

  it("takes blanks for nothing in a required field", () => {
    const problems = checkValues(dialog({}), { ...openValues(dialog({})), "jcr:title": "  " });
    expect([...problems]).toEqual([["jcr:title", "Title is required."]]);
  });

  it("checks each value of a list", () => {
    const sizes: Field = { name: "sizes", kind: "multi", label: "Sizes", field: { name: "sizes", kind: "number", max: 9 } };
    expect(checkValue(sizes, ["1", "10"])).toBe("Sizes must be at most 9.");
    expect(checkValue({ ...sizes, required: true }, [""])).toBe("Sizes is required.");
  });
});
