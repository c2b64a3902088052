// @vitest-environment jsdom
import { beforeAll, describe, expect, it } from "vitest";
import { patchPreview } from "../../src/screens/editor/preview_patch";

beforeAll(() => {
  // jsdom has no `CSS`; these paths need no escapes but of quotes.
  globalThis.CSS ??= { escape: (text: string) => text.replace(/["\\]/g, "\\$&") } as typeof CSS;
});

const parse = (body: string, head = "") => new DOMParser().parseFromString(`<html><head>${head}</head><body>${body}</body></html>`, "text/html");
const part = (path: string, content: string) => `<div data-tympan-path="${path}">${content}</div>`;

/** Patches a page and returns it, with the components that kept their elements. */
function patched(before: string, after: string, change: (live: Document) => void = () => {}, held = "") {
  const live = parse(before);
  change(live);
  const marked = new Map([...live.querySelectorAll("[data-tympan-path]")].map((one) => [one, one.getAttribute("data-tympan-path")]));
  const result = patchPreview(live, parse(before), parse(after), (path) => path === held);
  const kept = [...live.querySelectorAll("[data-tympan-path]")].flatMap((one) => marked.get(one) ?? []);
  return { html: live.body.innerHTML, kept, ...result };
}

describe("a patched preview", () => {
  it("draws only the component that changed", () => {
    const page = (text: string) => `<main>${part("/a", "<p>a</p>")}${part("/b", `<p>${text}</p>`)}</main>`;
    const { html, kept, redrawn } = patched(page("b"), page("c"));
    expect(html).toBe(page("c"));
    expect([kept, redrawn]).toEqual([["/a"], ["/b"]]);
  });

  it("keeps the unchanged components inside of a changed one", () => {
    const page = (title: string) => part("/a", `<h2>${title}</h2>${part("/a/b", "<p>b</p>")}`);
    const { html, kept, redrawn } = patched(page("x"), page("y"));
    expect(html).toBe(page("y"));
    expect([kept, redrawn]).toEqual([["/a/b"], ["/a"]]);
  });

  it("moves, adds and removes components without drawing their container", () => {
    const page = (...parts: string[]) => part("/r", `<section>${parts.map((name) => part(`/r/${name}`, name)).join("\n")}</section>`);
    const { html, kept, redrawn } = patched(page("a", "b", "c"), page("c", "a", "d"));
    expect(html.replace(/\s/g, "")).toBe(page("c", "a", "d").replace(/\s/g, ""));
    expect([kept, redrawn]).toEqual([["/r", "/r/c", "/r/a"], ["/r/d"]]);
  });

  it("moves a component to another container", () => {
    const page = (a: string, b: string) => `${part("/a", a)}${part("/b", b)}`;
    const { html } = patched(page(part("/a/x", "x"), ""), page("", part("/b/x", "x")));
    expect(html).toBe(page("", part("/b/x", "x")));
  });

  it("leaves what scripts of the page changed in other components", () => {
    const page = (text: string) => `<nav></nav>${part("/a", "<ul></ul>")}${part("/b", text)}`;
    const { html, isComplete } = patched(page("b"), page("c"), (live) => {
      live.querySelector("ul")?.append(live.createElement("li"));
      live.body.prepend(live.createElement("aside"));
    });
    expect(html).toBe(`<aside></aside><nav></nav>${part("/a", "<ul><li></li></ul>")}${part("/b", "c")}`);
    expect(isComplete).toBe(true);
  });

  it("changes texts and attributes outside of components", () => {
    const page = (title: string, kind: string) => `<header class="${kind}"><h1>${title}</h1></header>${part("/a", "a")}`;
    const { html, kept } = patched(page("x", "one"), page("y", "two"));
    expect(html).toBe(page("y", "two"));
    expect(kept).toEqual(["/a"]);
  });

  it("leaves a component alone that is edited in place", () => {
    const page = (text: string) => `${part("/a", text)}${part("/b", text)}`;
    const { html } = patched(page("x"), page("y"), () => {}, "/a");
    expect(html).toBe(`${part("/a", "x")}${part("/b", "y")}`);
  });

  it("adds the style sheets that a new component needs", () => {
    const [live, sheet] = [parse("<p>x</p>"), '<link rel="stylesheet" href="/new.css">'];
    patchPreview(live, parse("<p>x</p>"), parse("<p>x</p>", sheet), () => false);
    expect(live.head.innerHTML).toBe(sheet);
  });

  it("tells when the live page is another one", () => {
    const page = (text: string) => `<main><div>${part("/a", "a")}</div><p>${text}</p></main>`;
    const { isComplete } = patched(page("x"), page("y"), (live) => live.querySelector("main")?.remove());
    expect(isComplete).toBe(false);
  });
});
