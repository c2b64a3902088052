/**
 * Runs one change per item, in order, and reports the results in messages.
 */
import type { PageItem } from "../server/answers";
import { countText, t } from "../language";
import { messageOf } from "../server/client";
import { toasts } from "./toasts.svelte";

interface EachOptions {
  items: PageItem[];
  /** The words before the number of changed items, e.g. "Deleted". */
  done: string;
  /** The words before the number of refused items, e.g. "Could not delete". */
  refused: string;
  /** The noun for several items. */
  noun: string;
  change: (item: PageItem) => Promise<unknown>;
  onprogress?: (text: string) => void;
}

/** Returns the items whose change failed. */
export async function runEach({ items, done, refused, noun, change, onprogress }: EachOptions): Promise<PageItem[]> {
  const failed: PageItem[] = [];
  const reasons: string[] = [];
  for (const [at, item] of items.entries()) {
    if (items.length > 1) onprogress?.(t("{part} of {whole}", { part: at + 1, whole: items.length }));
    try {
      await change(item);
    } catch (error) {
      failed.push(item);
      reasons.push(`${item.title || item.name}: ${messageOf(error)}`);
    }
  }
  onprogress?.("");
  const good = items.length - failed.length;
  const [only] = items;
  if (good > 0) toasts.good(items.length === 1 && only ? `${done} “${only.title || only.name}”` : `${done} ${countText(good)} ${noun}`);
  if (failed.length > 0) toasts.bad(t("{what}: {failed} of {all}", { what: refused, failed: countText(failed.length), all: countText(items.length) }), reasons.slice(0, 3).join(" · "));
  return failed;
}
