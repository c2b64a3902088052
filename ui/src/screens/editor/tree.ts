/**
 * The components of a page as a tree, and the positions where a new one can be added.
 */
import { t } from "../../language";
import type { ComponentItem, PageDetail } from "../../server/answers";
import { parentPath, type Place } from "../../server/post";

/** A component with its position in the tree, for a tree view. */
export interface TreeRow {
  item: ComponentItem;
  level: number;
  position: number;
  siblings: ComponentItem[];
}

/** A position for a new component. */
export interface Spot {
  label: string;
  parent: string;
  place: Place;
}

/** Returns the rows in reading order, without those inside folded components. */
export function visibleRows(items: ComponentItem[], isFolded: (path: string) => boolean, level = 1): TreeRow[] {
  return items.flatMap((item, at) => [
    { item, level, position: at + 1, siblings: items },
    ...(isFolded(item.path) ? [] : visibleRows(item.children, isFolded, level + 1)),
  ]);
}

/** Returns the row of a component, or `null`. */
export function findRow(items: ComponentItem[], path: string): TreeRow | null {
  return visibleRows(items, () => false).find((row) => row.item.path === path) ?? null;
}

/** Returns the name of a component for messages: its title and its label. */
export function componentName(item: ComponentItem): string {
  return item.label && item.label !== item.title ? `${item.title} “${item.label}”` : item.title;
}

/** Returns the positions for a new component: beside and in the selected one, and at the ends of the containers. */
export function spots(page: PageDetail, selected: string | null): Spot[] {
  const row = selected === null ? null : findRow(page.components, selected);
  const found: Spot[] = [];
  if (row) {
    const { item } = row;
    if (item.container) found.push({ label: t("Inside {name}, at the end", { name: componentName(item) }), parent: item.path, place: "last" });
    found.push({ label: t("After {name}", { name: componentName(item) }), parent: parentPath(item.path), place: { after: item.name } });
    found.push({ label: t("Before {name}", { name: componentName(item) }), parent: parentPath(item.path), place: { before: item.name } });
  }
  for (const { item } of visibleRows(page.components, () => false)) {
    if (item.container && item.path !== selected) {
      found.push({ label: t("Inside {name}, at the end", { name: componentName(item) }), parent: item.path, place: "last" });
    }
  }
  const top = page.components[0] ? parentPath(page.components[0].path) : page.content.path;
  found.push({ label: t("At the end of the page"), parent: top, place: "last" });
  return found;
}

/** Returns true if a node may contain a component. If the server gives no restriction, all components are allowed. */
export function mayLieIn(page: PageDetail, parent: string, resourceType: string): boolean {
  const container = parent === page.content.path ? page.content : findRow(page.components, parent)?.item;
  return container?.allowed?.includes(resourceType) ?? true;
}

/** Returns the position one step up or down among the siblings, or `null` at the end. */
export function stepPlace(row: TreeRow, direction: "up" | "down"): Place | null {
  const neighbor = row.siblings[row.position - 1 + (direction === "up" ? -1 : 1)];
  if (!neighbor) return null;
  return direction === "up" ? { before: neighbor.name } : { after: neighbor.name };
}

/** Returns the present position of a component among its siblings. */
export function placeOf(items: ComponentItem[], path: string): Place {
  const row = findRow(items, path);
  const before = row ? row.siblings[row.position - 2] : undefined;
  return before ? { after: before.name } : "first";
}

/**
 * Returns the position one level up or down: behind the container that holds a component, or at the end of the
 * container before it. `null` if there is none.
 */
export function levelPlace(page: PageDetail, path: string, direction: "out" | "in"): Spot | null {
  const row = findRow(page.components, path);
  if (!row) return null;
  if (direction === "in") {
    const before = row.siblings[row.position - 2];
    return before?.container ? { label: "", parent: before.path, place: "last" } : null;
  }
  const parent = findRow(page.components, parentPath(path));
  return parent ? { label: "", parent: parentPath(parent.item.path), place: { after: parent.item.name } } : null;
}
