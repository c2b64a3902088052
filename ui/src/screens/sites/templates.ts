/**
 * The templates of new pages: their content, and which of them the server allows below a path. A page that names a
 * template is completed by the server with the template's content.
 */
import type { NodeAnswer, Rows, Scalar } from "../../server/answers";
import { read, sendTo } from "../../server/client";
import { lastSegment } from "../../server/post";

export interface Template {
  path: string;
  title: string;
  description: string;
  ranking: number;
  /** The node that new pages get a copy of. */
  content: string;
}

const COLUMNS = ["jcr:title", "jcr:description", "ranking", "status", "jcr:content/jcr:title", "jcr:content/jcr:description", "jcr:content/status", "jcr:content/sling:resourceType", "initial/jcr:content/sling:resourceType"];

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
    content: `${path}/${isEditable ? "initial/jcr:content" : "jcr:content"}`,
  };
}

/** Returns the templates that the server allows below a path, by their ranking. */
export async function loadAllowed(templates: Template[], parent: string): Promise<Template[]> {
  const answer = await read<{ templates: { path: string }[] }>("/api/v1/templates", { path: parent });
  return allowedOf(templates, answer.templates.map(({ path }) => path));
}

/** Returns the templates at these paths, by their ranking. */
export function allowedOf(templates: Template[], paths: string[]): Template[] {
  return templates.filter(({ path }) => paths.includes(path)).sort((a, b) => a.ranking - b.ranking || a.title.localeCompare(b.title));
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
