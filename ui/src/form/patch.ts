/**
 * Converts a form's values to the patch that stores them.
 *
 * Invariants
 * * A property that the user did not change is not written, except defaults: a form shows them as values, so saving
 *   the form stores them.
 * * A property keeps its type, unless the field declares another one.
 * * The entries of a list keep their nodes; properties and children that are not fields of the dialog are kept.
 */
import type { Dialog, Field, NodePatch, Scalar, SentProperty } from "../server/answers";
import { childPath, type Place } from "../server/post";
import { fromLocalInput } from "../time";
import { isEnabled } from "./condition";
import {
  editedFields,
  entryFields,
  hasEntries,
  isAbsent,
  isEmpty,
  openValues,
  sameValue,
  type Entry,
  type FieldValue,
  type Values,
} from "./value";

/** A move of a node to another position among its siblings, after the patch. */
export interface OrderStep {
  path: string;
  place: Place;
}

/** Returns the type of a stored property by its path below the resource. */
type TypeOf = (path: string) => string | undefined;

/** Returns the patch that stores the values of the form; an empty one if nothing was changed. */
export function formPatch(dialog: Dialog, values: Values): NodePatch {
  const opened = openValues(dialog);
  const fields = editedFields(dialog);
  const isChanged = (field: Field) => !sameValue(values[field.name], opened[field.name]);
  const patch: NodePatch = {};
  if (!fields.some(isChanged)) return patch;
  const typeOf: TypeOf = (path) => dialog.types?.[path];
  for (const field of fields) {
    const value = values[field.name];
    if (value === undefined) continue;
    const isDefault = isAbsent(dialog.values[field.name]) && isWorthStoring(field, value) && isEnabled(field, values);
    if (isChanged(field) || isDefault) writeField(patch, field, value, opened[field.name], { path: "", typeOf });
    if (isChanged(field)) replaceFile(patch, field, dialog);
    if (field.isRemoved && !isAbsent(dialog.values[field.name])) (patch.properties ??= {})[field.name] = null;
  }
  return patch;
}

/** A chosen asset takes the place of the file that was uploaded into the component. */
function replaceFile(patch: NodePatch, field: Field, dialog: Dialog): void {
  if (field.fileName && !isAbsent(dialog.values[field.fileName])) writeNull(patch, field.fileName, "properties");
  if (field.file && field.hasFile) writeNull(patch, field.file, "children");
}

function writeNull(patch: NodePatch, path: string, what: "properties" | "children"): void {
  const names = path.split("/");
  const last = names.pop() ?? path;
  let holder = patch;
  for (const name of names) holder = childOf(holder, name);
  (holder[what] ??= {})[last] = null;
}

/** Returns true if a patch changes nothing. */
export function isEmptyPatch(patch: NodePatch): boolean {
  return !patch.properties && !patch.children && !patch.type;
}

/** Returns the steps that put the entries of lists in the order of the form. They are sent after the patch. */
export function orderSteps(dialog: Dialog, values: Values): OrderStep[] {
  const opened = openValues(dialog);
  return editedFields(dialog).flatMap((field) => fieldSteps(dialog.path, field, values[field.name], opened[field.name]));
}

/** The path of a field's node below the resource, and the types of the stored properties. */
interface Where {
  path: string;
  typeOf: TypeOf;
}

/** Field names may contain paths: `./image/alt` is a property of the child `image`. */
function writeField(patch: NodePatch, field: Field, value: FieldValue, opened: FieldValue | undefined, where: Where): void {
  const names = field.name.split("/").filter((name) => name !== "" && name !== ".");
  const last = names.pop() ?? field.name;
  let holder = patch;
  for (const name of names) holder = childOf(holder, name);
  const at: Where = { ...where, path: [where.path, ...names].filter(Boolean).join("/") };
  if (hasEntries(field)) return writeEntries(holder, { ...field, name: last }, entriesOf(value), entriesOf(opened), at);
  holder.properties ??= {};
  const path = at.path ? `${at.path}/${last}` : last;
  holder.properties[last] = sentProperty(field, value, at.typeOf(path));
}

function sentProperty(field: Field, value: FieldValue, storedType: string | undefined): SentProperty | null {
  const hint = field.typeHint ?? field.field?.typeHint ?? null;
  // A field of type String keeps the stored type: paths, names and identifiers are edited as text, too.
  const asked = hint?.replace(/\[\]$/, "") || null;
  const type = asked && asked !== "String" ? asked : (storedType ?? asked);
  if (Array.isArray(value)) {
    const filled = value.filter((one): one is string => typeof one === "string" && one !== "");
    if (filled.length === 0) return null;
    const inner = field.field ?? field;
    const listType = type ?? (inner.kind === "date" ? "Date" : "String");
    return { type: listType, values: filled.map((one) => scalar(storedText(inner, one), listType)) };
  }
  if (typeof value === "boolean") {
    const boxType = type ?? "Boolean";
    if (field.checkedValue) {
      const text = value ? field.checkedValue : (field.uncheckedValue ?? null);
      return text === null || boxType === "String" ? text : { type: boxType, value: scalar(text, boxType) };
    }
    return { type: boxType, value: scalar(String(value), boxType) };
  }
  if (value === "") return null;
  const oneType = type ?? (field.kind === "date" ? "Date" : "String");
  const text = storedText(field, value as string);
  return oneType === "String" ? text : { type: oneType, value: scalar(text, oneType) };
}

function scalar(text: string, type: string): Scalar {
  if (type === "Long" || type === "Double") {
    const number = Number(text);
    return text.trim() !== "" && Number.isFinite(number) ? number : text;
  }
  return type === "Boolean" ? text === "true" : text;
}

function writeEntries(holder: NodePatch, field: Field, entries: Entry[], opened: Entry[], where: Where): void {
  if (entries.length === 0) {
    if (opened.length > 0) (holder.children ??= {})[field.name] = null;
    return;
  }
  const list = (name: string): NodePatch => childOf(childOf(holder, field.name), name);
  for (const one of opened) {
    if (!find(entries, one.name)) (childOf(holder, field.name).children ??= {})[one.name] = null;
  }
  for (const entry of entries) {
    const before = find(opened, entry.name);
    const at: Where = { ...where, path: [where.path, field.name, entry.name].filter(Boolean).join("/") };
    if (!before) list(entry.name).type = "nt:unstructured";
    for (const inner of entryFields(field)) {
      const value = entry.values[inner.name];
      if (value === undefined) continue;
      const isWritten = before ? !sameValue(value, before.values[inner.name]) : isWorthStoring(inner, value);
      if (isWritten) writeField(list(entry.name), inner, value, before?.values[inner.name], at);
    }
  }
}

function childOf(patch: NodePatch, name: string): NodePatch {
  const children = (patch.children ??= {});
  return (children[name] ??= {});
}

function fieldSteps(parent: string, field: Field, value: FieldValue | undefined, opened: FieldValue | undefined): OrderStep[] {
  if (!hasEntries(field)) return [];
  const list = childPath(parent, field.name);
  const [entries, before] = [entriesOf(value), entriesOf(opened)];
  const inner = entries.flatMap((entry) => {
    const was = find(before, entry.name);
    const path = childPath(list, entry.name);
    return entryFields(field).flatMap((one) => fieldSteps(path, one, entry.values[one.name], was?.values[one.name]));
  });
  const wanted = entries.map((entry) => entry.name);
  return [...listSteps(list, wanted, afterPatch(wanted, before)), ...inner];
}

/** Returns the order on the server after the patch: the remaining entries, then the new ones. */
function afterPatch(wanted: string[], before: Entry[]): string[] {
  const kept = before.map((entry) => entry.name).filter((name) => wanted.includes(name));
  return [...kept, ...wanted.filter((name) => !kept.includes(name))];
}

function listSteps(list: string, wanted: string[], present: string[]): OrderStep[] {
  const current = [...present];
  return wanted.flatMap((name, at) => {
    if (current[at] === name) return [];
    current.splice(current.indexOf(name), 1);
    current.splice(at, 0, name);
    const before = wanted[at - 1];
    return [{ path: childPath(list, name), place: before === undefined ? "first" : { after: before } } satisfies OrderStep];
  });
}

function entriesOf(value: FieldValue | undefined): Entry[] {
  return Array.isArray(value) ? value.filter((one): one is Entry => typeof one === "object") : [];
}

function find(entries: Entry[], name: string): Entry | undefined {
  return entries.find((entry) => entry.name === name);
}

/** Returns true if a value without a stored property must be written: it is not empty, or a box stores that too. */
function isWorthStoring(field: Field, value: FieldValue): boolean {
  return !isEmpty(value) && (value !== false || !isAbsent(field.uncheckedValue));
}

function storedText(field: Field, value: string): string {
  if (field.kind !== "date" || field.dateType === "time") return value;
  const isDay = field.dateType === "date";
  if (isDay && field.valueFormat === "YYYY-MM-DD") return value;
  return fromLocalInput(isDay ? `${value}T00:00` : value);
}
