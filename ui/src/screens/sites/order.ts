/**
 * Sorting and filtering of the rows of a listing.
 */
import type { PageItem, Status } from "../../server/answers";

export type Column = "title" | "template" | "modified" | "status";

/** A column to sort by; `null` stands for content order. */
export interface Sort {
  column: Column;
  isDescending: boolean;
}

/** Statuses by the attention that they need, most urgent first. */
const URGENCY: Record<Status, number> = { failed: 0, queued: 1, modified: 2, draft: 3, deactivated: 4, live: 5 };

const collator = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });

/** Returns the sort after a click on a column header: ascending, descending, then content order again. */
export function nextSort(sort: Sort | null, column: Column): Sort | null {
  if (sort?.column !== column) return { column, isDescending: false };
  return sort.isDescending ? null : { column, isDescending: true };
}

/** Returns the server's parameter for a sort; `null` if only the browser can sort by the column. */
export function serverSort(sort: Sort): string | null {
  if (sort.column !== "title" && sort.column !== "modified") return null;
  return sort.isDescending ? `-${sort.column}` : sort.column;
}

/** Returns the items that contain every word of the filter, in the order of the sort. */
export function arrange(items: PageItem[], filter: string, sort: Sort | null): PageItem[] {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const kept = words.length === 0 ? items : items.filter((item) => words.every((word) => haystack(item).includes(word)));
  if (!sort) return kept;
  const sign = sort.isDescending ? -1 : 1;
  return [...kept].sort((a, b) => sign * compare(a, b, sort.column));
}

/** Returns a short name for the template of a page: the last segment of its template, else of its resource type. */
export function templateName(item: PageItem): string {
  const path = item.template || item.resourceType || "";
  return path.slice(path.lastIndexOf("/") + 1);
}

function compare(a: PageItem, b: PageItem, column: Column): number {
  switch (column) {
    case "title":
      return collator.compare(a.title || a.name, b.title || b.name);
    case "template":
      return collator.compare(templateName(a), templateName(b));
    case "modified":
      return (a.modified ?? "").localeCompare(b.modified ?? "");
    case "status":
      return (URGENCY[a.status] ?? 9) - (URGENCY[b.status] ?? 9);
  }
}

function haystack(item: PageItem): string {
  return `${item.title}\n${item.name}\n${templateName(item)}\n${item.status}`.toLowerCase();
}
