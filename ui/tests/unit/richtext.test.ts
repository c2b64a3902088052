// @vitest-environment jsdom
import { describe, expect, it } from "vitest";
import { EditorState, Selection } from "prosemirror-state";
import { blockCommand, linkCommand, type BlockName } from "../../src/richtext/command";
import { isKept, parseHtml, writeHtml } from "../../src/richtext/schema";

const rewritten = (html: string) => writeHtml(parseHtml(html));

describe("rich text", () => {
  it("that is opened and written again is the same", () => {
    for (const html of [
      "<p>One <strong>bold</strong> and <em>soft</em> word.</p>",
      "<p>One</p><h2>Two</h2><h3>Three</h3><h1>Four</h1>",
      '<p><a href="/a.html" target="_blank">link</a> and <code>code</code> H<sub>2</sub>O m<sup>2</sup> <u>u</u> <s>s</s></p>',
      "<ul><li>one</li><li>two<ol><li>inner</li></ol></li></ul>",
      "<ul><li><p>one</p><p>two</p></li></ul>",
      "<ul><li><p>loose</p></li></ul>",
      "<blockquote><p>quote</p></blockquote><hr>",
      '<table><tbody><tr><th>a</th><th>b</th></tr><tr><td colspan="2">c</td></tr></tbody></table>',
      "<p>line<br>break</p>",
    ]) {
      expect(rewritten(html), html).toBe(html);
      expect(isKept(html), html).toBe(true);
    }
  });

  it("with other names of formats is the same but for the names", () => {
    expect(rewritten("<p><b>a</b> <i>b</i></p>")).toBe("<p><strong>a</strong> <em>b</em></p>");
    expect(isKept("<p><b>a</b> <i>b</i></p>")).toBe(true);
  });

  it("with markup that would be lost is not opened", () => {
    for (const html of [
      '<p class="lead">x</p>',
      "<div>x</div>",
      "<table><thead><tr><td>x</td></tr></thead></table>",
      "<dl><dt>x</dt></dl>",
      "<p>x<img src=a></p>",
      "<p><span>x</span></p>",
      "<ul>text<li>x</li></ul>",
      "<a name=x>y</a>",
    ]) {
      expect(isKept(html), html).toBe(false);
    }
  });

  it("without text is empty", () => {
    expect(rewritten("<p></p>")).toBe("");
    expect(rewritten("<p><br></p>")).toBe("");
    expect(isKept("")).toBe(true);
  });
});

/** Runs a command with the caret at the end of a text, types a word, and returns the text. */
function after(html: string, name: BlockName, word = "x"): string {
  const doc = parseHtml(html);
  let state = EditorState.create({ doc, selection: Selection.atEnd(doc) });
  blockCommand(name)(state, (tr) => (state = state.apply(tr)));
  return writeHtml(state.apply(state.tr.insertText(word)).doc);
}

describe("the commands of rich text", () => {
  it("make a kind of block, and take it off again", () => {
    expect(after("<p>a</p>", "heading2")).toBe("<h2>ax</h2>");
    expect(after("<h2>a</h2>", "paragraph")).toBe("<p>ax</p>");
    expect(after("<p>a</p>", "bullets")).toBe("<ul><li>ax</li></ul>");
    expect(after("<ul><li>a</li></ul>", "bullets")).toBe("<p>ax</p>");
    expect(after("<ul><li>a</li></ul>", "numbers")).toBe("<ol><li>ax</li></ol>");
    expect(after("<p>a</p>", "quote")).toBe("<blockquote><p>ax</p></blockquote>");
    expect(after("<blockquote><p>a</p></blockquote>", "quote")).toBe("<p>ax</p>");
  });

  it("insert a table with the caret in its first cell", () => {
    const row = "<tr><td></td><td></td><td></td></tr>";
    expect(after("<p>a</p><p></p>", "table")).toBe(`<p>a</p><table><tbody><tr><th>x</th><th></th><th></th></tr>${row}${row}</tbody></table>`);
  });

  it("link a selection, and write the target where nothing is selected", () => {
    const doc = parseHtml("<p>one</p>");
    const linked = (selection: Selection) => {
      let state = EditorState.create({ doc, selection });
      linkCommand("/a.html")(state, (tr) => (state = state.apply(tr)));
      return writeHtml(state.doc);
    };
    expect(linked(Selection.fromJSON(doc, { type: "text", anchor: 1, head: 4 }))).toBe('<p><a href="/a.html">one</a></p>');
    expect(linked(Selection.atEnd(doc))).toBe('<p>one<a href="/a.html">/a.html</a></p>');
  });
});
