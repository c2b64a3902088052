/**
 * What a picker offers: kinds of content, where each lies, and how it is searched.
 */
import { message } from "../language";
import type { Field, PageItem, Rows } from "../server/answers";
import { sendTo } from "../server/client";
import { lastSegment } from "../server/post";
import { DAM } from "../assets/asset";
import { findAssets, NO_QUESTION } from "../assets/find";

/** `place` is any folder or page to put something into; `any` lets the user choose among the kinds. */
export type PickKind = "asset" | "page" | "tag" | "fragment" | "place" | "any";

export const TAGS = "/content/cq:tags";

/** The titles of the dialog. */
export const PICK_TITLES: Record<PickKind, string> = {
  asset: message("Choose a picture or file"),
  page: message("Choose a page"),
  tag: message("Choose a tag"),
  fragment: message("Choose a fragment"),
  place: message("Choose a path"),
  any: message("Choose a path"),
};

/** Where the content of a kind lies. */
export function rootOf(kind: PickKind): string {
  return kind === "asset" ? DAM : kind === "tag" ? TAGS : "/content";
}

/** Returns the kind of content that a field of a dialog chooses: as the dialog says, else by the name of the property. */
export function kindOfField({ name, picks, root }: Pick<Field, "name" | "picks" | "root">): PickKind {
  if (picks) return picks;
  if (root?.startsWith(DAM)) return "asset";
  const property = name.slice(name.lastIndexOf("/") + 1);
  return /^(file(Reference)?|.*(image|picture|photo|thumbnail|poster|video|asset)(Reference|Path)?)$/i.test(property) ? "asset" : "any";
}

/** Returns true if an item can be chosen. */
export function isPickable(kind: PickKind, item: PageItem): boolean {
  switch (kind) {
    case "asset":
      return item.type === "asset";
    case "page":
      return item.type === "page";
    case "tag":
      return item.type === "node";
    default:
      return true;
  }
}

/** Returns true if an item is listed for a kind: itself, or a folder on the way. */
export function isListed(kind: PickKind, item: PageItem): boolean {
  if (item.path === "/content" || item.type === "folder") return kind !== "page" || (item.path !== DAM && item.path !== TAGS);
  if (kind === "asset") return item.type === "asset";
  if (kind === "page") return item.type === "page" || item.hasChildren;
  if (kind === "place") return item.type !== "asset";
  return true;
}

/** Returns the value that is stored for a chosen item: the id of a tag, the path of anything else. */
export function pickedValue(kind: PickKind, path: string): string {
  return kind === "tag" ? tagId(path) : path;
}

/** Returns the id of a tag: `site:topic/sub` for `/content/cq:tags/site/topic/sub`. */
export function tagId(path: string): string {
  const relative = path.startsWith(`${TAGS}/`) ? path.slice(TAGS.length + 1) : path;
  const [namespace = "", ...rest] = relative.split("/");
  return rest.length === 0 ? `${namespace}:` : `${namespace}:${rest.join("/")}`;
}

const LIMIT = 60;

/** Finds content of a kind by words. */
export async function findOf(kind: PickKind, words: string, below: string): Promise<PageItem[]> {
  if (kind === "asset") return (await findAssets({ ...NO_QUESTION, words }, below, LIMIT)).items;
  if (kind === "fragment") return findFragments(words);
  if (kind === "tag") return findTags(words);
  return findPages(words, below);
}

/** A text for `CONTAINS`: each word may be the beginning of one. */
function prefixes(words: string): string {
  return words.trim().split(/\s+/).map((word) => (/["*]/.test(word) ? word : `${word}*`)).join(" ");
}

async function findPages(words: string, below: string): Promise<PageItem[]> {
  const columns = "a.[jcr:content/jcr:title], a.[jcr:content/cq:template], a.[jcr:content/cq:lastModified]";
  const inside = ` AND ISDESCENDANTNODE(a, '${below.replace(/'/g, "''")}')`;
  const statement = `SELECT ${columns} FROM [cq:Page] AS a WHERE CONTAINS(a.*, $text)${inside} ORDER BY [jcr:score] DESC`;
  const { rows } = await sendTo<Rows>("POST", "/api/v1/query", { statement, parameters: { text: prefixes(words) }, limit: LIMIT });
  return rows.flatMap(({ path, values }) => (path === null ? [] : [itemOf(path, "page", values["a.jcr:content/jcr:title"], values["a.jcr:content/cq:template"])]));
}

/** Content fragments among the assets, and experience fragments. */
async function findFragments(words: string): Promise<PageItem[]> {
  const text = words.trim() === "" ? "" : " AND CONTAINS(a.*, $text)";
  const parameters = words.trim() === "" ? {} : { text: prefixes(words) };
  const ask = (statement: string) => sendTo<Rows>("POST", "/api/v1/query", { statement, parameters, limit: LIMIT });
  const [content, experience] = await Promise.all([
    ask(`SELECT a.[jcr:content/jcr:title] FROM [dam:Asset] AS a WHERE a.[jcr:content/contentFragment] = true${text}`),
    ask(`SELECT a.[jcr:content/jcr:title] FROM [cq:Page] AS a WHERE ISDESCENDANTNODE(a, '/content/experience-fragments')${text}`),
  ]);
  return [...content.rows, ...experience.rows].flatMap(({ path, values }) => (path === null ? [] : [itemOf(path, "page", values["a.jcr:content/jcr:title"])]));
}

async function findTags(words: string): Promise<PageItem[]> {
  const parts = words.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const statement = `SELECT a.[jcr:title] FROM [cq:Tag] AS a WHERE ISDESCENDANTNODE(a, '${TAGS}')`;
  const { rows } = await sendTo<Rows>("POST", "/api/v1/query", { statement, limit: 5000 });
  const items = rows.flatMap(({ path, values }) => (path === null ? [] : [itemOf(path, "node", values["a.jcr:title"])]));
  return items.filter(({ title, path }) => parts.every((part) => `${title} ${tagId(path)}`.toLowerCase().includes(part))).slice(0, LIMIT);
}

function itemOf(path: string, type: PageItem["type"], title: unknown, template: unknown = null): PageItem {
  return {
    path,
    name: lastSegment(path),
    title: typeof title === "string" && title !== "" ? title : lastSegment(path),
    type,
    resourceType: null,
    template: typeof template === "string" ? template : null,
    modified: null,
    modifiedBy: null,
    hasChildren: false,
    status: "draft",
    activated: null,
  };
}

