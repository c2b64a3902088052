/**
 * The hits of a search, converted from the rows of the API's response.
 */
import { t } from "../../language";
import type { Rows } from "../../server/answers";
import { lastSegment } from "../../server/post";

export type SearchAnswer = Rows;

export interface Hit {
  path: string;
  title: string;
  kind: "page" | "asset" | "node";
  /** A part of the text, with matches in `<strong>`. */
  excerpt: string;
}

/** The search text and filters. */
export interface Question {
  text: string;
  /** Restricts the search to this path; empty for no restriction. */
  path: string;
  /** Restricts the search to nodes of this type; empty for pages and assets, `nt:hierarchyNode` for everything. */
  type: string;
  /** `template`, `tag`, `state` and `days`; absent ones do not restrict. */
  facets?: Record<string, string>;
}

const TITLES = ["jcr:content/jcr:title", "jcr:content/metadata/dc:title", "jcr:title"];
/** The properties whose values are counted. */
export const COUNTED = { template: "jcr:content/cq:template", tag: "jcr:content/cq:tags" } as const;
const ACTION = "a.[jcr:content/cq:lastReplicationAction]";

/** Returns the query of a question, for `POST /api/v1/query`. The first page has the counts of the facets. */
export function queryOf({ text, path, type, facets = {} }: Question, limit: number, cursor?: string, now = new Date()): unknown {
  const parameters: Record<string, string> = { text };
  const conditions = ["CONTAINS(a.*, $text)"];
  if (/^\/[^\u0000-\u001f]+/.test(path)) conditions.push(`ISDESCENDANTNODE(a, '${path.replace(/'/g, "''")}')`);
  if (type === "") conditions.push("(a.[jcr:primaryType] = 'cq:Page' OR a.[jcr:primaryType] = 'dam:Asset')");
  for (const name of ["template", "tag"] as const) {
    const value = facets[name];
    if (!value) continue;
    parameters[name] = value;
    conditions.push(name === "tag" ? `(a.[${COUNTED.tag}] = $tag OR a.[jcr:content/metadata/cq:tags] = $tag)` : `a.[${COUNTED.template}] = $template`);
  }
  if (facets.state === "live") conditions.push(`${ACTION} = 'Activate'`);
  if (facets.state === "draft") conditions.push(`(${ACTION} IS NULL OR ${ACTION} = 'Deactivate')`);
  if (/^\d{1,4}$/.test(facets.days ?? "")) {
    const since = `CAST('${new Date(now.getTime() - Number(facets.days) * 86_400_000).toISOString()}' AS DATE)`;
    conditions.push(`(a.[jcr:content/cq:lastModified] >= ${since} OR a.[jcr:content/jcr:lastModified] >= ${since})`);
  }
  const of = /^[\w:]+$/.test(type) ? type : "nt:hierarchyNode";
  const names = ["jcr:primaryType", ...TITLES].map((name) => `a.[${name}]`);
  const counted = cursor === undefined ? Object.values(COUNTED).map((name) => `[rep:facet(${name})]`) : [];
  const columns = [...names, "[rep:excerpt(.)]", ...counted].join(", ");
  const statement = `SELECT ${columns} FROM [${of}] AS a WHERE ${conditions.join(" AND ")} ORDER BY [jcr:score] DESC`;
  return { statement, parameters, limit, ...(cursor === undefined ? {} : { cursor }) };
}

/** Returns the hits. */
export function hitsOf(answer: SearchAnswer): Hit[] {
  return answer.rows.flatMap(({ path, values }) => {
    if (path === null) return [];
    const text = (name: string) => [values[`a.${name}`] ?? ""].flat().join(", ");
    const title = TITLES.map(text).find((one) => one !== "") ?? lastSegment(path);
    return [{ path, title: title || "/", kind: kindOf(text("jcr:primaryType")), excerpt: text("rep:excerpt()") }];
  });
}

function kindOf(type: string): Hit["kind"] {
  return type === "dam:Asset" ? "asset" : type === "cq:Page" ? "page" : "node";
}

/** Returns the parts of an excerpt. `<strong>` marks a match; other markup is removed. */
export function marked(excerpt: string): { text: string; isHit: boolean }[] {
  return excerpt
    .split(/(<strong>.*?<\/strong>)/s)
    .filter((part) => part !== "")
    .map((part) => {
      const inner = /^<strong>(.*)<\/strong>$/s.exec(part);
      return { text: plain(inner?.[1] ?? part), isHit: inner !== null };
    });
}

function plain(text: string): string {
  const known: Record<string, string> = { amp: "&", lt: "<", gt: ">", quot: '"', "#39": "'", "#x27": "'", "#x2F": "/" };
  return text.replace(/<[^>]*>/g, "").replace(/&(#?\w+);/g, (all, name: string) => known[name] ?? all);
}
