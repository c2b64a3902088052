import { describe, expect, it } from "vitest";
import {
  EditHistory,
  pathAfter,
  sentNode,
  stepOperations,
  type MoveStep,
  type PresenceStep,
  type ValueStep,
} from "../../src/screens/editor/history.svelte";

const typed = (before: string, after: string, at: number, field = "text"): ValueStep => ({
  kind: "value",
  path: "/p/jcr:content/a",
  field,
  label: field,
  before,
  after,
  began: at,
  at,
});

describe("the history", () => {
  it("takes typing without a pause as one step, and a pause, another field or an undo as a new one", () => {
    const history = new EditHistory();
    history.record(typed("", "a", 0));
    history.record(typed("a", "ab", 500));
    expect(history.next("undo")).toMatchObject({ before: "", after: "ab" });
    history.record(typed("ab", "abc", 1600));
    history.record(typed("", "x", 1700, "title"));
    expect(history.kept.done.map((step) => (step as ValueStep).after)).toEqual(["ab", "abc", "x"]);
    history.walk("undo", history.next("undo")!);
    history.record(typed("", "y", 1750, "title"));
    history.record(typed("y", "yz", 1800, "title"));
    expect(history.kept.done.map((step) => (step as ValueStep).after)).toEqual(["ab", "abc", "yz"]);
  });

  it("keeps long typing undoable in parts", () => {
    const history = new EditHistory();
    for (let at = 0; at <= 20_000; at += 500) history.record(typed("x".repeat(at / 500), "x".repeat(at / 500 + 1), at));
    expect(history.kept.done.length).toBeGreaterThan(1);
  });

  it("drops a step that ends where it began", () => {
    const history = new EditHistory();
    history.record(typed("a", "ab", 0));
    history.record(typed("ab", "a", 100));
    expect(history.next("undo")).toBeNull();
  });

  it("goes back and forth, and forgets what was undone when a new edit is made", () => {
    const history = new EditHistory();
    history.record(typed("", "a", 0));
    history.record(typed("", "b", 0, "title"));
    history.walk("undo", history.next("undo")!);
    expect(history.next("redo")).toMatchObject({ field: "title" });
    history.walk("redo", history.next("redo")!);
    expect(history.next("redo")).toBeNull();
    history.walk("undo", history.next("undo")!);
    history.record(typed("a", "c", 9000));
    expect(history.next("redo")).toBeNull();
  });

  it("is restored from what was kept, and from nothing else", () => {
    const history = new EditHistory();
    history.record(typed("", "a", 0));
    const other = new EditHistory();
    other.restore(JSON.parse(JSON.stringify(history.kept)));
    expect(other.next("undo")).toEqual(history.next("undo"));
    for (const wrong of [null, 1, {}, { done: [{}], undone: [] }, { done: "x", undone: [] }]) {
      const fresh = new EditHistory();
      fresh.restore(wrong);
      expect(fresh.next("undo")).toBeNull();
    }
  });
});

describe("the operations of a step", () => {
  const node = { type: "nt:unstructured", properties: { a: "b" } };
  const removed: PresenceStep = { kind: "presence", path: "/p/x", label: "", isAdded: false, node, place: { after: "w" } };
  const moved: MoveStep = { kind: "move", label: "", from: "/p/a/x", to: "/p/b/x", before: { after: "w" }, after: "first" };

  it("of a deletion delete, and put back with the position", () => {
    expect(stepOperations(removed, "redo")).toEqual([{ op: "delete", path: "/p/x" }]);
    expect(stepOperations(removed, "undo")).toEqual([
      { op: "put", path: "/p/x", node },
      { op: "order", path: "/p/x", place: "after", sibling: "w" },
    ]);
    expect([pathAfter(removed, "redo"), pathAfter(removed, "undo")]).toEqual([null, "/p/x"]);
  });

  it("of an addition are the reverse", () => {
    const added: PresenceStep = { ...removed, isAdded: true };
    expect(stepOperations(added, "undo")).toEqual(stepOperations(removed, "redo"));
    expect(stepOperations(added, "redo")).toEqual(stepOperations(removed, "undo"));
  });

  it("of a move between containers move and order, both ways", () => {
    expect(stepOperations(moved, "redo")).toEqual([
      { op: "move", from: "/p/a/x", to: "/p/b/x" },
      { op: "order", path: "/p/b/x", place: "first" },
    ]);
    expect(stepOperations(moved, "undo")).toEqual([
      { op: "move", from: "/p/b/x", to: "/p/a/x" },
      { op: "order", path: "/p/a/x", place: "after", sibling: "w" },
    ]);
  });
});

describe("a node that is put back", () => {
  const answer = (properties: Record<string, { type: string; value: string }>, children = {}) => ({ path: "/p", name: "p", type: "nt:unstructured", properties, children });

  it("has its properties and children, but not what the repository sets", () => {
    const child = { ...answer({ b: { type: "Name", value: "c" } }), name: "q" };
    expect(sentNode(answer({ "jcr:primaryType": { type: "Name", value: "x" }, "jcr:uuid": { type: "String", value: "u" }, a: { type: "String", value: "b" } }, { q: child }))).toEqual({
      type: "nt:unstructured",
      properties: { a: { type: "String", value: "b" } },
      children: { q: { type: "nt:unstructured", properties: { b: { type: "Name", value: "c" } } } },
    });
  });

  it("cannot hold bytes", () => {
    expect(sentNode(answer({}, { file: { ...answer({ "jcr:data": { type: "Binary", value: "hash" } }), name: "file" } }))).toBeNull();
  });
});
