/**
 * A dialog's values: opened for editing, checked, and turned into the pairs of a Sling POST.
 *
 * Invariants
 * * A property that the user did not touch is not written, except defaults: a form shows them as values, so saving
 *   the form stores them.
 * * A property with many values is edited as many, even where the dialog declares a field for one; saving never
 *   drops values that the form did not show.
 * * Instructions that a dialog hides in field names (`./file@Delete`) are not carried out: they are meant for forms that
 *   send every field, and would delete what this one leaves alone.
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
  const fields = dialog.tabs.flatMap((tab) => tab.fields).filter((field) => !field.name.includes("@"));
  return fields.map((field) => editedField(field, dialog.values[field.name]));
}

/** Returns the field as it is edited: one that holds or meets a list of values becomes a `multi` field. */
export function editedField(field: Field, stored: Scalar | Scalar[] | null | undefined): Field {
  const isList = Array.isArray(stored) || field.typeHint?.endsWith("[]");
  if (!isList || field.kind === "multi") return field;
  const inner = { ...field, typeHint: field.typeHint?.replace(/\[\]$/, "") ?? null };
  return { ...field, kind: "multi", field: inner, typeHint: listHint(field.typeHint) };
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

/**
 * Returns what is wrong, by field name. A value that was stored as it is and not touched is not written, so of it only
 * its presence is asked.
 */
export function checkValues(dialog: Dialog, values: Values): Map<string, string> {
  const changed = new Set(changedFields(dialog, values).map((field) => field.name));
  const problems = new Map<string, string>();
  for (const field of editedFields(dialog)) {
    const value = values[field.name] ?? "";
    const problem = changed.has(field.name) ? checkValue(field, value) : checkPresence(field, value);
    if (problem) problems.set(field.name, problem);
  }
  return problems;
}

/** Returns what is wrong with a field's value, or `null`. */
export function checkValue(field: Field, value: FieldValue): string | null {
  const absence = checkPresence(field, value);
  if (absence !== null || field.kind === "hidden") return absence;
  const label = fieldLabel(field);
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

/** Returns the choices of a field as texts; a choice without a text is called by its value. */
export function fieldOptions(field: Field): { value: string; text: string }[] {
  return (field.options ?? []).map((option) => {
    const value = String(option.value ?? "");
    return { value, text: option.text || value };
  });
}

function checkPresence(field: Field, value: FieldValue): string | null {
  const isMissing = field.required && field.kind !== "hidden" && (isEmpty(value) || value === false);
  return isMissing ? `${fieldLabel(field)} is required.` : null;
}

/** Returns how a field is called. */
export function fieldLabel(field: Field): string {
  return field.label || field.name;
}

function checkNumber(field: Field, label: string, text: string): string | null {
  const number = Number(text);
  if (text.trim() === "" || !Number.isFinite(number)) return `${label} must be a number.`;
  if (field.typeHint === "Long" && !Number.isInteger(number)) return `${label} must be a whole number.`;
  const [min, max] = [limit(field.min), limit(field.max)];
  if (min !== null && max !== null && (number < min || number > max)) return `${label} must be between ${min} and ${max}.`;
  if (min !== null && number < min) return `${label} must be at least ${min}.`;
  if (max !== null && number > max) return `${label} must be at most ${max}.`;
  return null;
}

function limit(value: number | string | null | undefined): number | null {
  const number = value === null || value === undefined || value === "" ? NaN : Number(value);
  return Number.isFinite(number) ? number : null;
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
