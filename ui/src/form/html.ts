/**
 * The markup of the rich text editor: paragraphs, lists, bold, italic, links, headings.
 *
 * In: any HTML text. Out: a fragment or a text with this markup only, without classes, styles or handlers.
 *
 * Invariants
 * * HTML is parsed in an inert document: no script runs and nothing is loaded.
 * * Text with other markup is never opened in the rich text editor, so opening a text never removes markup
 *   (`isSimple`).
 */

const BLOCKS = new Set(["P", "UL", "OL", "LI", "H2", "H3", "H4", "BLOCKQUOTE"]);
const INLINE = new Set(["STRONG", "EM", "A", "BR"]);
const RENAMED: Record<string, string> = { B: "STRONG", I: "EM", DIV: "P", H1: "H2", H5: "H4", H6: "H4" };
const DROPPED = new Set(["SCRIPT", "STYLE", "TEMPLATE", "IFRAME", "OBJECT", "EMBED", "META", "LINK", "TITLE", "SVG", "MATH"]);
const LINK_ATTRIBUTES = ["href", "target", "rel", "title"];

/** Returns true if the rich text editor can show and write this text without losing markup. */
export function isSimple(html: string): boolean {
  const { body } = parse(html);
  return [...body.querySelectorAll("*")].every((element) => {
    const name = RENAMED[element.tagName] ?? element.tagName;
    if (!BLOCKS.has(name) && !INLINE.has(name)) return false;
    const allowed = name === "A" ? LINK_ATTRIBUTES : [];
    return [...element.attributes].every((attribute) => allowed.includes(attribute.name));
  });
}

/** Returns the text with the markup of the rich text editor only. */
export function cleanHtml(html: string): string {
  const holder = document.implementation.createHTMLDocument("").createElement("div");
  holder.append(cleanFragment(html));
  const text = holder.innerHTML.replace(/&nbsp;/g, " ").trim();
  return /^(<p>(\s|<br>)*<\/p>)*$/.test(text) ? "" : text;
}

/** Returns the text as nodes with the markup of the rich text editor only. */
export function cleanFragment(html: string): DocumentFragment {
  const fragment = document.createDocumentFragment();
  for (const node of [...parse(html).body.childNodes]) appendClean(fragment, node);
  return fragment;
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

function appendClean(parent: Node, node: Node): void {
  if (node.nodeType === Node.TEXT_NODE) {
    parent.appendChild(document.createTextNode(node.textContent ?? ""));
    return;
  }
  if (node.nodeType !== Node.ELEMENT_NODE) return;
  const element = node as Element;
  const tag = element.tagName.toUpperCase();
  if (DROPPED.has(tag)) return;
  const kept = openClean(RENAMED[tag] ?? tag, element);
  for (const child of [...element.childNodes]) appendClean(kept ?? parent, child);
  if (kept) parent.appendChild(kept);
}

/** Returns the element that replaces `element` in clean markup, or `null` if only its content is kept. */
function openClean(name: string, element: Element): HTMLElement | null {
  const holdsBlocks = name === "P" && element.querySelector("p,div,ul,ol,h1,h2,h3,h4,h5,h6,blockquote,table") !== null;
  if (holdsBlocks || (!BLOCKS.has(name) && !INLINE.has(name))) return null;
  if (name !== "A") return document.createElement(name);
  const href = element.getAttribute("href") ?? "";
  if (href === "" || !isSafeLink(href)) return null;
  const link = document.createElement("a");
  for (const attribute of LINK_ATTRIBUTES) {
    const value = element.getAttribute(attribute);
    if (value !== null) link.setAttribute(attribute, value);
  }
  return link;
}
