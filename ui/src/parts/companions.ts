/**
 * What published pages need: pictures, tags, fragments and templates that they refer to, with the published state of each.
 */
import { t } from "../language";
import type { Companion, Companions } from "../server/answers";
import { read } from "../server/client";

/** The number of requests at the same time. */
const AT_ONCE = 6;
const ORDER: Companion["kind"][] = ["asset", "fragment", "tag", "template", "other", "page"];

/** Returns what the documents at some paths refer to, in the order in which it is shown; without these documents. */
export async function companionsOf(paths: string[], deep = false): Promise<Companion[]> {
  const found = new Map<string, Companion>();
  for (let from = 0; from < paths.length; from += AT_ONCE) {
    const part = paths.slice(from, from + AT_ONCE);
    const answers = await Promise.all(part.map((path) => read<Companions>("/api/v1/replication/companions", { path, deep: deep || undefined })));
    for (const one of answers.flatMap(({ companions }) => companions)) found.set(one.path, one);
  }
  for (const path of paths) found.delete(path);
  return [...found.values()].sort((a, b) => Number(b.ticked) - Number(a.ticked) || ORDER.indexOf(a.kind) - ORDER.indexOf(b.kind));
}

/** Returns the companions to show: what visitors lack, then what they have in an older state. Live ones are left out. */
export function openCompanions(companions: Companion[]): Companion[] {
  return companions.filter(({ status, ticked }) => ticked || status !== "live");
}

/** Returns the paths that are published along unless the user decides otherwise. */
export function proposedPaths(companions: Companion[]): string[] {
  return companions.filter(({ ticked, allowed }) => ticked && allowed !== false).map(({ path }) => path);
}

/** Returns the kind of a companion in words. */
export function kindName(kind: Companion["kind"]): string {
  return { asset: t("Picture or file"), tag: t("Tag"), template: t("Template"), fragment: t("Fragment"), page: t("Linked page"), other: t("Other") }[kind];
}

/** Returns the reason why a companion is listed. */
export function companionState({ status }: Companion): string {
  return { never: t("never published"), live: t("live"), outdated: t("changed since it was published"), "taken-away": t("unpublished") }[status];
}
