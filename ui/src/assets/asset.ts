/**
 * Assets: the words and addresses with which the UI shows them, and the names that uploaded files get.
 */
import { LANGUAGE } from "../language";
import { encodePath } from "../route";
import type { AssetFacts, PageItem } from "../server/answers";

/** The folder of all assets. */
export const DAM = "/content/dam";
/** The prefix of the nodes that hold files until they are completely received. */
export const STAGING_PREFIX = ".upload-";
/** The maximum length of a node name, in bytes of UTF-8. */
const LONGEST_NAME = 200;

const FORMATS: Record<string, string> = {
  "image/jpeg": "JPEG",
  "image/svg+xml": "SVG",
  "image/x-icon": "ICO",
  "image/vnd.adobe.photoshop": "Photoshop",
  "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "Word",
  "application/msword": "Word",
  "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "Excel",
  "application/vnd.ms-excel": "Excel",
  "application/vnd.openxmlformats-officedocument.presentationml.presentation": "PowerPoint",
  "application/vnd.ms-powerpoint": "PowerPoint",
  "application/octet-stream": "File",
  "video/quicktime": "QuickTime",
  "video/x-matroska": "Matroska",
  "audio/mpeg": "MP3",
  "text/plain": "Text",
};

/** Returns the name of a format: `JPEG` for `image/jpeg`. */
export function formatName(format: string | null | undefined, name: string): string {
  if (format) return FORMATS[format] ?? (format.split("/")[1] ?? format).replace(/^x-|\+.*$/g, "").toUpperCase();
  const extension = /\.([a-z0-9]{1,5})$/i.exec(name);
  return extension?.[1]?.toUpperCase() ?? "File";
}

/** Returns a number of bytes for display: `2.3 MB`. */
export function byteText(bytes: number | null | undefined): string {
  if (bytes === null || bytes === undefined) return "";
  const units = ["byte", "kilobyte", "megabyte", "gigabyte", "terabyte"];
  let [at, value] = [0, bytes];
  while (value >= 1000 && at < units.length - 1) [at, value] = [at + 1, value / 1000];
  const digits = at === 0 || value >= 100 ? 0 : 1;
  const format = { style: "unit", unit: units[at], unitDisplay: at === 0 ? "long" : "short", maximumFractionDigits: digits } as const;
  return new Intl.NumberFormat(LANGUAGE, format).format(value);
}

/** Returns the size in pixels: `1200 × 800`. */
export function pixelText(facts: Pick<AssetFacts, "width" | "height"> | null | undefined): string {
  return facts?.width && facts.height ? `${facts.width} × ${facts.height}` : "";
}

/** Returns format, pixels and bytes in one line. */
export function factLine(facts: AssetFacts | null | undefined, name: string): string {
  return [formatName(facts?.format, name), pixelText(facts), byteText(facts?.size)].filter(Boolean).join(" · ");
}

/** Returns the address of the thumbnail, or `null`. It differs once the file is replaced. */
export function thumbnailUrl(item: Pick<PageItem, "path" | "asset">): string | null {
  const facts = item.asset;
  if (!facts || facts.state !== "processed") return null;
  const query = facts.hash ? `?h=${facts.hash}` : "";
  if (facts.thumbnail) return encodePath(facts.thumbnail) + query;
  // Assets of packages may lack the rendition; the server then draws one.
  return isPicture(facts.format) ? drawnUrl(item.path, 320) + query : null;
}

/** Returns the address of a picture that the server draws in a width. */
export function drawnUrl(path: string, width: 160 | 320): string {
  return `${encodePath(path)}.width-${width}.webp`;
}

/** Returns the path of the rendition that listings show, by the asset's path. */
export function thumbnailPath(path: string): string {
  return `${path}/jcr:content/renditions/cq5dam.thumbnail.319.319.png`;
}

/** Returns true if a media type is that of a picture. */
export function isPicture(format: string | null | undefined): boolean {
  return format?.startsWith("image/") ?? false;
}

/** Returns the orientation of a picture. */
export function orientationOf(facts: Pick<AssetFacts, "width" | "height">): "landscape" | "portrait" | "square" | null {
  if (!facts.width || !facts.height) return null;
  return facts.width > facts.height ? "landscape" : facts.width < facts.height ? "portrait" : "square";
}

/** Returns true for a node that holds a file until it is completely received. */
export function isStaging(name: string): boolean {
  return name.startsWith(STAGING_PREFIX);
}

/**
 * Returns the node name for the name of a file: characters that a name cannot have become `-`, and a long name is
 * shortened before its extension.
 */
export function nodeNameOf(fileName: string): string {
  const clean = fileName
    .normalize("NFC")
    .replace(/[/:[\]|*"'\\\u0000-\u001f\u007f]+/g, "-")
    .trim()
    .replace(/^\.+/, "")
    .trim();
  if (clean === "") return "file";
  const extension = /\.[^.\s]{1,12}$/.exec(clean)?.[0] ?? "";
  return shorten(clean.slice(0, clean.length - extension.length), LONGEST_NAME - byteLength(extension)) + extension;
}

/** Returns a name that is not taken: `photo-2.jpg` beside `photo.jpg`. */
export function nextName(name: string, isTaken: (name: string) => boolean): string {
  const extension = /\.[^.\s]{1,12}$/.exec(name)?.[0] ?? "";
  const stem = name.slice(0, name.length - extension.length);
  for (let at = 2; ; at += 1) {
    const next = `${stem}-${at}${extension}`;
    if (!isTaken(next)) return next;
  }
}

function byteLength(text: string): number {
  return new TextEncoder().encode(text).length;
}

/** Cuts a text to a number of bytes, never inside a character. */
function shorten(text: string, bytes: number): string {
  const characters = [...new Intl.Segmenter(undefined, { granularity: "grapheme" }).segment(text)].map(({ segment }) => segment);
  let length = 0;
  const end = characters.findIndex((character) => (length += byteLength(character)) > bytes);
  return end < 0 ? text : characters.slice(0, end).join("").trim();
}
