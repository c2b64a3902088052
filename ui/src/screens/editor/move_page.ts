/**
 * Moving or renaming a page: one commit that moves it, rewrites the references to it, and leaves a redirect.
 */
import type { BatchResults, NodeAnswer, Operation, PageDetail } from "../../server/answers";
import { read, sendTo } from "../../server/client";
import { lastSegment, parentPath } from "../../server/post";
import { orderOperation } from "./history.svelte";

export interface PageMove {
  to: string;
  isRewriting: boolean;
  leavesRedirect: boolean;
  /** True if the page at its new place, with the pages below it, and the redirect are activated at once. */
  activates: boolean;
}

/** What a move did. */
export interface MoveReport {
  rewritten: number;
  /** The references that still point to the old path, with the reason. */
  kept: { path: string; property: string; reason: string }[];
}

/** Returns the operations of a move. The redirect is a page at the old path; its place among the siblings is kept. */
export function moveOperations(page: PageDetail, { to, isRewriting, leavesRedirect }: PageMove, before: string | null): Operation[] {
  const from = page.path;
  const move: Operation = { op: "move", from, to, ...(isRewriting ? { rewrite: true } : {}) };
  if (!leavesRedirect) return [move];
  const properties = {
    "jcr:title": page.title,
    ...(page.content.resourceType ? { "sling:resourceType": page.content.resourceType } : {}),
    "cq:redirectTarget": to,
    hideInNav: true,
  };
  const redirect = { type: "cq:Page", properties: {}, children: { "jcr:content": { type: "cq:PageContent", properties } } };
  return [move, { op: "put", path: from, node: redirect }, orderOperation(from, before === null ? "first" : { after: before })];
}

/** Moves a page and activates what belongs to it. */
export async function movePage(page: PageDetail, move: PageMove): Promise<MoveReport> {
  const before = move.leavesRedirect ? await siblingBefore(page.path) : null;
  const operations = moveOperations(page, move, before);
  const { results } = await sendTo<BatchResults>("POST", "/api/v1/batch", { operations, message: `move ${page.path} to ${move.to}` });
  if (move.activates) {
    await sendTo("POST", "/api/v1/replication", { action: "activate", paths: [move.to], deep: true });
    const old = move.leavesRedirect ? "activate" : "deactivate";
    await sendTo("POST", "/api/v1/replication", { action: old, paths: [page.path] });
  }
  const [done] = results;
  return { rewritten: done?.rewritten?.length ?? 0, kept: done?.kept ?? [] };
}

async function siblingBefore(path: string): Promise<string | null> {
  const parent = await read<NodeAnswer>("/api/v1/nodes", { path: parentPath(path), depth: 1 });
  // The parent's own content has no place among the pages.
  const names = Object.keys(parent.children ?? {}).filter((name) => name !== "jcr:content");
  return names[names.indexOf(lastSegment(path)) - 1] ?? null;
}
