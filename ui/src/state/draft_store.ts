/**
 * Unsaved changes, kept in this browser until they are saved or discarded. They survive a closed tab or a crash.
 *
 * Not here: merging them with changes that others have saved since; the next save does that.
 */
import type { Values } from "../form/value";
import type { Dialog } from "../server/answers";

/** An unsaved form: the dialog that it was opened with, and its values. */
export interface KeptDraft {
  dialog: Dialog;
  tag: string | null;
  values: Values;
}

/** The unsaved forms of one page. */
export interface KeptDrafts {
  at: string;
  /** The cursor of the change feed when the page was opened. */
  cursor: string | null;
  drafts: KeptDraft[];
}

const PREFIX = "tympan.drafts ";
/** Older drafts are removed. */
const MOST_DAYS = 30;

const keyOf = (user: string, page: string) => `${PREFIX}${user} ${page}`;

/**
 * Stores the unsaved forms of a page; without forms, removes the stored ones. Returns false if the browser cannot store
 * them.
 */
export function keepDrafts(user: string, page: string, kept: KeptDrafts | null): boolean {
  try {
    if (kept === null || kept.drafts.length === 0) localStorage.removeItem(keyOf(user, page));
    else localStorage.setItem(keyOf(user, page), JSON.stringify(kept));
    return true;
  } catch {
    return false;
  }
}

/** Returns the unsaved forms of a page. */
export function keptDrafts(user: string, page: string, now: Date): KeptDrafts | null {
  try {
    const text = localStorage.getItem(keyOf(user, page));
    if (text === null) return null;
    const kept = JSON.parse(text) as KeptDrafts;
    const isOld = now.getTime() - new Date(kept.at).getTime() > MOST_DAYS * 86_400_000;
    if (!isOld && kept.drafts.every((draft) => typeof draft.dialog.path === "string")) return kept;
    localStorage.removeItem(keyOf(user, page));
  } catch {
    // Unreadable drafts are ignored.
  }
  return null;
}
