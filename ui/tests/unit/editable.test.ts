// @vitest-environment jsdom
import { describe, expect, it } from "vitest";
import type { Draft } from "../../src/form/draft.svelte";
import { editableTexts } from "../../src/screens/editor/editable";
import type { Field, FieldKind } from "../../src/server/answers";

/** A draft with fields of these kinds and values. */
function draft(fields: Record<string, [FieldKind, string]>): Draft {
  const entries = Object.entries(fields);
  return {
    fields: new Map(entries.map(([name, [kind]]) => [name, { name, kind } as Field])),
    values: Object.fromEntries(entries.map(([name, [, value]]) => [name, value])),
  } as unknown as Draft;
}

function component(html: string): Element {
  document.body.innerHTML = `<div data-tympan-path="/a">${html}</div>`;
  return document.body.firstElementChild as Element;
}

const found = (html: string, one: Draft) =>
  editableTexts(component(html), one).map(({ field, element, run }) => [field, element.tagName, run?.map((node) => node.nodeName) ?? "whole"]);

describe("the texts of a component on the page", () => {
  const text = draft({ title: ["text", "Where to  eat"], text: ["richtext", '<p>Three <a href="/content/x.html">kitchens</a>.</p><p>No menu.</p>'] });

  it("are the elements that hold exactly what is stored, whatever their attributes", () => {
    const html = '<h2 class="t">Where to eat</h2><div class="rich">\n<p class="first">Three <a href="/x.html">kitchens</a>.</p>\n<p>No menu.</p></div>';
    expect(found(html, text)).toEqual([
      ["title", "H2", "whole"],
      ["text", "DIV", "whole"],
    ]);
  });

  it("may stand beside other elements", () => {
    const html = '<h2>Where to eat</h2><p>Three <a href="/x">kitchens</a>.</p><p>No menu.</p><footer>x</footer>';
    expect(found(html, text)).toEqual([
      ["title", "H2", "whole"],
      ["text", "DIV", ["P", "P"]],
    ]);
  });

  it("are the innermost elements of a plain text", () => {
    expect(found("<header><h1><span>Where to eat</span></h1></header>", draft({ title: ["text", "Where to eat"] }))).toEqual([["title", "SPAN", "whole"]]);
  });

  it("are not found if the page shows them twice, otherwise, or in another component", () => {
    const title = draft({ title: ["text", "Where to eat"] });
    expect(found("<h2>Where to eat</h2><p>Where to eat</p>", title)).toEqual([]);
    expect(found("<h2>WHERE TO EAT</h2>", title)).toEqual([]);
    expect(found("<h2>Where to <b>eat</b></h2>", title)).toEqual([]);
    expect(found('<div data-tympan-path="/a/b"><h2>Where to eat</h2></div>', title)).toEqual([]);
    expect(found("<p></p>", draft({ title: ["text", ""] }))).toEqual([]);
    expect(found("<p>3</p>", draft({ count: ["number", "3"] }))).toEqual([]);
  });
});
