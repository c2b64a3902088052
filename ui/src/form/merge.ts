/**
 * Two edits of the same form, brought together property by property.
 *
 * In: the dialog that the form was opened with, the form's values, and the dialog as others have stored it meanwhile.
 * Out: the values with what others changed and this form did not, and a clash for each property that both changed.
 *
 * Not here: who made the other change (`server/changes`), and asking whose value counts (`screens/editor`).
 */
import type { Dialog, Field } from "../server/answers";
import { editedFields, openValues, sameValue, type FieldValue, type Values } from "./value";

/** A property that both sides changed, differently. */
export interface Clash {
  field: Field;
  base: FieldValue;
  mine: FieldValue;
  theirs: FieldValue;
}

export interface Merged {
  /** The values of the form over the new dialog. Clashing properties hold this form's value. */
  values: Values;
  /** The fields that took the value of others. */
  taken: Field[];
  clashes: Clash[];
}

/** Brings a form's values onto a dialog that others have changed since it was opened. */
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
