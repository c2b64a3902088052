/**
 * Unsaved changes, kept in this browser until they are saved or discarded: a closed tab, a crash or an empty battery
 * loses nothing.
 *
 * Not here: bringing them together with what others have saved meanwhile; the next save does that.
 */
import type { Values } from "../form/value";
import type { Dialog } from "../server/answers";

/** One form as it was left: what it was opened with, and what it holds. */
export interface KeptDraft {
  dialog: Dialog;
  tag: string | null;
  values: Values;
}

/** The forms of one page. */
export interface KeptDrafts {
  at: string;
  /** Where the change feed was when the page was opened. */
  cursor: string | null;
  drafts: KeptDraft[];
}

const PREFIX = "tympan.drafts ";
/** What was left longer ago than this is given up. */
const MOST_DAYS = 30;

const keyOf = (user: string, page: string) => `${PREFIX}${user} ${page}`;

/** Keeps the forms of a page; none takes away what was kept. Answers whether the browser had room for it. */
export function keepDrafts(user: string, page: string, kept: KeptDrafts | null): boolean {
  try {
    if (kept === null || kept.drafts.length === 0) localStorage.removeItem(keyOf(user, page));
    else localStorage.setItem(keyOf(user, page), JSON.stringify(kept));
    return true;
  } catch {
    return false;
  }
}

/** Returns the forms that were left on a page. */
export function keptDrafts(user: string, page: string, now: Date): KeptDrafts | null {
  try {
    const text = localStorage.getItem(keyOf(user, page));
    if (text === null) return null;
    const kept = JSON.parse(text) as KeptDrafts;
    const isOld = now.getTime() - new Date(kept.at).getTime() > MOST_DAYS * 86_400_000;
    if (!isOld && kept.drafts.every((draft) => typeof draft.dialog.path === "string")) return kept;
    localStorage.removeItem(keyOf(user, page));
  } catch {
    // What cannot be read is as good as nothing.
  }
  return null;
}
