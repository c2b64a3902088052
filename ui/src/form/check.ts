/**
 * Validates the values of a form before they are sent.
 *
 * Problems are keyed by the field's place in the form: its name, or `<list>/<entry>/<field>` for a field of a list
 * entry.
 */
import { t } from "../language";
import type { Dialog, Field } from "../server/answers";
import { toLocalInput } from "../time";
import { isShown, presentField } from "./condition";
import {
  editedFields,
  entryFields,
  fieldLabel,
  hasEntries,
  isEmpty,
  openValues,
  sameValue,
  type Entry,
  type FieldValue,
  type Values,
} from "./value";

/**
 * Returns the problems by place. An unchanged value is not written, so only its presence is checked.
 */
export function checkValues(dialog: Dialog, values: Values): Map<string, string> {
  const opened = openValues(dialog);
  const shown = editedFields(dialog).filter((field) => isShown(field, values));
  return new Map(shown.flatMap((field) => checkField(presentField(field, values), values[field.name] ?? "", opened[field.name])));
}

/** Returns the problems of a field and of the fields of its entries, by place. */
export function checkField(field: Field, value: FieldValue, opened: FieldValue | undefined, place = field.name): [string, string][] {
  const isTouched = !sameValue(value, opened);
  const problem = isTouched ? checkValue(field, value) : checkPresence(field, value);
  const own: [string, string][] = problem === null ? [] : [[place, problem]];
  if (!hasEntries(field) || !Array.isArray(value)) return own;
  const before = (Array.isArray(opened) ? opened : []) as Entry[];
  return [...own, ...(value as Entry[]).flatMap((entry) => checkEntry(field, entry, before, place))];
}

/** Returns the problem of a field's value, or `null`. */
export function checkValue(field: Field, value: FieldValue): string | null {
  const absence = checkPresence(field, value);
  if (absence !== null || field.kind === "hidden") return absence;
  const label = fieldLabel(field);
  if (Array.isArray(value)) {
    const inner = field.field;
    const texts = inner && !hasEntries(field) ? value.filter((one): one is string => typeof one === "string" && one !== "") : [];
    const problems = texts.map((one) => checkValue({ ...(inner as Field), label, required: false }, one));
    return problems.find((problem) => problem !== null) ?? null;
  }
  if (field.kind === "number" && value !== "") return checkNumber(field, label, String(value));
  if (field.kind === "date" && value !== "") return checkDate(field, label, String(value));
  // Ids of elements: `html-unique-id-validator` refuses those with blanks, which no address can name.
  if (field.validation?.includes("html-unique-id") && /\s/.test(String(value))) return t("{label} must not contain blanks.", { label });
  return null;
}

/** Returns true if a place is that of the field or inside one of its entries. */
export function isWithin(place: string, name: string): boolean {
  return place === name || place.startsWith(`${name}/`);
}

function checkEntry(field: Field, entry: Entry, before: Entry[], place: string): [string, string][] {
  const opened = before.find((one) => one.name === entry.name);
  return entryFields(field).flatMap((inner) =>
    checkField(inner, entry.values[inner.name] ?? "", opened?.values[inner.name], `${place}/${entry.name}/${inner.name}`),
  );
}

function checkPresence(field: Field, value: FieldValue): string | null {
  const isMissing = field.required && field.kind !== "hidden" && (isEmpty(value) || value === false);
  return isMissing ? t("{field} is required.", { field: fieldLabel(field) }) : null;
}

function checkNumber(field: Field, label: string, text: string): string | null {
  const number = Number(text);
  if (text.trim() === "" || !Number.isFinite(number)) return t("{label} must be a number.", { label });
  if (isWhole(field) && !Number.isInteger(number)) return t("{label} must be a whole number.", { label });
  const [min, max] = [limit(field.min), limit(field.max)];
  if (min !== null && max !== null && (number < min || number > max)) return t("{label} must be between {min} and {max}.", { label, min, max });
  if (min !== null && number < min) return t("{label} must be at least {min}.", { label, min });
  if (max !== null && number > max) return t("{label} must be at most {max}.", { label, max });
  return null;
}

/** A step that is a whole number, from which AEM's number fields count, allows whole numbers only. */
function isWhole(field: Field): boolean {
  if (field.typeHint === "Long") return true;
  return field.typeHint !== "Double" && !isBlank(field.step) && Number.isInteger(Number(field.step));
}

function checkDate(field: Field, label: string, text: string): string | null {
  if (field.min && text < openDate(field, field.min)) return t("{label} must not be before {min}.", { label, min: field.min });
  if (field.max && text > openDate(field, field.max)) return t("{label} must not be after {max}.", { label, max: field.max });
  return null;
}

/** Returns a limit in the form of the input. `today` is a limit of AEM's date fields. */
function openDate(field: Field, limit: number | string): string {
  const text = limit === "today" ? toLocalInput(new Date().toISOString()) : String(limit);
  return field.dateType === "date" ? text.slice(0, 10) : text;
}

function limit(value: number | string | null | undefined): number | null {
  const number = isBlank(value) ? NaN : Number(value);
  return Number.isFinite(number) ? number : null;
}

function isBlank(value: unknown): boolean {
  return value === null || value === undefined || value === "";
}
