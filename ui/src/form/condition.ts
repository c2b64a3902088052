/**
 * Conditions under which the fields of a dialog are shown, can be changed, and must be filled.
 *
 * A condition is about the values on the screen. A field that the dialog does not have is empty and unchecked.
 */
import type { Condition, Dialog, DialogTab, Field } from "../server/answers";
import type { FieldValue, Values } from "./value";

/** Returns true if a condition holds for the values of a form. */
export function holds(condition: Condition, values: Values): boolean {
  if ("not" in condition) return !holds(condition.not, values);
  if ("all" in condition) return condition.all.every((one) => holds(one, values));
  if ("any" in condition) return condition.any.some((one) => holds(one, values));
  const texts = valueTexts(values[condition.field]);
  if ("filled" in condition) return texts.some((text) => text !== "" && text !== "false");
  return texts.some((text) => condition.in.includes(text));
}

/** Returns true if something with this condition is shown. */
export function isVisible(one: { visible?: Condition | null }, values: Values): boolean {
  return !one.visible || holds(one.visible, values);
}

/** Returns true if a field is shown. */
export function isShown(field: Field, values: Values): boolean {
  return field.kind !== "hidden" && isVisible(field, values);
}

/** Returns true if a field can be changed. */
export function isEnabled(field: Field, values: Values): boolean {
  return !field.isReadOnly && (!field.enabled || holds(field.enabled, values));
}

/** Returns a field as it is with these values: read-only or required by its conditions. */
export function presentField(field: Field, values: Values): Field {
  const isOpen = isShown(field, values) && isEnabled(field, values);
  const isDemanded = !!field.required || (!!field.requiredWhen && holds(field.requiredWhen, values));
  return { ...field, isReadOnly: !isEnabled(field, values), required: isOpen && isDemanded };
}

/** Returns the tabs of a dialog that are shown: those with a field that is. */
export function shownTabs(dialog: Dialog, values: Values): DialogTab[] {
  return dialog.tabs.filter((tab) => isVisible(tab, values) && tab.fields.some((field) => isShown(field, values)));
}

function valueTexts(value: FieldValue | undefined): string[] {
  if (value === undefined) return ["", "false"];
  if (!Array.isArray(value)) return [String(value)];
  return value.length === 0 ? [""] : value.map((one) => (typeof one === "string" ? one : one.name));
}
