/**
 * Finds the position at which a dragged component is dropped on the page.
 */
import { t } from "../../language";
import type { ComponentItem, PageDetail } from "../../server/answers";
import { parentPath } from "../../server/post";
import { findRow, mayLieIn, type Spot } from "./tree";

/** A position under the pointer, with the line that shows it. */
export interface DropTarget {
  spot: Spot;
  line: { x: number; y: number; width: number; height: number };
  /** The reason why the component cannot be dropped there. */
  refusal: string | null;
}

const PATH = "data-tympan-path";

/** Returns the position at a point of the page's window; `null` where nothing can be dropped. */
export function dropSpot(document: Document, page: PageDetail, dragged: string, point: { x: number; y: number }): DropTarget | null {
  const path = document.elementFromPoint(point.x, point.y)?.closest(`[${PATH}]`)?.getAttribute(PATH);
  const row = path == null ? null : findRow(page.components, path);
  if (!row || isWithin(row.item.path, dragged)) return null;
  const rect = boxOf(document, row.item.path);
  if (!rect) return null;
  const target = placeAt(document, row.item, row.siblings, point, rect);
  return { ...target, refusal: refusalOf(page, dragged, target.spot.parent) };
}

/** Returns the reason why a component cannot be put into a container, or `null`. */
export function refusalOf(page: PageDetail, dragged: string, parent: string): string | null {
  const item = findRow(page.components, dragged)?.item;
  if (!item || isWithin(parent, dragged)) return t("A component cannot be put into itself.");
  if (item.resourceType === null || mayLieIn(page, parent, item.resourceType)) return null;
  return t("{name} is not allowed there.", { name: item.title });
}

function placeAt(document: Document, item: ComponentItem, siblings: ComponentItem[], point: { x: number; y: number }, rect: DOMRect): Omit<DropTarget, "refusal"> {
  if (item.container && item.children.length === 0) {
    return { spot: { label: "", parent: item.path, place: "last" }, line: { x: rect.x, y: rect.y, width: rect.width, height: rect.height } };
  }
  const isBeside = siblings.some((other) => other !== item && standsBeside(rect, boxOf(document, other.path)));
  const isAfter = isBeside ? point.x > rect.x + rect.width / 2 : point.y > rect.y + rect.height / 2;
  const line = isBeside
    ? { x: isAfter ? rect.right : rect.x, y: rect.y, width: 3, height: rect.height }
    : { x: rect.x, y: isAfter ? rect.bottom : rect.y, width: rect.width, height: 3 };
  return { spot: { label: "", parent: parentPath(item.path), place: isAfter ? { after: item.name } : { before: item.name } }, line };
}

/** Returns true if two boxes are next to each other in one row. */
function standsBeside(rect: DOMRect, other: DOMRect | null): boolean {
  return other !== null && other.top < rect.bottom - 4 && rect.top < other.bottom - 4 && (other.left >= rect.right - 4 || rect.left >= other.right - 4);
}

function boxOf(document: Document, path: string): DOMRect | null {
  const element = document.querySelector(`[${PATH}="${CSS.escape(path)}"]`);
  if (!element) return null;
  const own = element.getBoundingClientRect();
  if (own.width > 0 && own.height > 0) return own;
  const range = document.createRange();
  range.selectNodeContents(element);
  return range.getBoundingClientRect();
}

function isWithin(path: string, ancestor: string): boolean {
  return path === ancestor || path.startsWith(`${ancestor}/`);
}
