/**
 * The bodies of Sling POST requests, as pairs of name and value.
 *
 * A body describes an operation on the resource that it is posted to; `server/client` sends it. Property names start
 * with `./`, so that a property can never be interpreted as an instruction to the server.
 */
import { t } from "../language";

export type Pair = [name: string, value: string];

/** The position of a new or moved node among its siblings. */
export type Place = "first" | "last" | { before: string } | { after: string };

/** Returns a new page in the format of the API; what it does not say, the server takes from its template. */
export function pageNode(page: { title: string; resourceType?: string; template?: string | null }): unknown {
  const properties = {
    "jcr:title": page.title,
    ...(page.resourceType ? { "sling:resourceType": page.resourceType } : {}),
    ...(page.template ? { "cq:template": page.template } : {}),
  };
  return { type: "cq:Page", children: { "jcr:content": { type: "cq:PageContent", properties } } };
}

/** Returns the body that activates the page, and with `isDeep` every page below it. */
export function activate(isDeep: boolean): Pair[] {
  return [
    [":operation", "activate"],
    [":deep", String(isDeep)],
  ];
}

/** Returns the body that deactivates the page. */
export function deactivate(): Pair[] {
  return [[":operation", "deactivate"]];
}

/** Returns an `application/x-www-form-urlencoded` body with the fields that request a JSON response. */
export function encodeBody(pairs: Pair[]): URLSearchParams {
  return new URLSearchParams([["_charset_", "utf-8"], [":http-equiv-accept", "application/json"], ...pairs]);
}

/** Returns the last segment of a path. */
export function lastSegment(path: string): string {
  return path.slice(path.lastIndexOf("/") + 1);
}

/** Returns the parent of a path; the parent of `/a` is `/`. */
export function parentPath(path: string): string {
  const end = path.lastIndexOf("/");
  return end <= 0 ? "/" : path.slice(0, end);
}

/** Returns the path of a child. */
export function childPath(parent: string, name: string): string {
  return parent === "/" ? `/${name}` : `${parent}/${name}`;
}

/** Returns a name like `hint` that is not taken: `teaser`, `teaser_0`, `teaser_1`. */
export function freeName(hint: string, taken: string[]): string {
  const names = new Set(taken);
  let name = hint;
  for (let at = 0; names.has(name); at += 1) name = `${hint}_${at}`;
  return name;
}

/** Returns a node name for a title: "Über uns!" becomes `ueber-uns`. */
export function nameForTitle(title: string): string {
  const spelled: Record<string, string> = { ä: "ae", ö: "oe", ü: "ue", ß: "ss", æ: "ae", ø: "o", å: "a", œ: "oe" };
  return title
    .toLowerCase()
    .replace(/[äöüßæøåœ]/g, (letter) => spelled[letter] ?? "")
    .normalize("NFKD")
    .replace(/\p{M}/gu, "")
    .replace(/[^\p{L}\p{N}]+/gu, "-")
    .replace(/^-+|-+$/g, "");
}

/** Returns an error message for an invalid node name, or `null`. */
export function nameProblem(name: string): string | null {
  if (name === "") return t("Enter a name.");
  if (name === "." || name === "..") return t("`{name}` is not a valid name.", { name });
  const wrong = /[/:[\]|*"'\\\u0000-\u001f]/.exec(name);
  if (wrong) return t("A name must not contain `{value}`.", { value: wrong[0] });
  if (name !== name.trim()) return t("A name must not start or end with a space.");
  return null;
}
