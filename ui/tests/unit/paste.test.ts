// @vitest-environment jsdom
import { describe, expect, it } from "vitest";
import { cleanPasted } from "../../src/richtext/paste";

const files = import.meta.glob<string>("./clipboard/*.html", { query: "?raw", import: "default", eager: true });
const clipboard = (name: string) => files[`./clipboard/${name}.html`] ?? "";
/** Removes the blanks between blocks and the line breaks inside of them, which browsers do not show. */
const compact = (html: string) =>
  html.replace(/\s+/g, " ").replace(/ ?(<\/?(?:p|ul|ol|li|h\d|blockquote|table|tbody|tr|td|th)\b[^>]*>) ?/g, "$1");

const BODY =
  "<p>A boat leaves <strong>every hour</strong>, and <em>nobody</em> is in a hurry. See " +
  '<a href="https://ferries.example/times">the timetable</a> (10 m<sup>2</sup>, <u>free</u>, <s>cash only</s>).</p>' +
  "<h2>What to bring</h2><ul><li>Water<ul><li>still</li><li>sparkling</li></ul></li><li>A <strong>hat</strong></li></ul>" +
  "<ol><li>Buy a ticket</li><li>Wait</li></ol>";
const TABLE = "<table><tbody><tr><th>Port</th><th>Leaves</th></tr><tr><td>Muggia</td><td>9:10</td></tr></tbody></table>";

describe("pasted HTML", () => {
  it("from LibreOffice keeps its structure", () => {
    const quote = "<blockquote>The sea is the only road.</blockquote>";
    expect(compact(cleanPasted(clipboard("libreoffice")))).toBe(`<h2>Ferries of the gulf</h2>${BODY}${quote}${TABLE}<p>Good journey.</p>`);
  });

  it("from LibreOffice with a Word document keeps its structure, with headings outside of lists", () => {
    const quote = "<blockquote>The sea is the only road.</blockquote>";
    expect(compact(cleanPasted(clipboard("libreoffice-docx")))).toBe(`<h2>Ferries of the gulf</h2>${BODY}${quote}${TABLE}<p>Good journey.</p>`);
  });

  it("from Word keeps its structure, with lists made of its paragraphs", () => {
    expect(compact(cleanPasted(clipboard("word")))).toBe(
      "<h2>Ferries of the gulf</h2><p>A boat leaves <strong>every hour</strong>, and <em>nobody</em> is in a hurry.</p>" +
        "<ul><li>Water<ul><li>still</li><li>sparkling</li></ul></li><li>A <strong>hat</strong></li></ul><p>In this order:</p>" +
        "<ol><li>Buy a ticket</li><li>Wait</li></ol><blockquote><p>The sea is the only road.</p></blockquote>" +
        '<table><tbody><tr><td colspan="2">Times</td></tr><tr><td>Muggia</td><td>9:10</td></tr></tbody></table>' +
        '<p><a href="https://ferries.example/times">The timetable</a></p>',
    );
  });

  it("from Google Docs keeps its structure, without the bold element around everything", () => {
    expect(compact(cleanPasted(clipboard("google-docs")))).toBe(
      "<h2>Ferries of the gulf</h2><p>A boat leaves <strong>every hour</strong>, and <em>nobody</em> is in a hurry.</p>" +
        "<ul><li>Water<ul><li>still</li></ul></li><li>A <strong>hat</strong></li></ul>" +
        "<table><tbody><tr><td>Muggia</td><td>9:10</td></tr></tbody></table>" +
        '<p><a href="https://ferries.example/times">The timetable</a>!</p>',
    );
  });

  it("loses scripts, handlers, styles, classes and unsafe links", () => {
    const html =
      '<p class="x" onclick="alert(1)"> and <i style="color:red">soft</i><script>alert(2)</script>' +
      '<a href="java\tscript:alert(3)" onmouseover="x()">bad</a><a href="file:///etc/passwd">file</a><img src=x onerror=alert(4)></p>' +
      '<svg><script>alert(5)</script></svg><iframe src="//evil"></iframe><math><mi xlink:href="javascript:1">x</mi></math>';
    expect(cleanPasted(html)).toBe("<p>and <em>soft</em>badfile</p>");
  });

  it("of words alone stays in the line", () => {
    expect(cleanPasted("<span>two </span><b>words</b>")).toBe("two <strong>words</strong>");
  });

  it("of nested blocks and loose text becomes paragraphs", () => {
    expect(cleanPasted("<div>one<div>two<p>three</p>four</div></div>five")).toBe("<p>one</p><p>two</p><p>three</p><p>four</p><p>five</p>");
  });

  it("is never left with an empty list, row or paragraph", () => {
    expect(cleanPasted("<ul><li><p>&nbsp;</p></li></ul><p><br></p><table></table><h3> </h3>")).toBe("");
  });
});
