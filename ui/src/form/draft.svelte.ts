/**
 * A dialog that is being edited: the values on the screen and the problems of the last check.
 *
 * Drafts live as long as the editor is open, so that selecting another component loses nothing.
 */
import type { Dialog, Field, NodePatch } from "../server/answers";
import { checkField, checkValues, isWithin } from "./check";
import { isShown, presentField } from "./condition";
import { formPatch, orderSteps, type OrderStep } from "./patch";
import { changedFields, editedFields, openValues, type FieldValue, type Values } from "./value";

export class Draft {
  readonly dialog: Dialog;
  /** The entity tag of the document that the dialog was read from. A save is sent with this tag as its condition. */
  readonly tag: string | null;
  readonly fields: Map<string, Field>;
  values = $state.raw<Values>({});
  /** The problems of the last check that are not fixed yet, by place (see `form/check`). */
  problems = $state.raw<Record<string, string>>({});

  #opened: Values;

  constructor(dialog: Dialog, tag: string | null = null) {
    this.dialog = dialog;
    this.tag = tag;
    this.fields = new Map(editedFields(dialog).map((field) => [field.name, field]));
    this.#opened = openValues(dialog);
    this.values = this.#opened;
  }

  /** The fields that differ from their stored values. */
  readonly changed = $derived.by(() => changedFields(this.dialog, this.values));

  get isChanged(): boolean {
    return this.changed.length > 0;
  }

  /** Sets the value of a field. Problems that it fixes are removed immediately. */
  set(name: string, value: FieldValue): void {
    this.values = { ...this.values, [name]: value };
    const field = this.fields.get(name);
    if (!field || Object.keys(this.problems).length === 0) return;
    const left = new Map(checkField(presentField(field, this.values), value, this.#opened[name]));
    const isHidden = (place: string) => [...this.fields.values()].some((one) => isWithin(place, one.name) && !isShown(one, this.values));
    const isOpen = (place: string) => !isHidden(place) && (!isWithin(place, name) || left.has(place));
    this.problems = Object.fromEntries(Object.entries(this.problems).filter(([place]) => isOpen(place)));
  }

  /** Checks every field. Returns the place of the first problem, or `null`. */
  check(): string | null {
    const problems = checkValues(this.dialog, this.values);
    this.problems = Object.fromEntries(problems);
    const [first] = problems.keys();
    return first ?? null;
  }

  patch(): NodePatch {
    return formPatch(this.dialog, this.values);
  }

  steps(): OrderStep[] {
    return orderSteps(this.dialog, this.values);
  }

  discard(): void {
    this.values = this.#opened;
    this.problems = {};
  }
}
