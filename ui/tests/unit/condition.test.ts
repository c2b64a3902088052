import { describe, expect, it } from "vitest";
import { checkValues } from "../../src/form/check";
import { holds, isEnabled, isShown, presentField, shownTabs } from "../../src/form/condition";
import { formPatch } from "../../src/form/patch";
import { openValues, type Values } from "../../src/form/value";
import { hasFeature } from "../../src/richtext/features";
import type { Condition, Dialog, Field } from "../../src/server/answers";

function dialog(fields: Field[], values: Dialog["values"] = {}, types: Dialog["types"] = {}): Dialog {
  return { path: "/p", resourceType: "t", title: "T", hasDialog: true, values, types, tabs: [{ title: "One", fields }] };
}

describe("conditions", () => {
  const values: Values = { listFrom: "children", box: true, off: false, tags: ["a"], none: [], blank: "" };
  const cases: [condition: Condition, expected: boolean][] = [
    [{ field: "listFrom", in: ["children", "static"] }, true],
    [{ field: "listFrom", in: ["static"] }, false],
    [{ field: "box", in: ["true"] }, true],
    [{ field: "off", in: ["true"] }, false],
    [{ field: "tags", in: ["a"] }, true],
    [{ not: { field: "box", in: ["true"] } }, false],
    [{ all: [{ field: "box", in: ["true"] }, { field: "off", in: ["true"] }] }, false],
    [{ any: [{ field: "box", in: ["true"] }, { field: "off", in: ["true"] }] }, true],
    [{ any: [] }, false],
    [{ field: "listFrom", filled: true }, true],
    [{ field: "blank", filled: true }, false],
    [{ field: "none", filled: true }, false],
    [{ field: "absent", filled: true }, false],
    [{ field: "absent", in: ["false"] }, true],
  ];
  for (const [condition, expected] of cases) it(JSON.stringify(condition), () => expect(holds(condition, values)).toBe(expected));

  it("hide fields, and tabs without a field that is shown", () => {
    const field: Field = { name: "alt", kind: "text", required: true, visible: { not: { field: "isDecorative", in: ["true"] } } };
    const opened = dialog([field]);
    expect(isShown(field, { isDecorative: true })).toBe(false);
    expect(shownTabs(opened, { isDecorative: true })).toEqual([]);
    expect(shownTabs(opened, {}).length).toBe(1);
  });

  it("require no field that is hidden or cannot be changed", () => {
    const box: Field = { name: "fromDam", kind: "checkbox" };
    const alt: Field = { name: "alt", kind: "text", label: "Alt", required: true, enabled: { not: { field: "fromDam", in: ["true"] } } };
    expect([...checkValues(dialog([box, alt]), { fromDam: true, alt: "" })]).toEqual([]);
    expect([...checkValues(dialog([box, alt]), { fromDam: false, alt: "" })]).toEqual([["alt", "Alt is required."]]);
    expect(isEnabled(alt, { fromDam: true })).toBe(false);
    expect(presentField(alt, { fromDam: true }).isReadOnly).toBe(true);
  });

  it("require a field for the value of another", () => {
    const name: Field = { name: "name", kind: "text", label: "Name", requiredWhen: { any: [{ field: "value", filled: true }] } };
    const opened = dialog([name, { name: "value", kind: "text" }]);
    expect([...checkValues(opened, { name: "", value: "v" })]).toEqual([["name", "Name is required."]]);
    expect([...checkValues(opened, { name: "", value: "" })]).toEqual([]);
  });
});

describe("values as AEM stores them", () => {
  const box: Field = { name: "linkTarget", kind: "checkbox", checkedValue: "_blank", uncheckedValue: "_self", typeHint: "String" };
  const bare: Field = { name: "decorative", kind: "checkbox", checkedValue: "true", typeHint: "String" };
  const title: Field = { name: "jcr:title", kind: "text" };

  function patched(fields: Field[], edits: Values, values: Dialog["values"] = {}, types: Dialog["types"] = {}) {
    const opened = dialog(fields, values, types);
    return formPatch(opened, { ...openValues(opened), ...edits }).properties;
  }

  it("boxes store their texts", () => {
    expect(patched([box], { linkTarget: true })).toEqual({ linkTarget: "_blank" });
    expect(patched([box], { linkTarget: false }, { linkTarget: "_blank" })).toEqual({ linkTarget: "_self" });
    expect(openValues(dialog([box], { linkTarget: "_self" })).linkTarget).toBe(false);
    expect(openValues(dialog([box], { linkTarget: "_blank" })).linkTarget).toBe(true);
  });

  it("an unchecked box is stored with the first change, or removed if it has no text for that", () => {
    expect(patched([title, box, bare], { "jcr:title": "New" })).toEqual({ "jcr:title": "New", linkTarget: "_self" });
    expect(patched([bare], { decorative: false }, { decorative: "true" })).toEqual({ decorative: null });
  });

  it("a box keeps the type that it has", () => {
    const field = { ...bare, uncheckedValue: "false" };
    expect(patched([field], { decorative: false }, { decorative: true }, { decorative: "Boolean" })).toEqual({
      decorative: { type: "Boolean", value: false },
    });
  });

  it("a number is a text without a type", () => {
    const count: Field = { name: "maxItems", kind: "number", step: "1", typeHint: "String" };
    expect(patched([count], { maxItems: "4" })).toEqual({ maxItems: "4" });
    expect([...checkValues(dialog([{ ...count, label: "Max" }]), { maxItems: "4.5" })]).toEqual([["maxItems", "Max must be a whole number."]]);
    expect([...checkValues(dialog([{ ...count, step: "0.5" }]), { maxItems: "4.5" })]).toEqual([]);
  });

  it("dates have the type and format of their field", () => {
    const day: Field = { name: "day", kind: "date", dateType: "date", valueFormat: "YYYY-MM-DD", typeHint: "String" };
    expect(patched([day], { day: "2026-03-01" })).toEqual({ day: "2026-03-01" });
    expect(patched([{ ...day, dateType: "time" }], { day: "08:30" })).toEqual({ day: "08:30" });
    const moment = patched([{ ...day, valueFormat: null, typeHint: "Date" }], { day: "2026-03-01" })?.day;
    expect(moment).toMatchObject({ type: "Date", value: expect.stringMatching(/^2026-03-01T00:00:00\.000[+-]/) });
    expect([...checkValues(dialog([{ ...day, label: "Day", min: "2026-04-01" }]), { day: "2026-03-01" })]).toEqual([
      ["day", "Day must not be before 2026-04-01."],
    ]);
  });

  it("a chosen asset replaces the uploaded file", () => {
    const file: Field = { name: "fileReference", kind: "path", file: "file", fileName: "fileName", hasFile: true };
    const opened = dialog([file], { fileName: "old.png" });
    expect(formPatch(opened, { fileReference: "/content/dam/new.png" })).toEqual({
      properties: { fileReference: "/content/dam/new.png", fileName: null },
      children: { file: null },
    });
  });

  it("saving removes what a hidden field removes", () => {
    const link: Field = { name: "link", kind: "hidden", isRemoved: true };
    expect(patched([title, link], { "jcr:title": "New" }, { link: "/a" })).toEqual({ "jcr:title": "New", link: null });
    expect(patched([title, link], {}, { link: "/a" })).toBeUndefined();
  });

  it("the default of a field that cannot be changed is not stored", () => {
    const fields: Field[] = [title, { name: "start", kind: "hidden", value: "norestriction", isReadOnly: true }];
    expect(patched(fields, { "jcr:title": "New" })).toEqual({ "jcr:title": "New" });
  });
});

describe("features of rich text", () => {
  it("are those of the plugins, or all without any", () => {
    expect(hasFeature(null, "table", "table")).toBe(true);
    const features = { format: ["bold"], lists: ["*"], links: ["-"] };
    expect(hasFeature(features, "format", "bold")).toBe(true);
    expect(hasFeature(features, "format", "italic")).toBe(false);
    expect(hasFeature(features, "lists", "ordered")).toBe(true);
    expect(hasFeature(features, "links", "modifylink")).toBe(false);
    expect(hasFeature(features, "table", "table")).toBe(false);
    expect(hasFeature({ table: ["*"] }, "format", "italic")).toBe(true);
  });
});
