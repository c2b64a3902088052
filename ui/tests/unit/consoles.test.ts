import { describe, expect, it } from "vitest";
import { launchOf, launchesUrl, pageUrl, parseRoute, permissionsUrl, searchUrl, sitesUrl, stayInLaunch, usersUrl, versionsUrl } from "../../src/route";
import { filterOf, idOf, sizeText } from "../../src/screens/packages/package";
import { causeText, policyNode } from "../../src/screens/permissions/privileges";
import { hitsOf, marked, queryOf } from "../../src/screens/search/hits";
import { serverSort } from "../../src/screens/sites/order";
import { address } from "../../src/server/client";

const route = (url: string) => parseRoute(new URL(url, "http://author"));

describe("addresses of the consoles lead where they say", () => {
  it("versions", () => {
    expect(route(versionsUrl("/content/ä b", "1.0", "2.0"))).toEqual({ screen: "versions", path: "/content/ä b", from: "1.0", to: "2.0" });
  });
  it("permissions", () => {
    expect(route(permissionsUrl("/content"))).toEqual({ screen: "permissions", path: "/content" });
    expect(route(permissionsUrl("/"))).toEqual({ screen: "permissions", path: "/" });
  });
  it("launches", () => {
    expect(route(launchesUrl("a/b c"))).toEqual({ screen: "launches", name: "a/b c" });
    expect(route(launchesUrl())).toEqual({ screen: "launches", name: null });
  });
  it("users and groups", () => {
    expect(route(usersUrl("user", "a@b.example"))).toEqual({ screen: "users", kind: "user", name: "a@b.example" });
    expect(route(usersUrl("group"))).toEqual({ screen: "users", kind: "group", name: null });
  });
  it("searches", () => {
    const search = { text: "a & b", path: "/content", type: "" };
    expect(route(searchUrl(search))).toEqual({ screen: "search", facets: {}, ...search });
  });

  it("stay in the launch until it is left", () => {
    stayInLaunch("spring 1");
    expect(launchOf(new URL(sitesUrl("/content"), "http://author"))).toBe("spring 1");
    expect(pageUrl("/content/a", "edit")).toBe("/content/a.html?wcmmode=edit&tympan-branch=spring+1");
    stayInLaunch(null);
    expect(sitesUrl("/content")).toBe("/sites.html/content");
    expect(pageUrl("/content/a", "disabled", "1.0")).toBe("/content/a;v='1.0'.html?wcmmode=disabled");
  });
});

describe("parameters", () => {
  it("repeat lists and leave out what is undefined", () => {
    expect(address("/x", { a: ["1", "2"], b: undefined, c: false })).toBe("/x?a=1&a=2&c=false");
    expect(address("/x", {})).toBe("/x");
  });
});

describe("searches", () => {
  it("send what is typed as a value, never as a part of the statement", () => {
    const { statement, parameters } = queryOf({ text: "it's", path: "/a'b", type: "x] OR [y" }, 20) as { statement: string; parameters: unknown };
    expect(parameters).toEqual({ text: "it's" });
    expect(statement).toContain("FROM [nt:hierarchyNode] AS a");
    expect(statement).toContain("ISDESCENDANTNODE(a, '/a''b')");
    expect(statement).not.toContain("it's");
  });

  it("take the first title that there is", () => {
    const row = (values: Record<string, string | null>) => ({ path: "/content/a/b", score: 1, values });
    const of = (values: Record<string, string | null>) => hitsOf({ columns: [], rows: [row(values)], facets: {}, cursor: null })[0];
    expect(of({ "a.jcr:content/jcr:title": "Page", "a.jcr:primaryType": "cq:Page" })).toMatchObject({ title: "Page", kind: "page" });
    expect(of({ "a.jcr:content/metadata/dc:title": "Asset", "a.jcr:primaryType": "dam:Asset" })).toMatchObject({ title: "Asset", kind: "asset" });
    expect(of({ "a.jcr:title": null })).toMatchObject({ title: "b", kind: "node" });
  });

  it("show only what was found as marks", () => {
    expect(marked("a <strong>b</strong> &lt;c&gt; <i>d</i>")).toEqual([
      { text: "a ", isHit: false },
      { text: "b", isHit: true },
      { text: " <c> d", isHit: false },
    ]);
  });
});

describe("packages", () => {
  it("have ids and sizes", () => {
    expect(idOf({ id: { group: "g", name: "n", version: "" } })).toBe("g:n");
    expect([0, 999, 1024, 1536, 48_200_000].map(sizeText)).toEqual(["0 bytes", "999 bytes", "1 KiB", "1.5 KiB", "46 MiB"]);
  });
  it("are built of escaped paths", () => expect(filterOf(['/a"b&c'])).toContain('root="/a&#34;b&#38;c"'));
});

describe("reasons", () => {
  const entry = { kind: "entry", policy: "/content/rep:policy", number: 2, principal: "authors", through: [], restrictions: [] } as const;
  it("name the entry, whom it names, and how the user is in it", () => {
    expect(causeText({ ...entry, through: [], restrictions: [] }, "ada")).toBe("Entry 2 at /content, for authors (ada is a member).");
    expect(causeText({ ...entry, through: ["team"], restrictions: ["rep:glob=/x"] }, "ada")).toBe(
      "Entry 2 at /content, for authors (ada is a member through team), restricted to rep:glob=/x.",
    );
    expect(causeText({ ...entry, principal: "everyone", through: [], restrictions: [] }, "ada")).toBe("Entry 2 at /content, for everyone.");
    expect(policyNode("/rep:policy")).toBe("/");
  });
  it("say when nothing grants it", () => expect(causeText({ kind: "nothing" }, "ada")).toMatch(/nothing is granted by default/));
});

describe("sorting", () => {
  it("is the server's where it can", () => {
    expect(serverSort({ column: "title", isDescending: false })).toBe("title");
    expect(serverSort({ column: "modified", isDescending: true })).toBe("-modified");
    expect(serverSort({ column: "status", isDescending: false })).toBeNull();
  });
});
