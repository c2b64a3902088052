/**
 * What a move or a deletion touches: who refers to the pages.
 */
import type { References } from "../../server/answers";
import { read } from "../../server/client";

/** One place that uses a page. */
export interface Use {
  /** The page or node that holds the reference. */
  holder: string;
  path: string;
  property: string;
  target: string;
}

/** What a move tells about the references to the old path. */
export interface MovedReferences {
  rewritten: { path: string; property: string }[];
  kept: { path: string; property: string; reason: string }[];
}

/** So many pages are asked about one by one; of more, only these. */
const MOST = 50;

/** Returns who uses some pages or what lies below them, leaving out what is there itself. */
export async function usesOf(paths: string[]): Promise<Use[]> {
  const answers = await Promise.all(paths.slice(0, MOST).map((path) => read<References>("/api/v1/references", { path, deep: "true" })));
  const isWithin = (path: string) => paths.some((one) => path === one || path.startsWith(`${one}/`));
  return answers.flatMap(({ path: target, usedBy }) =>
    usedBy
      .filter(({ path }) => !isWithin(path))
      .map(({ path, property }) => ({ holder: path.replace(/\/jcr:content(\/.*)?$/, ""), path, property, target })),
  );
}
