/**
 * The values of a dialog, prepared for editing.
 *
 * Invariants
 * * A property with several values is edited as a list, even if the dialog declares a field for one value; saving never
 *   drops values that the form did not show.
 * * Instructions in field names (`./file@Delete`) are ignored: they are meant for forms that send every field, and
 *   would delete properties that this form does not change.
 */
import type { Dialog, EntryAnswer, Field, Scalar, Stored } from "../server/answers";
import { toLocalInput } from "../time";

/** The value of a field that is being edited. */
export type FieldValue = string | boolean | string[] | Entry[];

/** Values by property name. */
export type Values = Record<string, FieldValue>;

/** One entry of a list whose entries are nodes with several properties. */
export interface Entry {
  /** The name of the entry's node; a new entry has one too, although its node does not exist yet. */
  name: string;
  values: Values;
}

/** Returns all fields of a dialog in order, prepared for editing (see `editedField`). */
export function editedFields(dialog: Dialog): Field[] {
  return writable(dialog.tabs.flatMap((tab) => tab.fields)).map((field) => editedField(field, dialog.values[field.name]));
}

/** Returns the fields of a list's entries. */
export function entryFields(field: Field): Field[] {
  return writable(field.field?.fields ?? []);
}

/** Returns true if a field is a list whose entries are nodes with several properties. */
export function hasEntries(field: Field): boolean {
  return field.kind === "multi" && field.field?.kind === "group";
}

/** Returns the field prepared for editing: one with a list as its type or stored value becomes a `multi` field. */
export function editedField(field: Field, stored: Stored | undefined): Field {
  const isList = Array.isArray(stored) || field.typeHint?.endsWith("[]");
  if (!isList || field.kind === "multi") return field;
  const inner = { ...field, typeHint: field.typeHint?.replace(/\[\]$/, "") ?? null };
  return { ...field, kind: "multi", field: inner, typeHint: listHint(field.typeHint) };
}

/** Returns the initial value of a field: the stored one, else the default. */
export function openValue(field: Field, stored: Stored | undefined): FieldValue {
  if (hasEntries(field)) return openEntries(field, stored);
  const list = Array.isArray(stored) ? stored.filter(isScalar) : isAbsent(stored) ? [] : [stored as Scalar];
  if (field.kind === "multi") return list.map((one) => openScalar(field.field ?? null, one));
  const one = list[0] ?? field.value ?? null;
  if (field.kind === "checkbox") return isChecked(field, one);
  return openScalar(field, one);
}

/** Returns true if a box is checked: its property has the value that it stores when checked, or is true. */
function isChecked(field: Field, stored: Scalar | null): boolean {
  const text = String(stored ?? "");
  return field.checkedValue ? text === field.checkedValue : text === "true" || text === "on";
}

/** Returns the initial values of a dialog. */
export function openValues(dialog: Dialog): Values {
  return Object.fromEntries(editedFields(dialog).map((field) => [field.name, openValue(field, dialog.values[field.name])]));
}

/** Returns a new entry for a list, with a name that is not in `known`. */
export function newEntry(field: Field, known: string[]): Entry {
  const numbers = known.map((name) => Number(/^item(\d+)$/.exec(name)?.[1] ?? -1));
  const values = Object.fromEntries(entryFields(field).map((inner) => [inner.name, openValue(inner, null)]));
  return { name: `item${Math.max(-1, ...numbers) + 1}`, values };
}

/** Returns true if two values are equal. */
export function sameValue(a: FieldValue | undefined, b: FieldValue | undefined): boolean {
  if (!Array.isArray(a) || !Array.isArray(b)) return a === b;
  return a.length === b.length && a.every((one, at) => sameItem(one, b[at]));
}

/** Returns the fields whose value differs from the initial one. */
export function changedFields(dialog: Dialog, values: Values): Field[] {
  const opened = openValues(dialog);
  return editedFields(dialog).filter((field) => !sameValue(values[field.name], opened[field.name]));
}

/** Returns the label of a field. */
export function fieldLabel(field: Field): string {
  return field.label || field.name;
}

/** Returns the options of a field as texts; an option without a text is shown as its value. */
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

/** Returns true if a property is absent. */
export function isAbsent(stored: unknown): boolean {
  return stored === null || stored === undefined;
}

/** Returns true if a value is empty or consists of blanks only. */
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
  if (field?.kind !== "date" || field.dateType === "time") return String(value);
  return field.dateType === "date" ? toLocalInput(String(value)).slice(0, 10) : toLocalInput(String(value));
}

function isScalar(one: Scalar | EntryAnswer): one is Scalar {
  return typeof one !== "object";
}

function sameItem(a: string | Entry, b: string | Entry | undefined): boolean {
  if (typeof a === "string" || typeof b !== "object") return a === b;
  const names = new Set([...Object.keys(a.values), ...Object.keys(b.values)]);
  return a.name === b.name && [...names].every((name) => sameValue(a.values[name], b.values[name]));
}
