/**
 * The change feed: its current cursor, and the changes since a cursor with their authors.
 */
import type { Changes, Revision } from "./answers";
import { read } from "./client";

const PAGE = 1000;
/** The maximum number of pages to read; for older changes, the page's own last-modified properties are used. */
const MOST_PAGES = 20;

/** The user and time of a change. */
export interface Author {
  user: string;
  time: string;
}

/** Returns the cursor after the newest change. */
export async function newestCursor(): Promise<string> {
  return (await read<Changes>("/api/v1/changes", { since: "now" })).next;
}

/** Returns the revisions since a cursor that changed something at or below a path. */
export async function revisionsSince(cursor: string, path: string): Promise<Revision[]> {
  const revisions: Revision[] = [];
  let since = cursor;
  for (let page = 0; page < MOST_PAGES; page += 1) {
    const answer = await read<Changes>("/api/v1/changes", { since, path, limit: PAGE });
    revisions.push(...answer.revisions);
    if (answer.isEnd || answer.next === since) break;
    since = answer.next;
  }
  return revisions;
}

/** Returns the author of the last change of a property. A list of entries is stored as the nodes below its name. */
export function authorOf(revisions: Revision[], path: string, property: string): Author | null {
  const below = `${path}/${property}`;
  for (const revision of [...revisions].reverse()) {
    const isIt = revision.changes.some((change) => {
      if (change.path === path) return change.properties.some((one) => one.name === property) || change.kind === "removed";
      return change.path === below || change.path.startsWith(`${below}/`) || (change.kind === "removed" && path.startsWith(`${change.path}/`));
    });
    if (isIt) return { user: revision.user, time: revision.time };
  }
  return null;
}
