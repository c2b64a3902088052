import { describe, expect, it } from "vitest";
import { mergeForms } from "../../src/form/merge";
import { openValues, type Values } from "../../src/form/value";
import { authorOf } from "../../src/server/changes";
import type { Dialog, Field, Revision } from "../../src/server/answers";

const FIELDS: Field[] = [
  { name: "title", kind: "text" },
  { name: "text", kind: "richtext" },
  { name: "tags", kind: "multi", field: { name: "tags", kind: "text" } },
  { name: "lazy", kind: "checkbox" },
];

function dialog(values: Dialog["values"]): Dialog {
  return { path: "/p", resourceType: "t", title: "T", hasDialog: true, values, tabs: [{ title: "One", fields: FIELDS }] };
}

const BASE = { title: "One", text: "a", tags: ["x"], lazy: true };

function merge(mine: Values, theirs: Dialog["values"]) {
  const opened = dialog(BASE);
  const { values, clashes, taken } = mergeForms(opened, { ...openValues(opened), ...mine }, dialog({ ...BASE, ...theirs }));
  return { values, clashes: clashes.map(({ field }) => field.name), taken: taken.map(({ name }) => name) };
}

describe("merging a form with what others saved", () => {
  it("takes what only they changed, and keeps what only I did", () => {
    const { values, clashes, taken } = merge({ title: "Mine" }, { text: "theirs", lazy: false });
    expect([values.title, values.text, values.lazy]).toEqual(["Mine", "theirs", false]);
    expect([clashes, taken]).toEqual([[], ["text", "lazy"]]);
  });

  it("clashes where both changed the same differently, and keeps mine until it is decided", () => {
    const { values, clashes } = merge({ title: "Mine", tags: ["x", "y"] }, { title: "Theirs", tags: ["z"] });
    expect(clashes).toEqual(["title", "tags"]);
    expect([values.title, values.tags]).toEqual(["Mine", ["x", "y"]]);
  });

  it("is at one where both changed to the same", () => {
    expect(merge({ title: "Same", tags: ["n"] }, { title: "Same", tags: ["n"] }).clashes).toEqual([]);
  });

  it("clashes where one removed what the other changed", () => {
    expect(merge({ title: "" }, { title: "Theirs" }).clashes).toEqual(["title"]);
    expect(merge({ title: "Mine" }, { title: null }).clashes).toEqual(["title"]);
  });

  it("never invents a value: every one is of one of the sides", () => {
    const choices = ["One", "Two", "Three"];
    for (const mine of choices) {
      for (const theirs of choices) {
        const { values, clashes } = merge({ title: mine }, { title: theirs });
        expect(values.title).toBe(mine === "One" ? theirs : mine);
        expect(clashes.length > 0).toBe(mine !== "One" && theirs !== "One" && mine !== theirs);
      }
    }
  });
});

describe("who changed a property", () => {
  const revision = (user: string, changes: Partial<Revision["changes"][number]>[]): Revision => ({
    sequence: 1,
    time: `time of ${user}`,
    user,
    message: null,
    root: "",
    cursor: "",
    changes: changes.map((one) => ({ kind: "changed", path: "/p", from: null, type: "t", properties: [], ...one })),
  });
  const feed = [
    revision("ann", [{ properties: [{ name: "title", kind: "changed" }] }]),
    revision("bea", [{ path: "/p/list/item0", properties: [{ name: "alt", kind: "added" }] }]),
    revision("cem", [{ properties: [{ name: "other", kind: "changed" }] }]),
  ];

  it("is told by the newest revision that names it", () => {
    expect(authorOf(feed, "/p", "title")?.user).toBe("ann");
    expect(authorOf([...feed, revision("dan", [{ properties: [{ name: "title", kind: "changed" }] }])], "/p", "title")?.user).toBe("dan");
  });
  it("is told of lists by the nodes below them", () => expect(authorOf(feed, "/p", "list")?.user).toBe("bea"));
  it("is told of what went away with a node above", () => {
    expect(authorOf([...feed, revision("eve", [{ path: "/p", kind: "removed" }])], "/p/x", "title")?.user).toBe("eve");
  });
  it("is nobody where nobody did", () => expect(authorOf(feed, "/q", "title")).toBeNull());
});
