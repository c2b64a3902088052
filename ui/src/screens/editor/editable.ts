/**
 * Finds the elements of a component, as the page shows it, that hold the texts of its dialog.
 *
 * Templates do not mark these elements. An element is taken for a field if it holds exactly the stored text: for rich
 * text the same blocks and words, for plain text the same words. A text that is nowhere, or in two places, cannot be
 * edited in place.
 */
import type { Draft } from "../../form/draft.svelte";
import type { FieldKind } from "../../server/answers";

/** The text of a field on the page. */
export interface EditableText {
  field: string;
  kind: "rich" | "plain";
  isMultiline: boolean;
  /** The element that holds the text; for rich text beside other elements, its parent. */
  element: HTMLElement;
  /** The nodes of rich text that has no element of its own. */
  run: ChildNode[] | null;
}

const KINDS: Partial<Record<FieldKind, EditableText["kind"]>> = { richtext: "rich", text: "plain", textarea: "plain" };
const PATH = "data-tympan-path";

/** Returns the texts of a component that can be edited in place. */
export function editableTexts(component: Element, draft: Draft): EditableText[] {
  const elements = ownElements(component);
  return [...draft.fields.values()].flatMap((field) => {
    const kind = KINDS[field.kind];
    const value = draft.values[field.name];
    if (!kind || typeof value !== "string" || value.trim() === "") return [];
    const found = kind === "rich" ? findRich(elements, value) : findPlain(elements, value);
    return found ? [{ field: field.name, kind, isMultiline: field.kind === "textarea", ...found }] : [];
  });
}

/** Returns the elements of a component that do not belong to a component inside it, the component's own first. */
function ownElements(component: Element): HTMLElement[] {
  const all = [component, ...component.querySelectorAll("*")] as HTMLElement[];
  return all.filter((one) => one === component || one.closest(`[${PATH}]`) === component);
}

function findPlain(elements: HTMLElement[], value: string): Pick<EditableText, "element" | "run"> | null {
  const wanted = words(value);
  const holders = elements.filter((one) => words(one.textContent ?? "") === wanted && !one.querySelector(`[${PATH}]`));
  // Of elements around each other, the innermost holds the text.
  const inner = holders.filter((one) => !holders.some((other) => other !== one && one.contains(other)));
  const [element] = inner;
  return inner.length === 1 && element && element.children.length === 0 ? { element, run: null } : null;
}

function findRich(elements: HTMLElement[], value: string): Pick<EditableText, "element" | "run"> | null {
  const wanted = shapeOf(new DOMParser().parseFromString(value, "text/html").body.childNodes);
  const found = elements.flatMap((element) => {
    const run = runIn(element, wanted);
    return run ? [{ element, run }] : [];
  });
  const [only] = found;
  if (found.length !== 1 || !only) return null;
  const isWhole = [...only.element.childNodes].every((node) => only.run.includes(node) || isBlank(node));
  return { element: only.element, run: isWhole ? null : only.run };
}

/** Returns the children of an element, one after the other, that have the shape of the text. */
function runIn(element: Element, wanted: string[]): ChildNode[] | null {
  const nodes = [...element.childNodes].filter((node) => !isBlank(node));
  const shape = nodes.map((node) => shapeOf([node])[0] ?? "");
  for (let from = 0; from + wanted.length <= shape.length; from += 1) {
    if (wanted.length > 0 && wanted.every((one, at) => shape[from + at] === one)) return nodes.slice(from, from + wanted.length);
  }
  return null;
}

/** Returns the markup of nodes without attributes, which the server may rewrite (links), and without blanks. */
function shapeOf(nodes: Iterable<Node>): string[] {
  return [...nodes].filter((node) => !isBlank(node)).map(shape);
}

function shape(node: Node): string {
  if (node.nodeType !== 1) return words(node.textContent ?? "");
  const name = node.nodeName.toLowerCase();
  return `<${name}>${[...node.childNodes].map(shape).filter(Boolean).join(" ")}</${name}>`;
}

function words(text: string): string {
  return text.replace(/[\s\u00a0]+/g, " ").trim();
}

function isBlank(node: Node): boolean {
  return node.nodeType === 8 || (node.nodeType === 3 && words(node.textContent ?? "") === "");
}
