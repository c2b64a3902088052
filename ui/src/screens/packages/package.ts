/**
 * Names and sizes of packages.
 */
import { LANGUAGE, t } from "../../language";
import type { PackageItem } from "../../server/answers";

/** Returns the id of a package in the API: `group:name:version`. */
export function idOf({ id }: Pick<PackageItem, "id">): string {
  return id.version ? `${id.group}:${id.name}:${id.version}` : `${id.group}:${id.name}`;
}

/** Returns a size in the largest unit in which it is at least 1. */
export function sizeText(bytes: number): string {
  const units = [t("bytes"), "KiB", "MiB", "GiB"];
  const at = Math.min(units.length - 1, bytes < 1 ? 0 : Math.floor(Math.log2(bytes) / 10));
  const number = bytes / 1024 ** at;
  return `${number.toLocaleString(LANGUAGE, { maximumFractionDigits: number < 10 && at > 0 ? 1 : 0 })} ${units[at]}`;
}

/** Returns the filter of a package with some paths and everything below them. */
export function filterOf(roots: string[]): string {
  const escape = (text: string) => text.replace(/[&<>"]/g, (one) => `&#${one.charCodeAt(0)};`);
  const filters = roots.map((root) => `  <filter root="${escape(root)}"/>\n`).join("");
  return `<?xml version="1.0" encoding="UTF-8"?>\n<workspaceFilter version="1.0">\n${filters}</workspaceFilter>\n`;
}
