/**
 * Unsaved changes and the history of edits, kept in this browser. They survive a closed tab, a reload or a crash.
 *
 * Drafts belong to a tab: two tabs of one user never overwrite each other's. The drafts of a tab that was closed are
 * taken over by the next one that opens the page. The history belongs to the tab alone and ends with it.
 *
 * Not here: merging drafts with changes that others have saved since; the next save does that.
 */
import type { Values } from "../form/value";
import type { Dialog } from "../server/answers";
import { editorTab, openTabs } from "./editor_tab";

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
const HISTORY = "tympan.history ";
/** Older drafts are removed. */
const MOST_DAYS = 30;

const keyOf = (user: string, tab: string, page: string) => `${PREFIX}${user} ${tab} ${page}`;

/**
 * Stores the unsaved forms of a page; without forms, removes the stored ones. Returns false if the browser cannot store
 * them.
 */
export function keepDrafts(user: string, tab: string, page: string, kept: KeptDrafts | null): boolean {
  try {
    if (kept === null || kept.drafts.length === 0) localStorage.removeItem(keyOf(user, tab, page));
    else localStorage.setItem(keyOf(user, tab, page), JSON.stringify(kept));
    return true;
  } catch {
    return false;
  }
}

/** Returns the unsaved forms of a page: of this tab and of tabs that were closed, which this tab takes over. */
export async function keptDrafts(user: string, page: string, now: Date): Promise<KeptDrafts[]> {
  const [own, open] = await Promise.all([editorTab(), openTabs()]);
  return draftKeys(user, page)
    .filter(({ tab }) => tab === own || !open?.has(tab))
    .flatMap(({ key, tab }) => {
      const kept = readKept(key, now);
      if (tab !== own || kept === null) localStorage.removeItem(key);
      return kept ?? [];
    })
    .sort((a, b) => a.at.localeCompare(b.at));
}

/** Stores the history of a page for this tab. Returns false if there is no room for it. */
export function keepHistory(user: string, tab: string, page: string, history: unknown): boolean {
  try {
    sessionStorage.setItem(`${HISTORY}${user} ${tab} ${page}`, JSON.stringify(history));
    return true;
  } catch {
    return false;
  }
}

/** Returns the stored history of a page. A duplicated tab is another one, and begins without a history. */
export function keptHistory(user: string, tab: string, page: string): unknown {
  try {
    return JSON.parse(sessionStorage.getItem(`${HISTORY}${user} ${tab} ${page}`) ?? "null") as unknown;
  } catch {
    return null;
  }
}

function draftKeys(user: string, page: string): { key: string; tab: string }[] {
  try {
    return Object.keys(localStorage).flatMap((key) => {
      if (!key.startsWith(`${PREFIX}${user} `) || !key.endsWith(` ${page}`)) return [];
      const tab = key.slice(PREFIX.length + user.length + 1, key.length - page.length - 1);
      return /^[0-9a-f]{10}$/.test(tab) ? [{ key, tab }] : [];
    });
  } catch {
    return [];
  }
}

function readKept(key: string, now: Date): KeptDrafts | null {
  try {
    const kept = JSON.parse(localStorage.getItem(key) ?? "null") as KeptDrafts | null;
    if (kept === null) return null;
    const isOld = now.getTime() - new Date(kept.at).getTime() > MOST_DAYS * 86_400_000;
    return !isOld && kept.drafts.every((draft) => typeof draft.dialog.path === "string") ? kept : null;
  } catch {
    // Unreadable drafts are ignored.
    return null;
  }
}
