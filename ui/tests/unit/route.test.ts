import { describe, expect, it } from "vitest";
import { editorUrl, encodePath, HOME, loginUrl, parseRoute, safeResource, sitesUrl } from "../../src/route";

function route(address: string) {
  return parseRoute(new URL(address, "http://author"));
}

describe("addresses", () => {
  it("lead back to what they were made from", () => {
    for (const path of ["/content", "/content/a b/ü", "/content/100%/a?b#c", "/content/x.html"]) {
      expect(route(sitesUrl(path))).toEqual({ screen: "sites", path });
      expect(route(editorUrl(path))).toEqual({ screen: "editor", path, panel: "page", component: null });
    }
    const component = "/content/a/jcr:content/root/text";
    expect(route(editorUrl("/content/a", "components", component))).toEqual({
      screen: "editor",
      path: "/content/a",
      panel: "components",
      component,
    });
    expect(route(loginUrl("/queue.html?a=b"))).toEqual({ screen: "login", resource: "/queue.html?a=b", reason: null });
  });

  it("keep colons readable", () => expect(encodePath("/a/jcr:content")).toBe("/a/jcr:content"));

  it("take the editor's address with and without extension", () => {
    expect(route("/editor.html/content/a.html")).toMatchObject({ path: "/content/a" });
    expect(route("/editor.html/content/a")).toMatchObject({ path: "/content/a" });
    expect(route("/sites.html/content/a/")).toMatchObject({ path: "/content/a" });
    expect(route("/sites.html")).toMatchObject({ path: "/content" });
  });

  it("survive broken escapes", () => expect(route("/sites.html/%E0%A4%A")).toMatchObject({ screen: "sites" }));

  it("that mean no screen say so", () => expect(route("/siteshtml/x")).toEqual({ screen: "missing", address: "/siteshtml/x" }));
});

describe("the way back from login", () => {
  for (const wrong of [
    null,
    "",
    "//evil.example",
    "/\\evil.example",
    "https://evil.example",
    "javascript:alert(1)",
    "/",
    "/login.html",
    "/a\n//b",
  ]) {
    it(`never leads to \`${wrong}\``, () => expect(safeResource(wrong)).toBe(HOME));
  }
  it("leads to a path of this server", () =>
    expect(safeResource("/editor.html/content/a.html?x=1")).toBe("/editor.html/content/a.html?x=1"));
});
