/**
 * The change feed: where it is now, and who changed what since.
 */
import type { Changes, Revision } from "./answers";
import { read } from "./client";

const PAGE = 1000;
/** So many pages are read at most; what changed before is then told by the page's own note. */
const MOST_PAGES = 20;

/** Who changed something, and when. */
export interface Author {
  user: string;
  time: string;
}

/** Returns the cursor behind the newest change. */
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

/** Returns who changed a property of a node last; a list of entries is the nodes below its name. */
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
