/**
 * The state of an upload on the server: a file is received in chunks, into a node beside its target, and becomes an
 * asset in one commit once it is complete.
 */
import { t } from "../language";
import type { NodeAnswer, Operation, SentProperty } from "../server/answers";
import { read, sendTo, ServerError } from "../server/client";
import { childPath } from "../server/post";
import { STAGING_PREFIX } from "./asset";

/** A file that is to be uploaded, as far as its identity matters. */
export interface FileIdentity {
  name: string;
  size: number;
  lastModified: number;
}

/** Returns the name of the node that receives a file. The same file of the same user has the same one, so that an upload can continue later. */
export function stagingName(user: string, { name, size, lastModified }: FileIdentity): string {
  return STAGING_PREFIX + hashText(`${user}\n${name}\n${size}\n${lastModified}`);
}

/** Returns the number of bytes that the server already has of a file. */
export async function receivedBytes(staging: string, size: number): Promise<number> {
  try {
    return bytesIn(await read<NodeAnswer>("/api/v1/nodes", { path: `${staging}/jcr:content`, depth: 1 }), size);
  } catch (error) {
    if (error instanceof ServerError && error.status === 404) return 0;
    throw error;
  }
}

/** Returns the number of received bytes by the chunks below a node; all, if the node has no chunks any more. */
export function bytesIn(holder: NodeAnswer, size: number): number {
  const mixins = holder.properties["jcr:mixinTypes"]?.values ?? [];
  if (!mixins.includes("sling:chunks")) return size;
  const ends = Object.keys(holder.children ?? {}).map((name) => Number(/^chunk_\d+_(\d+)$/.exec(name)?.[1] ?? -1));
  return Math.max(-1, ...ends) + 1;
}

/** Makes an asset of a received file. The server refuses (412) if there is a node at the path already. */
export async function storeAsset(staging: string, path: string, { format, user, now }: { format: string; user: string; now: Date }): Promise<void> {
  const content = `${path}/jcr:content`;
  const changed = { "jcr:lastModified": { type: "Date", value: now.toISOString() }, "jcr:lastModifiedBy": { type: "String", value: user } };
  const put = (at: string, type: string, properties: Record<string, SentProperty> = {}): Operation => ({ op: "put", path: at, node: { type, properties } });
  // Nodes without children in the request keep those that they have; so an asset that appeared meanwhile stays whole, and
  // the move is refused.
  await apply([
    put(path, "dam:Asset"),
    put(content, "dam:AssetContent", changed),
    put(`${content}/metadata`, "nt:unstructured", format === "" ? {} : { "dc:format": format }),
    put(`${content}/renditions`, "nt:folder"),
    { op: "move", from: staging, to: originalOf(path) },
  ]);
}

/** Replaces the file of an asset by a received one. Its address, metadata and versions stay. */
export async function replaceOriginal(staging: string, path: string, { user, now }: { user: string; now: Date }): Promise<void> {
  await sendTo("POST", "/api/v1/versions", { path, comment: t("Before the file was replaced") }).catch((error) => {
    // Keeping versions needs a right of its own.
    if (!(error instanceof ServerError) || error.status !== 403) throw error;
  });
  const changed = { "jcr:lastModified": { type: "Date", value: now.toISOString() }, "jcr:lastModifiedBy": { type: "String", value: user } };
  // Without a state, the asset counts as being processed.
  const properties = { ...changed, "dam:assetState": null, "dam:failureReason": null };
  await apply([
    { op: "move", from: staging, to: originalOf(path), replace: true },
    { op: "patch", path: `${path}/jcr:content`, patch: { properties } },
  ]);
}

/** Returns the path of an asset's original. */
export function originalOf(path: string): string {
  return `${path}/jcr:content/renditions/original`;
}

/** Removes a partly received file. */
export async function discardReceived(folder: string, name: string): Promise<void> {
  await sendTo("DELETE", "/api/v1/nodes", undefined, { path: childPath(folder, name) });
}

function apply(operations: Operation[]): Promise<unknown> {
  return sendTo("POST", "/api/v1/batch", { operations, message: "upload" });
}

/** Returns 16 hexadecimal digits for a text. */
export function hashText(text: string): string {
  let [a, b] = [0xdeadbeef, 0x41c6ce57];
  for (const character of text) {
    const code = character.codePointAt(0) ?? 0;
    a = Math.imul(a ^ code, 2654435761);
    b = Math.imul(b ^ code, 1597334677);
  }
  a = Math.imul(a ^ (a >>> 16), 2246822507) ^ Math.imul(b ^ (b >>> 13), 3266489909);
  b = Math.imul(b ^ (b >>> 16), 2246822507) ^ Math.imul(a ^ (a >>> 13), 3266489909);
  return [a, b].map((half) => (half >>> 0).toString(16).padStart(8, "0")).join("");
}
