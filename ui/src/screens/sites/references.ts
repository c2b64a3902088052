/**
 * The references that a move or a deletion affects.
 */
import type { References } from "../../server/answers";
import { read } from "../../server/client";

/** One reference to a page. */
export interface Use {
  /** The page or node that holds the reference. */
  holder: string;
  path: string;
  property: string;
  target: string;
}

/** The references to the old path in the response of a move. */
export interface MovedReferences {
  rewritten: { path: string; property: string }[];
  kept: { path: string; property: string; reason: string }[];
}

/** The maximum number of pages whose references are loaded, one request each. */
const MOST = 50;

/** Returns the references to some pages and the nodes below them, except references from these pages and nodes. */
export async function usesOf(paths: string[]): Promise<Use[]> {
  const answers = await Promise.all(paths.slice(0, MOST).map((path) => read<References>("/api/v1/references", { path, deep: "true" })));
  const isWithin = (path: string) => paths.some((one) => path === one || path.startsWith(`${one}/`));
  return answers.flatMap(({ path: target, usedBy }) =>
    usedBy
      .filter(({ path }) => !isWithin(path))
      .map(({ path, property }) => ({ holder: path.replace(/\/jcr:content(\/.*)?$/, ""), path, property, target })),
  );
}
