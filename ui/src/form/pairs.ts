/**
 * A form's values, turned into what is posted.
 *
 * Invariants
 * * A property that the user did not touch is not written, except defaults: a form shows them as values, so saving
 *   the form stores them.
 * * The nodes of a list's entries stay the nodes they are; what they hold beside the dialog's fields is kept.
 */
import type { Dialog, Field } from "../server/answers";
import { childPath, type Pair, type Place } from "../server/post";
import { fromLocalInput } from "../time";
import {
  editedFields,
  entryFields,
  hasEntries,
  isAbsent,
  isEmpty,
  listHint,
  openValues,
  sameValue,
  type Entry,
  type FieldValue,
  type Values,
} from "./value";

/** A node that has to go to another place among its siblings, after the pairs are posted. */
export interface OrderStep {
  path: string;
  place: Place;
}

/** Returns the pairs that store what the form shows; none when nothing was changed. */
export function postPairs(dialog: Dialog, values: Values): Pair[] {
  const opened = openValues(dialog);
  const fields = editedFields(dialog);
  const isChanged = (field: Field) => !sameValue(values[field.name], opened[field.name]);
  if (!fields.some(isChanged)) return [];
  return fields.flatMap((field) => {
    const value = values[field.name];
    if (value === undefined) return [];
    const isDefault = isAbsent(dialog.values[field.name]) && isWorthStoring(value);
    return isChanged(field) || isDefault ? fieldPairs("./", field, value, opened[field.name]) : [];
  });
}

/** Returns the steps that bring the entries of lists into the order of the form. They follow the post of the pairs. */
export function orderSteps(dialog: Dialog, values: Values): OrderStep[] {
  const opened = openValues(dialog);
  return editedFields(dialog).flatMap((field) => fieldSteps(dialog.path, field, values[field.name], opened[field.name]));
}

function fieldPairs(base: string, field: Field, value: FieldValue, opened: FieldValue | undefined): Pair[] {
  const name = base + field.name;
  if (hasEntries(field)) return entryPairs(name, field, entriesOf(value), entriesOf(opened));
  if (Array.isArray(value)) {
    const filled = value.filter((one): one is string => typeof one === "string" && one !== "");
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

function entryPairs(list: string, field: Field, entries: Entry[], opened: Entry[]): Pair[] {
  if (entries.length === 0) return opened.length === 0 ? [] : [[`${list}@Delete`, "true"]];
  const removed = opened.filter((one) => !find(entries, one.name));
  const deletions = removed.map((one): Pair => [`${list}/${one.name}@Delete`, "true"]);
  return [...deletions, ...entries.flatMap((entry) => oneEntryPairs(`${list}/${entry.name}`, field, entry, find(opened, entry.name)))];
}

function oneEntryPairs(path: string, field: Field, entry: Entry, opened: Entry | undefined): Pair[] {
  const creation: Pair[] = opened ? [] : [[`${path}/jcr:primaryType`, "nt:unstructured"]];
  const changes = entryFields(field).flatMap((inner) => {
    const value = entry.values[inner.name];
    if (value === undefined) return [];
    const isWritten = opened ? !sameValue(value, opened.values[inner.name]) : isWorthStoring(value);
    return isWritten ? fieldPairs(`${path}/`, inner, value, opened?.values[inner.name]) : [];
  });
  return [...creation, ...changes];
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
  return [...listSteps(list, wanted, afterPost(wanted, before)), ...inner];
}

/** Returns the order that the server has after the pairs are posted: what was there and stays, then what is new. */
function afterPost(wanted: string[], before: Entry[]): string[] {
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

/** Whether a value that nothing is stored for yet says more than nothing. */
function isWorthStoring(value: FieldValue): boolean {
  return !isEmpty(value) && value !== false;
}

function storedText(field: Field, value: string): string {
  return field.kind === "date" ? fromLocalInput(value) : value;
}
