/**
 * The structure of rich text: paragraphs, headings, quotes, lists, tables, and the formats of words.
 *
 * In: clean HTML (`form/html`). Out: the same HTML: a text that is opened and not changed is written as it was.
 * The only differences are that a quote has paragraphs, and that blanks that browsers collapse are collapsed.
 */
import { DOMParser as ContentParser, DOMSerializer, Schema, type Attrs, type Node } from "prosemirror-model";
import { tableNodes } from "prosemirror-tables";
import { isSimple } from "../form/html";

const table = tableNodes({ tableGroup: "block", cellContent: "block+", cellAttributes: {} });

/** The attributes of a link that are kept. */
const LINK = ["href", "target", "rel", "title"] as const;

function linkAttributes(element: HTMLElement): Attrs {
  return Object.fromEntries(LINK.map((name) => [name, element.getAttribute(name)]));
}

/** Returns true if the text of an item is not in paragraphs of its own: `<li>text</li>`. */
function isTight(element: HTMLElement): boolean {
  return ![...element.children].some(({ tagName }) => tagName === "P");
}

export const schema = new Schema({
  nodes: {
    doc: { content: "block+" },
    paragraph: { content: "inline*", group: "block", parseDOM: [{ tag: "p" }], toDOM: () => ["p", 0] },
    blockquote: { content: "block+", group: "block", defining: true, parseDOM: [{ tag: "blockquote" }], toDOM: () => ["blockquote", 0] },
    heading: {
      attrs: { level: { default: 2 } },
      content: "inline*",
      group: "block",
      defining: true,
      parseDOM: [1, 2, 3, 4, 5, 6].map((level) => ({ tag: `h${level}`, attrs: { level } })),
      toDOM: (node) => [`h${node.attrs.level as number}`, 0],
    },
    bullet_list: { content: "list_item+", group: "block", parseDOM: [{ tag: "ul" }], toDOM: () => ["ul", 0] },
    ordered_list: { content: "list_item+", group: "block", parseDOM: [{ tag: "ol" }], toDOM: () => ["ol", 0] },
    list_item: {
      attrs: { isTight: { default: true } },
      content: "paragraph block*",
      defining: true,
      parseDOM: [{ tag: "li", getAttrs: (element) => ({ isTight: isTight(element) }) }],
      toDOM: () => ["li", 0],
    },
    horizontal_rule: { group: "block", parseDOM: [{ tag: "hr" }], toDOM: () => ["hr"] },
    ...table,
    text: { group: "inline" },
    hard_break: { inline: true, group: "inline", selectable: false, parseDOM: [{ tag: "br" }], toDOM: () => ["br"] },
  },
  marks: {
    link: {
      attrs: Object.fromEntries(LINK.map((name) => [name, { default: null }])),
      inclusive: false,
      parseDOM: [{ tag: "a[href]", getAttrs: linkAttributes }],
      toDOM: (mark) => ["a", mark.attrs, 0],
    },
    strong: { parseDOM: [{ tag: "strong" }, { tag: "b" }], toDOM: () => ["strong", 0] },
    em: { parseDOM: [{ tag: "em" }, { tag: "i" }], toDOM: () => ["em", 0] },
    underline: { parseDOM: [{ tag: "u" }], toDOM: () => ["u", 0] },
    strike: { parseDOM: [{ tag: "s" }], toDOM: () => ["s", 0] },
    sub: { excludes: "sup", parseDOM: [{ tag: "sub" }], toDOM: () => ["sub", 0] },
    sup: { excludes: "sub", parseDOM: [{ tag: "sup" }], toDOM: () => ["sup", 0] },
    code: { parseDOM: [{ tag: "code" }], toDOM: () => ["code", 0] },
  },
});

const parser = ContentParser.fromSchema(schema);
const written = DOMSerializer.fromSchema(schema);

/** Returns the document of clean HTML. */
export function parseHtml(html: string): Node {
  return parser.parse(new DOMParser().parseFromString(html, "text/html").body);
}

/** Returns the HTML of a document; `""` if it has no text. */
export function writeHtml(doc: Node): string {
  const inert = document.implementation.createHTMLDocument("");
  const holder = inert.createElement("div");
  holder.append(written.serializeFragment(doc.content, { document: inert }));
  unwrap(doc, holder);
  const html = holder.innerHTML.replace(/&nbsp;/g, " ");
  return doc.textContent === "" && !/<(hr|table)/.test(html) ? "" : html;
}

/** Returns true if a text that is opened and written again keeps its markup. */
export function isKept(html: string): boolean {
  return isSimple(html) && comparable(writeHtml(parseHtml(html))) === comparable(html);
}

/** Returns HTML without what the editor may change: blanks, the names of formats, and paragraphs inside of blocks. */
function comparable(html: string): string {
  const { body } = new DOMParser().parseFromString(html, "text/html");
  for (const paragraph of body.querySelectorAll(":is(li, td, th, blockquote) > p:only-child")) paragraph.replaceWith(...paragraph.childNodes);
  for (const block of body.querySelectorAll("p, li, td, th")) if (block.textContent?.trim() === "" && block.children.length <= 1) block.textContent = "";
  return body.innerHTML
    .replace(/<(\/?)b>/g, "<$1strong>")
    .replace(/<(\/?)i>/g, "<$1em>")
    .replace(/&nbsp;|\s+/g, " ")
    .replace(/ ?(<\/?(?:p|ul|ol|li|h\d|blockquote|table|tbody|tr|td|th|hr)\b[^>]*>|<br>) ?/g, "$1")
    .replace(/^<p>([^]*)<\/p>$/, (all, inner: string) => (/<p>/.test(inner) ? all : inner))
    .trim();
}

/** Removes the paragraphs of list items and table cells that had none; `element` is the element of `node`. */
function unwrap(node: Node, element: Element): void {
  const elements = node.type.name === "table" ? [...(element.querySelector("tbody") ?? element).children] : [...element.children];
  let at = 0;
  node.forEach((child) => {
    if (!child.isBlock) return;
    const one = elements[at];
    at += 1;
    if (one) unwrap(child, one);
  });
  const isCell = node.type.name === "table_cell" || node.type.name === "table_header";
  const isLoose = isCell ? node.childCount === 1 : node.type.name === "list_item" && node.attrs.isTight === true && onlyFirstIsText(node);
  const first = element.firstElementChild;
  if (isLoose && first?.tagName === "P") first.replaceWith(...first.childNodes);
}

function onlyFirstIsText(item: Node): boolean {
  let isSo = true;
  item.forEach((child, _offset, at) => {
    if (at > 0 && child.type.name === "paragraph") isSo = false;
  });
  return isSo;
}

/** Returns a table with a head row. */
export function emptyTable(rows: number, columns: number): Node {
  const { table: whole, table_row: row, table_cell: cell, table_header: head, paragraph } = schema.nodes;
  if (!whole || !row || !cell || !head || !paragraph) throw new Error("the schema has no tables");
  const cells = (type: typeof cell) => Array.from({ length: columns }, () => type.create(null, paragraph.create()));
  return whole.create(null, Array.from({ length: rows }, (_, at) => row.create(null, cells(at === 0 ? head : cell))));
}

