import { describe, expect, it } from "vitest";
import { findRow, mayLieIn, spots, stepPlace, visibleRows, type TreeRow } from "../../src/screens/editor/tree";
import type { ComponentItem, PageDetail } from "../../src/server/answers";

function component(path: string, children: ComponentItem[] = [], container = children.length > 0): ComponentItem {
  const name = path.slice(path.lastIndexOf("/") + 1);
  return { path, name, resourceType: `t/${name}`, title: name, label: null, container, children };
}

const ROOT = "/p/jcr:content/root";
const TREE = [component(ROOT, [component(`${ROOT}/a`), component(`${ROOT}/box`, [component(`${ROOT}/box/b`)]), component(`${ROOT}/c`)])];
const PAGE = { content: { path: "/p/jcr:content" }, components: TREE } as PageDetail;

function row(path: string): TreeRow {
  const found = findRow(TREE, path);
  if (!found) throw new Error(`no ${path}`);
  return found;
}

describe("the tree", () => {
  it("is read from top to bottom, with levels", () => {
    expect(visibleRows(TREE, () => false).map(({ item, level }) => `${level}${item.name}`)).toEqual(["1root", "2a", "2box", "3b", "2c"]);
    expect(visibleRows(TREE, (path) => path.endsWith("/box")).map(({ item }) => item.name)).toEqual(["root", "a", "box", "c"]);
  });

  it("knows the next place among the siblings", () => {
    expect(stepPlace(row(`${ROOT}/box`), "up")).toEqual({ before: "a" });
    expect(stepPlace(row(`${ROOT}/box`), "down")).toEqual({ after: "c" });
    expect(stepPlace(row(`${ROOT}/a`), "up")).toBeNull();
    expect(stepPlace(row(`${ROOT}/c`), "down")).toBeNull();
  });
});

describe("places for a new component", () => {
  it("are around the selected one first", () => {
    expect(spots(PAGE, `${ROOT}/a`).slice(0, 2)).toEqual([
      { label: "After a", parent: ROOT, place: { after: "a" } },
      { label: "Before a", parent: ROOT, place: { before: "a" } },
    ]);
  });

  it("are inside a selected container first, and named once", () => {
    const found = spots(PAGE, `${ROOT}/box`);
    expect(found[0]).toEqual({ label: "Inside box, at the end", parent: `${ROOT}/box`, place: "last" });
    expect(found.filter(({ parent }) => parent === `${ROOT}/box`)).toHaveLength(1);
  });

  it("take what the server allows there, and anything where it says nothing", () => {
    const box = { ...component(`${ROOT}/box`, [], true), allowed: ["t/a"] };
    const page = { content: { path: "/p/jcr:content", allowed: ["t/box"] }, components: [component(ROOT, [box])] } as unknown as PageDetail;
    expect([mayLieIn(page, box.path, "t/a"), mayLieIn(page, box.path, "t/b")]).toEqual([true, false]);
    expect([mayLieIn(page, "/p/jcr:content", "t/box"), mayLieIn(page, "/p/jcr:content", "t/a")]).toEqual([true, false]);
    expect(mayLieIn(page, ROOT, "t/b")).toBe(true);
  });

  it("exist on an empty page", () => {
    const empty = { ...PAGE, components: [] } as PageDetail;
    expect(spots(empty, null)).toEqual([{ label: "At the end of the page", parent: "/p/jcr:content", place: "last" }]);
  });
});
