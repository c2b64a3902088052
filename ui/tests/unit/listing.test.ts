import { describe, expect, it } from "vitest";
import { arrange, nextSort, templateName, type Column } from "../../src/screens/sites/order";
import type { PageItem, Status } from "../../src/server/answers";
import { canDeactivate, isSettling, pollPause, statusView } from "../../src/status";
import { shortTime } from "../../src/time";

function item(name: string, more: Partial<PageItem> = {}): PageItem {
  return {
    path: `/content/${name}`,
    name,
    title: name,
    type: "page",
    resourceType: "a/page",
    template: null,
    modified: null,
    modifiedBy: null,
    hasChildren: false,
    status: "live",
    activated: null,
    ...more,
  };
}

describe("order", () => {
  const items = [
    item("b", { title: "Page 10", status: "live", modified: "2026-01-02T00:00:00Z" }),
    item("a", { title: "page 9", status: "failed", modified: "2026-01-03T00:00:00Z" }),
    item("c", { title: "Zoo", status: "queued", template: "/conf/t/article" }),
  ];
  const names = (found: PageItem[]) => found.map((one) => one.name).join("");
  const sorted = (column: Column, isDescending = false) => names(arrange(items, "", { column, isDescending }));

  it("is the content's, unless a column is chosen", () => expect(names(arrange(items, "", null))).toBe("bac"));
  it("counts numbers and ignores case in titles", () => expect(sorted("title")).toBe("abc"));
  it("puts what needs attention first", () => expect(sorted("status")).toBe("acb"));
  it("puts the latest first when descending", () => expect(sorted("modified", true)).toBe("abc"));

  it("goes ascending, descending, and back", () => {
    const first = nextSort(null, "title");
    const second = nextSort(first, "title");
    expect([first?.isDescending, second?.isDescending, nextSort(second, "title")]).toEqual([false, true, null]);
    expect(nextSort(second, "status")).toEqual({ column: "status", isDescending: false });
  });

  it("finds all words, wherever they are", () => {
    expect(names(arrange(items, "PAGE 9", null))).toBe("a");
    expect(names(arrange(items, "article", null))).toBe("c");
    expect(names(arrange(items, "failed", null))).toBe("a");
    expect(names(arrange(items, "nothing", null))).toBe("");
  });

  it("names the template, else the type", () => expect(items.map(templateName)).toEqual(["page", "page", "article"]));
});

describe("status", () => {
  const statuses: Status[] = ["draft", "modified", "live", "deactivated", "queued", "failed"];

  it("offers to deactivate what visitors may see", () => {
    expect(statuses.filter(canDeactivate)).toEqual(["modified", "live", "queued", "failed"]);
  });
  it("is watched only on its way", () => expect(statuses.filter(isSettling)).toEqual(["queued"]));
  it("is shown by its own name when unknown", () => expect(statusView("scheduled" as Status).label).toBe("scheduled"));
  it("is asked for ever more rarely", () => {
    const pauses = Array.from({ length: 20 }, (_, attempt) => pollPause(attempt));
    expect(pauses[0]).toBe(1000);
    expect(pauses.every((pause, at) => at === 0 || pause >= (pauses[at - 1] ?? 0))).toBe(true);
    expect(pauses.at(-1)).toBe(15_000);
  });
});

describe("times", () => {
  const now = new Date("2026-06-15T12:00:00Z");
  const cases: [iso: string | null, text: RegExp][] = [
    ["2026-06-15T11:59:40Z", /^just now$/],
    ["2026-06-15T11:55:00Z", /5 minutes ago/],
    ["2026-06-15T09:00:00Z", /3 hours ago/],
    ["2026-06-14T12:00:00Z", /yesterday/],
    ["2024-06-01T12:00:00Z", /2024/],
    [null, /^$/],
    ["rubbish", /^$/],
  ];
  for (const [iso, text] of cases) it(String(iso), () => expect(shortTime(iso, now)).toMatch(text));
});
