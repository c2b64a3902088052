/**
 * A dialog's values: opened for editing, checked, and turned into the pairs of a Sling POST.
 *
 * Invariants
 * * A property that the user did not touch is not written, except defaults: a form shows them as values, so saving
 *   the form stores them.
 * * A property with many values is edited as many, even where the dialog declares a field for one; saving never
 *   drops values that the form did not show.
 */
import type { Dialog, Field, Scalar } from "../server/answers";
import type { Pair } from "../server/post";
import { fromLocalInput, toLocalInput } from "../time";

/** What a field holds while it is edited. */
export type FieldValue = string | boolean | string[];

/** Values by property name. */
export type Values = Record<string, FieldValue>;

/** Returns all fields of a dialog in order, each as it is edited (see `editedField`). */
export function editedFields(dialog: Dialog): Field[] {
  return dialog.tabs.flatMap((tab) => tab.fields).map((field) => editedField(field, dialog.values[field.name]));
}

/** Returns the field as it is edited: one that meets a list of values in the content becomes a `multi` field. */
export function editedField(field: Field, stored: Scalar | Scalar[] | null | undefined): Field {
  if (!Array.isArray(stored) || field.kind === "multi") return field;
  return { ...field, kind: "multi", field, typeHint: listHint(field.typeHint) };
}

/** Returns the value a field opens with: the stored one, else the default. */
export function openValue(field: Field, stored: Scalar | Scalar[] | null | undefined): FieldValue {
  if (field.kind === "multi") {
    const list = Array.isArray(stored) ? stored : stored === null || stored === undefined ? [] : [stored];
    return list.map((one) => openScalar(field.field ?? null, one));
  }
  const one = (Array.isArray(stored) ? stored[0] : stored) ?? field.value ?? null;
  if (field.kind === "checkbox") return one === true || one === "true" || one === "on";
  return openScalar(field, one);
}

/** Returns the values a dialog opens with. */
export function openValues(dialog: Dialog): Values {
  return Object.fromEntries(editedFields(dialog).map((field) => [field.name, openValue(field, dialog.values[field.name])]));
}

/** Whether two values are the same. */
export function sameValue(a: FieldValue | undefined, b: FieldValue | undefined): boolean {
  if (Array.isArray(a) && Array.isArray(b)) return a.length === b.length && a.every((one, at) => one === b[at]);
  return a === b;
}

/** Returns the fields whose value differs from the one the dialog opened with. */
export function changedFields(dialog: Dialog, values: Values): Field[] {
  const opened = openValues(dialog);
  return editedFields(dialog).filter((field) => !sameValue(values[field.name], opened[field.name]));
}

/** Returns the pairs that store what the form shows; none when nothing was changed. */
export function postPairs(dialog: Dialog, values: Values): Pair[] {
  const changed = new Set(changedFields(dialog, values).map((field) => field.name));
  if (changed.size === 0) return [];
  return editedFields(dialog).flatMap((field) => {
    const value = values[field.name];
    if (value === undefined) return [];
    const isDefault = isAbsent(dialog.values[field.name]) && !isEmpty(value) && value !== false;
    return changed.has(field.name) || isDefault ? fieldPairs(field, value) : [];
  });
}

/** Returns what is wrong, by field name. */
export function checkValues(dialog: Dialog, values: Values): Map<string, string> {
  const problems = new Map<string, string>();
  for (const field of editedFields(dialog)) {
    const problem = checkValue(field, values[field.name] ?? "");
    if (problem) problems.set(field.name, problem);
  }
  return problems;
}

/** Returns what is wrong with a field's value, or `null`. */
export function checkValue(field: Field, value: FieldValue): string | null {
  if (field.kind === "hidden") return null;
  const label = fieldLabel(field);
  if (field.required && (isEmpty(value) || value === false)) return `${label} is required.`;
  if (Array.isArray(value)) {
    const inner = field.field;
    if (!inner) return null;
    for (const one of value) {
      const problem = one === "" ? null : checkValue({ ...inner, label, required: false }, one);
      if (problem) return problem;
    }
    return null;
  }
  return field.kind === "number" && value !== "" ? checkNumber(field, label, String(value)) : null;
}

/** Returns how a field is called. */
export function fieldLabel(field: Field): string {
  return field.label || field.name;
}

function checkNumber(field: Field, label: string, text: string): string | null {
  const number = Number(text);
  if (text.trim() === "" || !Number.isFinite(number)) return `${label} must be a number.`;
  if (field.typeHint === "Long" && !Number.isInteger(number)) return `${label} must be a whole number.`;
  const { min, max } = field;
  if (typeof min === "number" && typeof max === "number" && (number < min || number > max)) {
    return `${label} must be between ${min} and ${max}.`;
  }
  if (typeof min === "number" && number < min) return `${label} must be at least ${min}.`;
  if (typeof max === "number" && number > max) return `${label} must be at most ${max}.`;
  return null;
}

function fieldPairs(field: Field, value: FieldValue): Pair[] {
  const name = `./${field.name}`;
  if (Array.isArray(value)) {
    const filled = value.filter((one) => one !== "");
    if (filled.length === 0) return [[`${name}@Delete`, "true"]];
    const hint: Pair = [`${name}@TypeHint`, listHint(field.typeHint ?? field.field?.typeHint)];
    return [hint, ...filled.map((one): Pair => [name, storedText(field.field ?? field, one)])];
  }
  if (typeof value === "boolean") {
    return [
      [`${name}@TypeHint`, field.typeHint || "Boolean"],
      [name, String(value)],
    ];
  }
  if (value === "") return [[`${name}@Delete`, "true"]];
  const hint = field.typeHint || (field.kind === "date" ? "Date" : null);
  const pair: Pair = [name, storedText(field, value)];
  return hint && hint !== "String" ? [[`${name}@TypeHint`, hint], pair] : [pair];
}

function storedText(field: Field, value: string): string {
  return field.kind === "date" ? fromLocalInput(value) : value;
}

function openScalar(field: Field | null, value: Scalar | null): string {
  if (value === null) return "";
  return field?.kind === "date" ? toLocalInput(String(value)) : String(value);
}

function listHint(hint: string | null | undefined): string {
  return !hint ? "String[]" : hint.endsWith("[]") ? hint : `${hint}[]`;
}

function isAbsent(stored: unknown): boolean {
  return stored === null || stored === undefined;
}

function isEmpty(value: FieldValue): boolean {
  if (Array.isArray(value)) return value.every((one) => one.trim() === "");
  return typeof value === "string" && value.trim() === "";
}
