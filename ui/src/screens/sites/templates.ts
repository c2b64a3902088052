/**
 * The templates of new pages: which are allowed below a path, and how a page is made of one.
 *
 * The rules are AEM's, in this order: `cq:allowedTemplates` of the nearest page above, `allowedPaths` and
 * `allowedParents` of the template, `allowedChildren` of the parent's template. A rule that is not set allows all.
 */
import type { NodeAnswer, Operation, Rows, Scalar } from "../../server/answers";
import { read, sendTo, ServerError } from "../../server/client";
import { lastSegment, parentPath } from "../../server/post";

export interface Template {
  path: string;
  title: string;
  description: string;
  ranking: number;
  allowedPaths: string[];
  allowedParents: string[];
  allowedChildren: string[];
  /** The node that new pages get a copy of. */
  content: string;
}

/** What the place of a new page says about its template. */
export interface TemplatePlace {
  /** The path of the parent. */
  parent: string;
  /** The template of the parent page. */
  parentTemplate: string | null;
  /** `cq:allowedTemplates` of the nearest page above that has it. */
  allowedTemplates: string[];
}

const COLUMNS = ["jcr:title", "jcr:description", "ranking", "allowedPaths", "allowedParents", "allowedChildren", "status", "jcr:content/jcr:title", "jcr:content/jcr:description", "jcr:content/status", "jcr:content/sling:resourceType", "initial/jcr:content/sling:resourceType"];

/** Returns all templates that are enabled and have content for a page. */
export async function loadTemplates(): Promise<Template[]> {
  const statement = `SELECT ${COLUMNS.map((name) => `a.[${name}]`).join(", ")} FROM [cq:Template] AS a`;
  const { rows } = await sendTo<Rows>("POST", "/api/v1/query", { statement, limit: 1000 });
  return rows.flatMap(({ path, values }) => (path === null ? [] : (templateOf(path, (name) => values[`a.${name}`] ?? null) ?? [])));
}

/** Returns the template in a row, or `null` if pages cannot be made of it. */
export function templateOf(path: string, value: (name: string) => Scalar | Scalar[] | null): Template | null {
  const list = (name: string) => [value(name) ?? []].flat().map(String);
  const text = (...names: string[]) => names.map((name) => list(name)[0] ?? "").find((one) => one !== "") ?? "";
  const status = text("status", "jcr:content/status");
  if (status !== "" && status !== "enabled") return null;
  const isEditable = text("initial/jcr:content/sling:resourceType") !== "";
  if (!isEditable && text("jcr:content/sling:resourceType") === "") return null;
  return {
    path,
    title: text("jcr:title", "jcr:content/jcr:title") || lastSegment(path),
    description: text("jcr:description", "jcr:content/jcr:description"),
    ranking: Number(text("ranking") || 100),
    allowedPaths: list("allowedPaths"),
    allowedParents: list("allowedParents"),
    allowedChildren: list("allowedChildren"),
    content: `${path}/${isEditable ? "initial/jcr:content" : "jcr:content"}`,
  };
}

/** Returns what the pages from a path upwards say about templates. */
export async function loadPlace(parent: string): Promise<TemplatePlace> {
  const place: TemplatePlace = { parent, parentTemplate: null, allowedTemplates: [] };
  for (let path = parent; path !== "/" && path !== "/content"; path = parentPath(path)) {
    const content = await contentOf(path);
    if (path === parent) place.parentTemplate = String(content?.properties["cq:template"]?.value ?? "") || null;
    const allowed = content?.properties["cq:allowedTemplates"];
    place.allowedTemplates = (allowed?.values ?? [allowed?.value ?? ""]).map(String).filter(Boolean);
    if (place.allowedTemplates.length > 0) break;
  }
  return place;
}

async function contentOf(path: string): Promise<NodeAnswer | null> {
  try {
    const node = await read<NodeAnswer>("/api/v1/nodes", { path, depth: 1 });
    return node.children?.["jcr:content"] ?? null;
  } catch (error) {
    // A page with more than 1,000 children is refused with this depth.
    if (!(error instanceof ServerError) || (error.status !== 422 && error.status !== 404)) throw error;
    return error.status === 404 ? null : read<NodeAnswer>("/api/v1/nodes", { path: `${path}/jcr:content` });
  }
}

/** Returns the templates that are allowed at a place, by their ranking. */
export function allowedAt(templates: Template[], place: TemplatePlace): Template[] {
  const parent = templates.find(({ path }) => path === place.parentTemplate);
  // `allowedChildren` may also list components; without any template in it, it says nothing about pages.
  const children = (parent?.allowedChildren ?? []).filter((pattern) => templates.some(({ path }) => isMatch(pattern, path)));
  return templates
    .filter(
      (template) =>
        fits(place.allowedTemplates, template.path) &&
        fits(template.allowedPaths, `${place.parent}/page`) &&
        (template.allowedParents.length === 0 || (place.parentTemplate !== null && fits(template.allowedParents, place.parentTemplate))) &&
        fits(children, template.path),
    )
    .sort((a, b) => a.ranking - b.ranking || a.title.localeCompare(b.title));
}

function fits(patterns: string[], text: string): boolean {
  return patterns.length === 0 || patterns.some((pattern) => isMatch(pattern, text));
}

/** The patterns are regular expressions for the whole text. An invalid one matches only itself. */
function isMatch(pattern: string, text: string): boolean {
  try {
    return new RegExp(`^(?:${pattern})$`).test(text);
  } catch {
    return pattern === text;
  }
}

/** Returns the operations that create a page with the content of a template. */
export function pageOperations(path: string, title: string, template: Template): Operation[] {
  return [
    { op: "put", path, node: { type: "cq:Page", properties: {} } },
    { op: "copy", from: template.content, to: `${path}/jcr:content` },
    { op: "patch", path: `${path}/jcr:content`, patch: { properties: { "jcr:title": title, "cq:template": template.path } } },
  ];
}

/** A box of the sketch that shows what a page of a template contains. */
export interface SketchBox {
  name: string;
  children: SketchBox[];
}

/** Returns the sketch of a template: its components in order. */
export function sketchOf(node: NodeAnswer): SketchBox[] {
  return Object.values(node.children ?? {}).flatMap((child) => {
    const type = String(child.properties["sling:resourceType"]?.value ?? "");
    const children = sketchOf(child);
    return type === "" ? children : [{ name: lastSegment(type).replace(/[-_]+/g, " "), children }];
  });
}
