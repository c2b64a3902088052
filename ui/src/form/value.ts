/**
 * A dialog's values, opened for editing.
 *
 * Invariants
 * * A property with many values is edited as many, even where the dialog declares a field for one; saving never
 *   drops values that the form did not show.
 * * Instructions that a dialog hides in field names (`./file@Delete`) are not carried out: they are meant for forms that
 *   send every field, and would delete what this one leaves alone.
 */
import type { Dialog, EntryAnswer, Field, Scalar, Stored } from "../server/answers";
import { toLocalInput } from "../time";

/** What a field holds while it is edited. */
export type FieldValue = string | boolean | string[] | Entry[];

/** Values by property name. */
export type Values = Record<string, FieldValue>;

/** One entry of a list whose entries are nodes with several properties. */
export interface Entry {
  /** The name of the entry's node; a new entry has one too, although its node does not exist yet. */
  name: string;
  values: Values;
}

/** Returns all fields of a dialog in order, each as it is edited (see `editedField`). */
export function editedFields(dialog: Dialog): Field[] {
  return writable(dialog.tabs.flatMap((tab) => tab.fields)).map((field) => editedField(field, dialog.values[field.name]));
}

/** Returns the fields of a list's entries. */
export function entryFields(field: Field): Field[] {
  return writable(field.field?.fields ?? []);
}

/** Whether a field holds a list whose entries are nodes with several properties. */
export function hasEntries(field: Field): boolean {
  return field.kind === "multi" && field.field?.kind === "group";
}

/** Returns the field as it is edited: one that holds or meets a list of values becomes a `multi` field. */
export function editedField(field: Field, stored: Stored | undefined): Field {
  const isList = Array.isArray(stored) || field.typeHint?.endsWith("[]");
  if (!isList || field.kind === "multi") return field;
  const inner = { ...field, typeHint: field.typeHint?.replace(/\[\]$/, "") ?? null };
  return { ...field, kind: "multi", field: inner, typeHint: listHint(field.typeHint) };
}

/** Returns the value a field opens with: the stored one, else the default. */
export function openValue(field: Field, stored: Stored | undefined): FieldValue {
  if (hasEntries(field)) return openEntries(field, stored);
  const list = Array.isArray(stored) ? stored.filter(isScalar) : isAbsent(stored) ? [] : [stored as Scalar];
  if (field.kind === "multi") return list.map((one) => openScalar(field.field ?? null, one));
  const one = list[0] ?? field.value ?? null;
  if (field.kind === "checkbox") return one === true || one === "true" || one === "on";
  return openScalar(field, one);
}

/** Returns the values a dialog opens with. */
export function openValues(dialog: Dialog): Values {
  return Object.fromEntries(editedFields(dialog).map((field) => [field.name, openValue(field, dialog.values[field.name])]));
}

/** Returns a new entry for a list, under a name that none of the known ones has. */
export function newEntry(field: Field, known: string[]): Entry {
  const numbers = known.map((name) => Number(/^item(\d+)$/.exec(name)?.[1] ?? -1));
  const values = Object.fromEntries(entryFields(field).map((inner) => [inner.name, openValue(inner, null)]));
  return { name: `item${Math.max(-1, ...numbers) + 1}`, values };
}

/** Whether two values are the same. */
export function sameValue(a: FieldValue | undefined, b: FieldValue | undefined): boolean {
  if (!Array.isArray(a) || !Array.isArray(b)) return a === b;
  return a.length === b.length && a.every((one, at) => sameItem(one, b[at]));
}

/** Returns the fields whose value differs from the one the dialog opened with. */
export function changedFields(dialog: Dialog, values: Values): Field[] {
  const opened = openValues(dialog);
  return editedFields(dialog).filter((field) => !sameValue(values[field.name], opened[field.name]));
}

/** Returns how a field is called. */
export function fieldLabel(field: Field): string {
  return field.label || field.name;
}

/** Returns the choices of a field as texts; a choice without a text is called by its value. */
export function fieldOptions(field: Field): { value: string; text: string }[] {
  return (field.options ?? []).map((option) => {
    const value = String(option.value ?? "");
    return { value, text: option.text || value };
  });
}

/** Returns the list form of a type hint. */
export function listHint(hint: string | null | undefined): string {
  return !hint ? "String[]" : hint.endsWith("[]") ? hint : `${hint}[]`;
}

/** Whether a property is not there. */
export function isAbsent(stored: unknown): boolean {
  return stored === null || stored === undefined;
}

/** Whether a value holds nothing but blanks. */
export function isEmpty(value: FieldValue): boolean {
  if (Array.isArray(value)) return value.every((one) => typeof one === "string" && one.trim() === "");
  return typeof value === "string" && value.trim() === "";
}

function writable(fields: Field[]): Field[] {
  return fields.filter((field) => !field.name.includes("@"));
}

function openEntries(field: Field, stored: Stored | undefined): Entry[] {
  const entries = Array.isArray(stored) ? stored.filter((one): one is EntryAnswer => !isScalar(one)) : [];
  return entries.map((entry, at) => ({
    name: typeof entry["@name"] === "string" ? entry["@name"] : `item${at}`,
    values: Object.fromEntries(entryFields(field).map((inner) => [inner.name, openValue(inner, entry[inner.name])])),
  }));
}

function openScalar(field: Field | null, value: Scalar | null): string {
  if (value === null) return "";
  return field?.kind === "date" ? toLocalInput(String(value)) : String(value);
}

function isScalar(one: Scalar | EntryAnswer): one is Scalar {
  return typeof one !== "object";
}

function sameItem(a: string | Entry, b: string | Entry | undefined): boolean {
  if (typeof a === "string" || typeof b !== "object") return a === b;
  const names = new Set([...Object.keys(a.values), ...Object.keys(b.values)]);
  return a.name === b.name && [...names].every((name) => sameValue(a.values[name], b.values[name]));
}
