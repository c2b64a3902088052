/**
 * Searches for assets by words, kind, size, orientation, date, tag and state.
 *
 * The server cannot compare width and height, so the orientation is checked here; `findAssets` reads on until a page is
 * filled.
 */
import type { AssetFacts, PageItem, Rows, Scalar } from "../server/answers";
import { sendTo } from "../server/client";
import { lastSegment } from "../server/post";
import { orientationOf, thumbnailPath } from "./asset";

/** What assets are searched for; empty texts do not restrict. */
export interface AssetQuestion {
  words: string;
  kind: "" | "picture" | "video" | "audio" | "document";
  orientation: "" | "landscape" | "portrait" | "square";
  size: "" | "small" | "medium" | "large" | "huge";
  /** Changed within so many days. */
  days: "" | "1" | "7" | "30" | "365";
  tag: string;
  state: "" | "failed" | "unpublished";
}

export const NO_QUESTION: AssetQuestion = { words: "", kind: "", orientation: "", size: "", days: "", tag: "", state: "" };

/** A part of the found assets. */
export interface FoundAssets {
  items: PageItem[];
  cursor: string | null;
}

const META = "jcr:content/metadata";
const COLUMNS = {
  title: `${META}/dc:title`,
  format: `${META}/dc:format`,
  size: `${META}/dam:size`,
  width: `${META}/tiff:ImageWidth`,
  height: `${META}/tiff:ImageLength`,
  hash: `${META}/dam:sha1`,
  state: "jcr:content/dam:assetState",
  failure: "jcr:content/dam:failureReason",
  modified: "jcr:content/jcr:lastModified",
  modifiedBy: "jcr:content/jcr:lastModifiedBy",
  action: "jcr:content/cq:lastReplicationAction",
  activated: "jcr:content/cq:lastReplicated",
  processedOriginal: "jcr:content/dam:processedOriginal",
  thumbnail: "jcr:content/renditions/cq5dam.thumbnail.319.319.png/jcr:content/jcr:mimeType",
  created: "jcr:created",
};

/** A new asset without a state counts as being processed for so long; older ones came with a package. */
const PROCESSING_MS = 10 * 60_000;

const KINDS: Record<Exclude<AssetQuestion["kind"], "">, string[]> = {
  picture: ["image/%"],
  video: ["video/%"],
  audio: ["audio/%"],
  document: ["application/%", "text/%"],
};
const MEGABYTE = 1_000_000;
const SIZES: Record<Exclude<AssetQuestion["size"], "">, [number, number | null]> = {
  small: [0, 0.1 * MEGABYTE],
  medium: [0.1 * MEGABYTE, MEGABYTE],
  large: [MEGABYTE, 10 * MEGABYTE],
  huge: [10 * MEGABYTE, null],
};

/** Returns true if the question restricts anything. */
export function isAsking(question: AssetQuestion): boolean {
  return Object.values(question).some((value) => value.trim() !== "");
}

/** Returns the query of a question, for `POST /api/v1/query`. */
export function assetQuery(question: AssetQuestion, below: string, now: Date): { statement: string; parameters: Record<string, Scalar> } {
  const parameters: Record<string, Scalar> = {};
  const conditions = [`ISDESCENDANTNODE(a, '${below.replace(/'/g, "''")}')`];
  const words = question.words.trim();
  if (words !== "") {
    // A word may be the beginning of one, as in a name.
    parameters.text = /["*]/.test(words) ? words : words.split(/\s+/).map((word) => (/^-|^OR$/.test(word) ? word : `${word}*`)).join(" ");
    conditions.push("CONTAINS(a.*, $text)");
  }
  if (question.kind !== "") {
    conditions.push(`(${KINDS[question.kind].map((pattern) => `a.[${COLUMNS.format}] LIKE '${pattern}'`).join(" OR ")})`);
  }
  if (question.orientation !== "") conditions.push(`a.[${COLUMNS.width}] IS NOT NULL`);
  if (question.size !== "") {
    const [from, to] = SIZES[question.size];
    conditions.push(`a.[${COLUMNS.size}] >= ${from}`, ...(to === null ? [] : [`a.[${COLUMNS.size}] < ${to}`]));
  }
  if (question.days !== "") {
    const since = new Date(now.getTime() - Number(question.days) * 86_400_000).toISOString();
    conditions.push(`a.[${COLUMNS.modified}] >= CAST('${since}' AS DATE)`);
  }
  if (question.tag.trim() !== "") {
    parameters.tag = question.tag.trim();
    conditions.push(`a.[${META}/cq:tags] = $tag`);
  }
  if (question.state === "failed") conditions.push(`a.[${COLUMNS.state}] = 'failed'`);
  if (question.state === "unpublished") conditions.push(`(a.[${COLUMNS.action}] IS NULL OR a.[${COLUMNS.action}] = 'Deactivate')`);
  const columns = Object.values(COLUMNS).map((name) => `a.[${name}]`);
  const order = words === "" ? "" : " ORDER BY [jcr:score] DESC";
  return { statement: `SELECT ${columns.join(", ")} FROM [dam:Asset] AS a WHERE ${conditions.join(" AND ")}${order}`, parameters };
}

interface StoredState {
  stored: string | null;
  processedOriginal: string | null;
  created: string | null;
  hasThumbnail: boolean;
}

/** Returns the state of an asset. The server stores one when it has processed the file; replacing the file removes it. */
function stateOf({ stored, processedOriginal, created, hasThumbnail }: StoredState, now: Date): AssetFacts["state"] {
  if (stored !== null) return stored === "failed" ? "failed" : "processed";
  if (processedOriginal !== null) return "processing";
  const isNew = created !== null && now.getTime() - new Date(created).getTime() < PROCESSING_MS;
  return isNew && !hasThumbnail ? "processing" : "processed";
}

/** Returns the assets in the rows of an answer. */
export function assetRows(rows: Rows["rows"], now = new Date()): PageItem[] {
  return rows.flatMap(({ path, values }) => {
    if (path === null) return [];
    const value = (name: keyof typeof COLUMNS) => [values[`a.${COLUMNS[name]}`] ?? null].flat()[0] ?? null;
    const text = (name: keyof typeof COLUMNS) => (value(name) === null ? null : String(value(name)));
    const number = (name: keyof typeof COLUMNS) => (value(name) === null ? null : Number(value(name)));
    const state = stateOf({ stored: text("state"), processedOriginal: text("processedOriginal"), created: text("created"), hasThumbnail: text("thumbnail") !== null }, now);
    const asset: AssetFacts = {
      format: text("format"),
      size: number("size"),
      width: number("width"),
      height: number("height"),
      state,
      failure: text("failure"),
      thumbnail: text("thumbnail") !== null && state !== "failed" ? thumbnailPath(path) : null,
      hash: text("hash")?.slice(0, 16) ?? null,
    };
    const [activated, modified] = [text("activated"), text("modified")];
    const status = text("action") === "Deactivate" ? "deactivated" : activated === null ? "draft" : (modified ?? "") > activated ? "modified" : "live";
    return [
      {
        path,
        name: lastSegment(path),
        title: text("title") ?? lastSegment(path),
        type: "asset",
        resourceType: null,
        template: null,
        modified,
        modifiedBy: text("modifiedBy"),
        hasChildren: false,
        status,
        activated,
        asset,
      },
    ];
  });
}

/** The maximum length of a statement, in bytes of UTF-8; the server takes 64 KiB. */
const LONGEST_STATEMENT = 60_000;

/** Returns the items of a listing, assets with their facts. The cost depends on their number, not on that of the folder. */
export async function withFacts(items: PageItem[]): Promise<PageItem[]> {
  const paths = items.filter((item) => item.type === "asset" && item.asset === undefined).map(({ path }) => path);
  if (paths.length === 0) return items;
  const answers = await Promise.all(factStatements(paths).map((statement) => sendTo<Rows>("POST", "/api/v1/query", { statement, limit: paths.length })));
  const found = new Map(answers.flatMap(({ rows }) => assetRows(rows)).map((item) => [item.path, item]));
  return items.map((item) => {
    const own = found.get(item.path);
    return own ? { ...item, title: own.title, asset: own.asset ?? null } : item;
  });
}

/** Returns the statements that read some assets. Each path is looked up by itself, which a condition with `OR` would not do. */
export function factStatements(paths: string[]): string[] {
  const columns = Object.values(COLUMNS).map((name) => `a.[${name}]`).join(", ");
  const statements: string[] = [];
  let length = Infinity;
  for (const path of paths) {
    const one = `SELECT ${columns} FROM [dam:Asset] AS a WHERE ISSAMENODE(a, '${path.replace(/'/g, "''")}')`;
    const bytes = new TextEncoder().encode(one).length + 11;
    length += bytes;
    if (length > LONGEST_STATEMENT) {
      statements.push(one);
      length = bytes;
    } else statements.push(`${statements.pop()} UNION ALL ${one}`);
  }
  return statements;
}

/** Finds assets below a path, a page at a time. */
export async function findAssets(question: AssetQuestion, below: string, limit: number, cursor: string | null = null): Promise<FoundAssets> {
  const query = assetQuery(question, below, new Date());
  const items: PageItem[] = [];
  let next = cursor;
  do {
    const answer = await sendTo<Rows>("POST", "/api/v1/query", { ...query, limit, ...(next === null ? {} : { cursor: next }) });
    items.push(...assetRows(answer.rows).filter((item) => question.orientation === "" || orientationOf(item.asset ?? { width: null, height: null }) === question.orientation));
    next = answer.cursor;
  } while (next !== null && items.length < limit);
  return { items, cursor: next };
}
