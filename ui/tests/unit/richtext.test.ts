// @vitest-environment jsdom
import { describe, expect, it } from "vitest";
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
