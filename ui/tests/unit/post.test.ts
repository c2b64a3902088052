import { describe, expect, it } from "vitest";
import { errorMessage } from "../../src/server/client";
import {
  childPath,
  encodeBody,
  freeName,
  nameForTitle,
  nameProblem,
  pageNode,
  parentPath,
} from "../../src/server/post";

describe("bodies", () => {
  it("ask for JSON and carry UTF-8", () => {
    const body = encodeBody([["./x", "ü"]]);
    expect(body.toString()).toBe("_charset_=utf-8&%3Ahttp-equiv-accept=application%2Fjson&.%2Fx=%C3%BC");
  });

  it("make a page of its parent's kind", () => {
    expect(pageNode({ title: "New", resourceType: "a/page", template: "/conf/t" })).toEqual({
      type: "cq:Page",
      children: {
        "jcr:content": {
          type: "cq:PageContent",
          properties: { "jcr:title": "New", "sling:resourceType": "a/page", "cq:template": "/conf/t" },
        },
      },
    });
  });
});

describe("names", () => {
  const cases: [title: string, name: string][] = [
    ["Hello World", "hello-world"],
    ["  Über uns! ", "ueber-uns"],
    ["Crème brûlée", "creme-brulee"],
    ["東京 2026", "東京-2026"],
    ["---", ""],
  ];
  for (const [title, name] of cases) it(`for \`${title}\``, () => expect(nameForTitle(title)).toBe(name));

  for (const name of ["", ".", "..", "a/b", "a:b", "a[1]", "a|b", "a*", " a", "a ", 'a"']) {
    it(`refuses \`${name}\``, () => expect(nameProblem(name)).not.toBeNull());
  }
  it("are free ones", () => {
    expect([freeName("a", []), freeName("a", ["a"]), freeName("a", ["a", "a_0", "b"])]).toEqual(["a", "a_0", "a_1"]);
  });
  it("takes what JCR takes", () => expect(nameProblem("a b.c-d_é")).toBeNull());
});

describe("paths", () => {
  it("have parents and children", () => {
    expect([parentPath("/a/b"), parentPath("/a"), parentPath("/")]).toEqual(["/a", "/", "/"]);
    expect([childPath("/", "a"), childPath("/a", "b")]).toEqual(["/a", "/a/b"]);
  });
});

describe("error messages", () => {
  it("are the server's own", () => {
    expect(errorMessage(409, "Conflict", '{"error":"there is a node `/a` already"}')).toBe("there is a node `/a` already");
    expect(errorMessage(412, "Precondition Failed", '{"title":"Precondition Failed","detail":"it was changed"}')).toBe("it was changed");
    expect(errorMessage(500, "Internal", '{"status.message":"disk full"}')).toBe("disk full");
    expect(errorMessage(502, "Bad Gateway", "<html>")).toBe("502 Bad Gateway");
    expect(errorMessage(413, "", "[1]")).toBe("413");
  });
});
