/**
 * The hits of a search, converted from the rows of the API's response.
 */
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
  /** Restricts the search to nodes of this type; empty for `nt:hierarchyNode`. */
  type: string;
}

const TITLES = ["jcr:content/jcr:title", "jcr:content/metadata/dc:title", "jcr:title"];

/** Returns the query of a question, for `POST /api/v1/query`. */
export function queryOf({ text, path, type }: Question, limit: number, cursor?: string): unknown {
  const columns = ["jcr:primaryType", ...TITLES].map((name) => `a.[${name}]`).join(", ");
  const below = /^\/[^\u0000-\u001f]+/.test(path) ? ` AND ISDESCENDANTNODE(a, '${path.replace(/'/g, "''")}')` : "";
  const of = /^[\w:]+$/.test(type) ? type : "nt:hierarchyNode";
  const statement = `SELECT ${columns}, [rep:excerpt(.)] FROM [${of}] AS a WHERE CONTAINS(a.*, $text)${below} ORDER BY [jcr:score] DESC`;
  return { statement, parameters: { text }, limit, ...(cursor === undefined ? {} : { cursor }) };
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
