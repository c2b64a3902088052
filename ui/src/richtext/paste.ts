/**
 * Cleans pasted HTML: keeps its structure (headings, lists, quotes, tables, links, bold, italic) and drops everything
 * else that word processors put on the clipboard.
 *
 * In: the `text/html` of a clipboard, as Word, Google Docs, LibreOffice or a browser writes it. Out: clean HTML
 * (`form/html`). HTML is parsed in an inert document: no script runs and nothing is loaded.
 */
import { isSafeLink } from "../form/html";

const DROPPED = "script, style, template, iframe, object, embed, meta, link, title, svg, math, xml, img, video, audio, canvas, col, colgroup, caption, input, button, select, textarea, form > label";
const BLOCKS = new Set(["P", "UL", "OL", "LI", "H2", "H3", "H4", "BLOCKQUOTE", "TABLE", "TBODY", "TR", "TD", "TH", "HR"]);
const INLINE = new Set(["STRONG", "EM", "U", "S", "SUB", "SUP", "CODE", "A", "BR"]);
const RENAMED: Record<string, string> = {
  B: "STRONG",
  I: "EM",
  CITE: "EM",
  DEL: "S",
  STRIKE: "S",
  DIV: "P",
  SECTION: "P",
  ARTICLE: "P",
  PRE: "P",
  DT: "P",
  DD: "P",
  H1: "H2",
  H5: "H4",
  H6: "H4",
};
/** Elements that hold blocks; their text is put into paragraphs if it stands beside blocks. */
const HOLDERS = "p, ul, ol, h2, h3, h4, blockquote, table, hr";

/** Returns the clean form of pasted HTML. */
export function cleanPasted(html: string): string {
  const source = new DOMParser().parseFromString(html, "text/html");
  dropClutter(source);
  gatherWordLists(source);
  nestLists(source.body);
  const result = document.implementation.createHTMLDocument("");
  for (const node of [...source.body.childNodes]) append(result.body, node);
  tidy(result.body);
  return result.body.innerHTML.replace(/&nbsp;/g, " ").trim();
}

function dropClutter(source: Document): void {
  for (const element of source.querySelectorAll(DROPPED)) element.remove();
  const comments = source.createTreeWalker(source, NodeFilter.SHOW_COMMENT);
  const found: globalThis.Node[] = [];
  while (comments.nextNode()) found.push(comments.currentNode);
  for (const comment of found) (comment as Comment).remove();
  // Word's `<o:p>` marks the end of a paragraph.
  for (const mark of [...source.getElementsByTagName("o:p")]) {
    if (isBlank(mark)) mark.remove();
    else mark.replaceWith(...mark.childNodes);
  }
  for (const element of source.querySelectorAll(".Apple-interchange-newline")) element.remove();
}

/** Word writes lists as paragraphs whose style names the list and the level, with the marker as text. */
function gatherWordLists(source: Document): void {
  const levelOf = (element: Element) => Number(/mso-list:[^;]*level(\d)/i.exec(styleOf(element))?.[1] ?? 0);
  const items = [...source.querySelectorAll("p, h1, h2, h3, h4, h5, h6")].filter((one) => levelOf(one) > 0);
  const open: { level: number; list: Element }[] = [];
  let last: Element | null = null;
  for (const item of items) {
    const level = levelOf(item);
    const isContinued = last !== null && nextElement(last) === item;
    if (!isContinued) open.length = 0;
    while (open.length > 0 && (open.at(-1)?.level ?? 0) > level) open.pop();
    const isOrdered = /^\W?\(?([0-9]+|[a-z]|[ivx]+)[.)]/i.test(takeMarker(item));
    let current = open.at(-1);
    if (!current || current.level < level) {
      const list = source.createElement(isOrdered ? "ol" : "ul");
      const holder = current?.list.lastElementChild;
      if (holder) holder.append(list);
      else item.before(list);
      current = { level, list };
      open.push(current);
    }
    const entry = source.createElement("li");
    last = open[0]?.list ?? null;
    entry.append(...item.childNodes);
    current.list.append(entry);
    item.remove();
  }
}

/** Removes the marker of a list item of Word and returns it. */
function takeMarker(item: Element): string {
  const marker = [...item.querySelectorAll("span")].find((one) => /mso-list:\s*ignore/i.test(styleOf(one)));
  const text = marker?.textContent?.trim() ?? "";
  marker?.remove();
  return text;
}

function nextElement(element: Element): Element | null {
  for (let next = element.nextSibling; next; next = next.nextSibling) {
    if (next.nodeType === 1) return next as Element;
    if ((next.textContent ?? "").trim() !== "") return null;
  }
  return null;
}

/** Google Docs and old editors write inner lists beside the item that they belong to. */
function nestLists(body: Element): void {
  for (const list of body.querySelectorAll("ul > ul, ul > ol, ol > ul, ol > ol")) {
    const before = list.previousElementSibling;
    if (before?.tagName === "LI") before.append(list);
  }
}

function append(parent: Element, node: globalThis.Node): void {
  if (node.nodeType === 3) {
    parent.append((node.textContent ?? "").replace(/[\s\u00a0]+/g, " "));
    return;
  }
  if (node.nodeType !== 1) return;
  const element = node as HTMLElement;
  let holder = parent;
  for (const tag of tagsOf(element)) {
    const made = open(parent.ownerDocument, tag, element);
    if (!made) continue;
    holder.append(made);
    holder = made;
  }
  for (const child of [...element.childNodes]) append(holder, child);
}

/** Returns the tags that stand for an element in clean HTML, the outermost first. */
function tagsOf(element: HTMLElement): string[] {
  const style = styleOf(element);
  const tag = element.tagName.toUpperCase();
  if (tag === "P" && /\bMso(Title|Subtitle)\b/.test(element.className)) return ["H2"];
  if (tag === "P" && /\bMso(Intense)?Quote\b/.test(element.className)) return ["BLOCKQUOTE", "P"];
  const name = RENAMED[tag] ?? tag;
  if (tag === "TD" && element.closest("thead")) return ["TH"];
  if (BLOCKS.has(name)) return [name];
  const isPlain = /(?:^|[;\s])font-weight:\s*(normal|[1-5]00)\b/i.test(style);
  const tags = INLINE.has(name) && !(name === "STRONG" && isPlain) ? [name] : [];
  if (/(?:^|[;\s])font-weight:\s*(bold|[6-9]00)\b/i.test(style)) tags.push("STRONG");
  if (/(?:^|[;\s])font-style:\s*(italic|oblique)/i.test(style)) tags.push("EM");
  if (/(?:^|[;\s])text-decoration[^;]*line-through/i.test(style)) tags.push("S");
  if (/(?:^|[;\s])text-decoration[^;]*underline/i.test(style)) tags.push("U");
  const shift = /(?:^|[;\s])vertical-align:\s*(super|sub)\b/i.exec(style)?.[1]?.toLowerCase();
  if (shift) tags.push(shift === "super" ? "SUP" : "SUB");
  // Links are underlined anyway.
  return [...new Set(tags)].filter((one) => one !== "U" || !(element.closest("a") || element.querySelector("a")));
}

function open(document: Document, tag: string, element: HTMLElement): HTMLElement | null {
  if (tag === "TBODY") return null;
  const made = document.createElement(tag);
  if (tag === "A") {
    const href = targetOf(element.getAttribute("href") ?? "");
    if (href === "" || !isSafeLink(href) || /^(file|about):/i.test(href)) return null;
    made.setAttribute("href", href);
  }
  if (tag === "TD" || tag === "TH") {
    for (const name of ["colspan", "rowspan"]) {
      const span = Number(element.getAttribute(name) ?? 1);
      if (Number.isInteger(span) && span > 1 && span <= 100) made.setAttribute(name, String(span));
    }
  }
  return made;
}

/** Returns the target of a link; Google Docs sends links through a page of its own. */
function targetOf(href: string): string {
  const text = href.trim();
  if (!/^https:\/\/www\.google\.com\/url\?/i.test(text)) return text;
  return new URL(text).searchParams.get("q") ?? text;
}

/** Removes what cleaning left empty, and puts blocks where blocks belong. */
function tidy(body: Element): void {
  freeHeadings(body);
  for (const block of [...body.querySelectorAll("p")].reverse()) if (block.querySelector(HOLDERS)) splitParagraph(block);
  for (const table of body.querySelectorAll("table")) {
    const rows = [...table.querySelectorAll("tr")].filter((row) => row.closest("table") === table);
    const holder = table.ownerDocument.createElement("tbody");
    holder.append(...rows);
    table.replaceChildren(holder);
    if (rows.length === 0) table.remove();
  }
  for (const holder of body.querySelectorAll("li, td, th")) {
    const paragraphs = [...holder.children].filter((child) => child.tagName === "P" && isBlank(child));
    for (const paragraph of paragraphs) paragraph.remove();
    const [first] = holder.children;
    const isOnly = [...holder.children].filter(({ tagName }) => tagName === "P").length === 1 && first?.tagName === "P";
    if (isOnly && first) first.replaceWith(...first.childNodes);
  }
  for (const list of body.querySelectorAll("ul, ol")) {
    for (const child of [...list.childNodes]) if (child.nodeType === 3 || (child as Element).tagName !== "LI") child.remove();
  }
  for (const element of [...body.querySelectorAll("p, li, h2, h3, h4, blockquote, ul, ol, strong, em, u, s, sub, sup, code, a")].reverse()) {
    // A format around blanks only, for example a bold space between two words, keeps the blank.
    if (INLINE.has(element.tagName) && isBlank(element)) element.replaceWith(...element.childNodes);
    else if (BLOCKS.has(element.tagName) && isBlank(element) && !element.querySelector("hr, table")) element.remove();
  }
  for (const element of body.querySelectorAll("strong strong, em em, u u, s s")) element.replaceWith(...element.childNodes);
  // A heading is bold by itself.
  for (const element of body.querySelectorAll("h2 strong, h3 strong, h4 strong")) element.replaceWith(...element.childNodes);
  joinFormats(body);
  for (const block of body.querySelectorAll("p, li, h2, h3, h4, td, th")) trimEnds(block);
  gatherLoose(body);
}

/** LibreOffice writes numbered headings as lists of headings. */
function freeHeadings(body: Element): void {
  for (const heading of body.querySelectorAll("li > :is(h2, h3, h4)")) {
    let list = heading.closest("ul, ol");
    for (let around = list?.parentElement?.closest("ul, ol"); around; around = around.parentElement?.closest("ul, ol")) list = around;
    const isAlone = [...(list?.querySelectorAll("li") ?? [])].every((item) => [...item.childNodes].every((node) => isBlank(node) || /^(H[234]|UL|OL)$/.test(node.nodeName)));
    if (list && isAlone) list.replaceWith(...list.querySelectorAll("h2, h3, h4"));
  }
}

/** Word and Google Docs split one format into many spans: `<em>a</em><em>b</em>` becomes one. */
function joinFormats(body: Element): void {
  for (const element of [...body.querySelectorAll("strong, em, u, s, sub, sup, code")]) {
    const before = element.previousSibling as Element | null;
    if (before?.nodeType !== 1 || before.tagName !== element.tagName) continue;
    before.append(...element.childNodes);
    element.remove();
  }
}

/** A paragraph with blocks inside, for example `<div><p>…</p></div>`, becomes its content. */
function splitParagraph(paragraph: Element): void {
  const parts: globalThis.Node[] = [];
  let text: Element | null = null;
  for (const child of [...paragraph.childNodes]) {
    if (child.nodeType === 1 && BLOCKS.has((child as Element).tagName)) {
      text = null;
      parts.push(child);
    } else if (text || !isBlank(child)) {
      if (!text) parts.push((text = paragraph.ownerDocument.createElement("p")));
      text.append(child);
    }
  }
  paragraph.replaceWith(...parts);
}

/** Puts text that stands beside blocks into paragraphs. */
function gatherLoose(body: Element): void {
  if (!body.querySelector(HOLDERS)) return;
  let text: Element | null = null;
  for (const child of [...body.childNodes]) {
    const isBlock = child.nodeType === 1 && BLOCKS.has((child as Element).tagName);
    if (isBlock || (!text && (isBlank(child) || child.nodeName === "BR"))) {
      text = null;
      if (!isBlock) child.remove();
    } else {
      if (!text) child.before((text = body.ownerDocument.createElement("p")));
      text.append(child);
    }
  }
}

function trimEnds(block: Element): void {
  for (const [side, pattern] of [["firstChild", /^\s+/], ["lastChild", /\s+$/]] as const) {
    let child = block[side];
    while (child?.nodeType === 1 && (child as Element).tagName === "BR") {
      child.remove();
      child = block[side];
    }
    if (child?.nodeType === 3) child.textContent = (child.textContent ?? "").replace(pattern, "");
  }
}

function styleOf(element: Element): string {
  return element.getAttribute("style") ?? "";
}

function isBlank(node: globalThis.Node): boolean {
  return (node.textContent ?? "").replace(/[\s\u00a0]/g, "") === "" && !(node.nodeType === 1 && (node as Element).matches("br, hr"));
}
