/**
 * A dialog while it is edited: the values on the screen, and what was wrong with them at the last check.
 *
 * Drafts live as long as the editor is open, so that going from one component to another loses nothing.
 */
import type { Dialog, Field } from "../server/answers";
import type { Pair } from "../server/post";
import { changedFields, checkValue, checkValues, editedFields, openValues, postPairs, type FieldValue, type Values } from "./value";

export class Draft {
  readonly dialog: Dialog;
  readonly fields: Map<string, Field>;
  values = $state<Values>({});
  problems = $state<Record<string, string>>({});

  constructor(dialog: Dialog) {
    this.dialog = dialog;
    this.fields = new Map(editedFields(dialog).map((field) => [field.name, field]));
    this.values = openValues(dialog);
  }

  /** The fields that differ from what is stored. */
  readonly changed = $derived.by(() => changedFields(this.dialog, this.values));

  get isChanged(): boolean {
    return this.changed.length > 0;
  }

  /** Takes a value from the screen; a problem that it mends goes away at once. */
  set(name: string, value: FieldValue): void {
    this.values[name] = value;
    const field = this.fields.get(name);
    if (this.problems[name] && field && checkValue(field, value) === null) delete this.problems[name];
  }

  /** Checks every field; answers the first one with a problem. */
  check(): Field | null {
    const problems = checkValues(this.dialog, this.values);
    this.problems = Object.fromEntries(problems);
    const [first] = problems.keys();
    return first === undefined ? null : (this.fields.get(first) ?? null);
  }

  pairs(): Pair[] {
    return postPairs(this.dialog, this.values);
  }

  discard(): void {
    this.values = openValues(this.dialog);
    this.problems = {};
  }
}
