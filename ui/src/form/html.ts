/**
 * The markup of the rich text editor: paragraphs, headings, lists, quotes, tables, links, and formats of words.
 *
 * Invariants
 * * HTML is parsed in an inert document: no script runs and nothing is loaded.
 * * Text with other markup is never opened in the rich text editor, so opening a text never removes markup
 *   (`isSimple`).
 *
 * Not here: the editor's document (`richtext/schema`), and cleaning pasted HTML (`richtext/paste`).
 */

const BLOCKS = new Set(["P", "UL", "OL", "LI", "H1", "H2", "H3", "H4", "H5", "H6", "BLOCKQUOTE", "HR", "TABLE", "TBODY", "TR", "TD", "TH"]);
const INLINE = new Set(["STRONG", "EM", "U", "S", "SUB", "SUP", "CODE", "A", "BR"]);
const RENAMED: Record<string, string> = { B: "STRONG", I: "EM" };
const LINK_ATTRIBUTES = ["href", "target", "rel", "title"];
const CELL_ATTRIBUTES = ["colspan", "rowspan"];

/** Returns true if the rich text editor can show and write this text without losing markup. */
export function isSimple(html: string): boolean {
  const { body } = parse(html);
  return [...body.querySelectorAll("*")].every((element) => {
    const name = RENAMED[element.tagName] ?? element.tagName;
    if (!BLOCKS.has(name) && !INLINE.has(name)) return false;
    const allowed = name === "A" ? LINK_ATTRIBUTES : name === "TD" || name === "TH" ? CELL_ATTRIBUTES : [];
    return [...element.attributes].every((attribute) => allowed.includes(attribute.name));
  });
}

/** Returns true for a path, an anchor, and a URL with one of the usual schemes. */
export function isSafeLink(href: string): boolean {
  // Browsers drop control characters and spaces before a URL, and tabs and line breaks anywhere in it
  // (https://url.spec.whatwg.org/#concept-basic-url-parser).
  const url = href.replace(/^[\u0000-\u0020]+/, "").replace(/[\t\n\r]/g, "");
  const scheme = /^([a-z][a-z0-9+.-]*):/i.exec(url)?.[1]?.toLowerCase();
  return scheme === undefined || ["http", "https", "mailto", "tel"].includes(scheme);
}

function parse(html: string): Document {
  return new DOMParser().parseFromString(html, "text/html");
}
