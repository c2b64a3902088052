/**
 * Merges two edits of the same form, property by property.
 *
 * In: the dialog that the form was opened with, the form's values, and the dialog as other users have stored it since.
 * Out: the values with the changes of others that this form does not touch, and a clash for each property that both
 * changed.
 *
 * Not here: finding the author of the other change (`server/changes`), and choosing a value (`screens/editor`).
 */
import type { Dialog, Field } from "../server/answers";
import { editedFields, openValues, sameValue, type FieldValue, type Values } from "./value";

/** A property that both sides changed to different values. */
export interface Clash {
  field: Field;
  base: FieldValue;
  mine: FieldValue;
  theirs: FieldValue;
}

export interface Merged {
  /** The form's values, merged into the new dialog. Clashing properties have this form's value. */
  values: Values;
  /** The fields whose value comes from others. */
  taken: Field[];
  clashes: Clash[];
}

/** Merges a form's values into a dialog that others have changed since it was opened. */
export function mergeForms(opened: Dialog, mine: Values, present: Dialog): Merged {
  const [base, theirs] = [openValues(opened), openValues(present)];
  const merged: Merged = { values: {}, taken: [], clashes: [] };
  for (const field of editedFields(present)) {
    const { name } = field;
    const values = { base: base[name], mine: mine[name], theirs: theirs[name] };
    if (values.theirs === undefined) continue;
    const isMine = values.mine !== undefined && !sameValue(values.mine, values.base);
    const isTheirs = !sameValue(values.theirs, values.base);
    merged.values[name] = isMine && values.mine !== undefined ? values.mine : values.theirs;
    if (isTheirs && !isMine) merged.taken.push(field);
    if (isMine && isTheirs && values.mine !== undefined && !sameValue(values.mine, values.theirs)) {
      merged.clashes.push({ field, base: values.base ?? "", mine: values.mine, theirs: values.theirs });
    }
  }
  return merged;
}
