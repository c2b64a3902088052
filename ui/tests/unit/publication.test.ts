import { describe, expect, it } from "vitest";
import { moveOperations } from "../../src/screens/editor/move_page";
import { openCompanions } from "../../src/parts/companions";
import { nextMorning, timesProblem } from "../../src/screens/editor/publication";
import { levelPlace, placeOf } from "../../src/screens/editor/tree";
import type { Companion, ComponentItem, PageDetail } from "../../src/server/answers";

const NOW = new Date("2026-11-30T12:00:00Z");
const at = (hours: number) => new Date(NOW.getTime() + hours * 3_600_000);

describe("the times of a publication", () => {
  it("lie ahead, the end after the publication", () => {
    expect(timesProblem(null, null, NOW)).toBeNull();
    expect(timesProblem(at(1), at(2), NOW)).toBeNull();
    expect(timesProblem(at(-1), null, NOW)).toMatch(/has passed/);
    expect(timesProblem(at(2), at(1), NOW)).toMatch(/after the publication/);
    expect(timesProblem(null, at(-1), NOW)).toMatch(/after the publication/);
    expect(timesProblem(new Date("nonsense"), null, NOW)).toMatch(/day and time of publication/);
    expect(timesProblem(null, new Date(""), NOW)).toMatch(/day and time of the end/);
  });

  it("are proposed for the next morning", () => {
    const morning = nextMorning(NOW);
    expect([morning.getHours(), morning.getMinutes()]).toEqual([8, 0]);
    expect(morning > NOW && morning.getTime() - NOW.getTime() < 48 * 3_600_000).toBe(true);
  });
});

describe("the companions that are shown", () => {
  it("are those that visitors lack or have in an older state", () => {
    const one = (path: string, status: Companion["status"], ticked: boolean): Companion => ({ path, title: null, status, kind: "asset", ticked, referrer: "/p" });
    const all = [one("/a", "never", true), one("/b", "live", false), one("/c", "outdated", true), one("/d", "taken-away", false)];
    expect(openCompanions(all).map(({ path }) => path)).toEqual(["/a", "/c", "/d"]);
  });
});

const item = (path: string, children: ComponentItem[] = [], container = children.length > 0): ComponentItem => ({
  path,
  name: path.slice(path.lastIndexOf("/") + 1),
  resourceType: "x",
  title: path,
  label: null,
  container,
  children,
});
const page = {
  path: "/site/p",
  title: "P",
  content: { path: "/site/p/jcr:content", resourceType: "site/page", title: null },
  components: [item("/r", [item("/r/a"), item("/r/box", [item("/r/box/c")]), item("/r/b")])],
} as unknown as PageDetail;

describe("the place of a component", () => {
  it("is after the component before it, or the first", () => {
    expect(placeOf(page.components, "/r/b")).toEqual({ after: "box" });
    expect(placeOf(page.components, "/r/a")).toBe("first");
  });

  it("one level up or down is behind its container, or in the container before it", () => {
    expect(levelPlace(page, "/r/box/c", "out")).toMatchObject({ parent: "/r", place: { after: "box" } });
    expect(levelPlace(page, "/r/b", "in")).toMatchObject({ parent: "/r/box", place: "last" });
    expect(levelPlace(page, "/r/box", "in")).toBeNull();
    expect(levelPlace(page, "/r", "out")).toBeNull();
  });
});

describe("the move of a page", () => {
  const move = { to: "/site/q", isRewriting: true, leavesRedirect: true, activates: false };

  it("leaves a redirect at its place among the siblings", () => {
    const [moved, put, order] = moveOperations(page, move, "n");
    expect(moved).toEqual({ op: "move", from: "/site/p", to: "/site/q", rewrite: true });
    expect(put).toMatchObject({ op: "put", path: "/site/p", node: { type: "cq:Page", children: { "jcr:content": { properties: { "cq:redirectTarget": "/site/q", hideInNav: true } } } } });
    expect(order).toEqual({ op: "order", path: "/site/p", place: "after", sibling: "n" });
  });

  it("alone is one operation", () => {
    expect(moveOperations(page, { ...move, leavesRedirect: false, isRewriting: false }, null)).toEqual([{ op: "move", from: "/site/p", to: "/site/q" }]);
  });
});
