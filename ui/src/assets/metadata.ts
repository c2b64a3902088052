/**
 * The metadata of assets that people write, under the names of Dublin Core and XMP.
 */
import { message } from "../language";
import type { NodeAnswer, NodePatch, PropertyAnswer, SentProperty } from "../server/answers";

export interface MetadataField {
  name: string;
  label: string;
  hint?: string;
  kind: "line" | "text" | "tags";
}

/** The fields of the form, in order. */
export const METADATA: MetadataField[] = [
  { name: "dc:title", label: message("Title"), kind: "line" },
  { name: "dc:description", label: message("Description"), kind: "text", hint: message("What the file shows. Pages use it as alternative text unless they have their own.") },
  { name: "cq:tags", label: message("Tags"), kind: "tags" },
  { name: "dc:creator", label: message("Creator"), kind: "line", hint: message("Separate several people with semicolons.") },
  { name: "photoshop:Credit", label: message("Credit"), kind: "line" },
  { name: "dc:rights", label: message("Copyright"), kind: "line" },
  { name: "dc:source", label: message("Source"), kind: "line" },
  { name: "dc:language", label: message("Language"), kind: "line", hint: message("A code such as en or de-CH.") },
];

/** The properties that files often hold as lists. */
const LISTS = new Set(["dc:creator", "dc:language", "cq:tags"]);

/** Returns the text of a stored property for the form. */
export function metadataText(property: PropertyAnswer | undefined): string {
  if (!property) return "";
  return (property.values ?? [property.value ?? ""]).map(String).join("; ");
}

/** Returns the values of a stored property. */
export function metadataList(property: PropertyAnswer | undefined): string[] {
  if (!property) return [];
  return (property.values ?? [property.value ?? ""]).map(String).filter((value) => value !== "");
}

/** Returns the property for a text of the form: a list if one is stored or usual, `null` for an empty text. */
export function metadataProperty(name: string, text: string, stored: PropertyAnswer | undefined): SentProperty | null {
  if (text.trim() === "") return null;
  const isList = stored?.values !== undefined || (stored === undefined && LISTS.has(name));
  if (!isList) return { type: "String", value: text.trim() };
  const values = text.split(";").map((one) => one.trim()).filter(Boolean);
  return { type: "String", values };
}

/** Returns the patch of an asset's content that changes metadata, with the time and the user of the change. */
export function metadataPatch(changed: Record<string, SentProperty | null>, user: string, now: Date): NodePatch {
  return {
    properties: { "jcr:lastModified": { type: "Date", value: now.toISOString() }, "jcr:lastModifiedBy": { type: "String", value: user } },
    children: { metadata: { properties: changed } },
  };
}

/** Returns a node of an asset by its path below the asset. */
export function nodeIn(asset: NodeAnswer, relative: string): NodeAnswer | undefined {
  return relative.split("/").reduce<NodeAnswer | undefined>((node, name) => node?.children?.[name], asset);
}
