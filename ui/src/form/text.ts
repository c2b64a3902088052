/**
 * Converts values to readable text, and compares two texts word by word.
 */
import type { Field, PropertyAnswer } from "../server/answers";
import { entryFields, fieldLabel, fieldOptions, type Entry, type FieldValue } from "./value";

/** A run of words that is in both texts, or only in the earlier or later one. */
export interface Run {
  kind: "same" | "removed" | "added";
  text: string;
}

/** Texts that differ in more words than this are shown as replaced: memory use grows with the square of this number. */
const MOST_STEPS = 600;

/** Returns a form's value as readable text. */
export function valueText(field: Field, value: FieldValue): string {
  if (typeof value === "boolean") return value ? "Yes" : "No";
  if (!Array.isArray(value)) return field.kind === "richtext" ? readable(value) : optionText(field, value);
  if (value.every((one) => typeof one === "string")) {
    return value.map((one) => (field.field ? optionText(field.field, one) : one)).join("\n");
  }
  return (value as Entry[]).map((entry, at) => `${at + 1}. ${entryText(field, entry)}`).join("\n");
}

/** Returns a stored property as readable text. */
export function propertyText(property: PropertyAnswer | null | undefined): string {
  if (!property) return "";
  return (property.values ?? (property.value === undefined ? [] : [property.value])).map((one) => readable(String(one))).join("\n");
}

/** Returns the text of HTML, one block per line; other text unchanged. */
export function readable(text: string): string {
  if (!/<[a-z][^>]*>/i.test(text)) return text;
  const blocks = text.replace(/<(?:\/(?:p|li|h[1-6]|tr|blockquote|div)|br\s*\/?)>/gi, "\n").replace(/<[^>]*>/g, "");
  return unescape(blocks)
    .replace(/[ \t]+/g, " ")
    .replace(/ ?\n\s*/g, "\n")
    .trim();
}

/** Returns the differences between two texts, word by word. */
export function textRuns(before: string, after: string): Run[] {
  if (before === after) return before === "" ? [] : [{ kind: "same", text: before }];
  const [old, young] = [words(before), words(after)];
  let head = 0;
  while (head < old.length && head < young.length && old[head] === young[head]) head += 1;
  let tail = 0;
  while (tail < old.length - head && tail < young.length - head && old.at(-1 - tail) === young.at(-1 - tail)) tail += 1;
  const middle = shortest(old.slice(head, old.length - tail), young.slice(head, young.length - tail));
  return joined([
    ...old.slice(0, head).map((text): Run => ({ kind: "same", text })),
    ...middle,
    ...old.slice(old.length - tail).map((text): Run => ({ kind: "same", text })),
  ]);
}

/** Myers' shortest edit script, with one stored frontier per step. */
function shortest(old: string[], young: string[]): Run[] {
  const replaced = (): Run[] => [
    ...old.map((text): Run => ({ kind: "removed", text })),
    ...young.map((text): Run => ({ kind: "added", text })),
  ];
  if (old.length === 0 || young.length === 0) return replaced();
  const most = Math.min(old.length + young.length, MOST_STEPS);
  const reach = new Map<number, number>([[1, 0]]);
  const steps: Map<number, number>[] = [];
  for (let step = 0; step <= most; step += 1) {
    steps.push(new Map(reach));
    for (let line = -step; line <= step; line += 2) {
      const isDown = line === -step || (line !== step && (reach.get(line - 1) ?? -1) < (reach.get(line + 1) ?? -1));
      let x = isDown ? (reach.get(line + 1) ?? 0) : (reach.get(line - 1) ?? 0) + 1;
      while (x < old.length && x - line < young.length && old[x] === young[x - line]) x += 1;
      reach.set(line, x);
      if (x >= old.length && x - line >= young.length) return walkBack(steps, old, young);
    }
  }
  return replaced();
}

function walkBack(steps: Map<number, number>[], old: string[], young: string[]): Run[] {
  const runs: Run[] = [];
  let [x, y] = [old.length, young.length];
  for (let step = steps.length - 1; step >= 0; step -= 1) {
    const reach = steps[step] ?? new Map<number, number>();
    const line = x - y;
    const isDown = line === -step || (line !== step && (reach.get(line - 1) ?? -1) < (reach.get(line + 1) ?? -1));
    const before = isDown ? line + 1 : line - 1;
    const [fromX, fromY] = [reach.get(before) ?? 0, (reach.get(before) ?? 0) - before];
    while (x > fromX && y > fromY) {
      runs.push({ kind: "same", text: old[x - 1] ?? "" });
      [x, y] = [x - 1, y - 1];
    }
    if (step === 0) break;
    runs.push(isDown ? { kind: "added", text: young[fromY] ?? "" } : { kind: "removed", text: old[fromX] ?? "" });
    [x, y] = [fromX, fromY];
  }
  return runs.reverse();
}

/**
 * Joins neighbors of one kind and puts removed text before the text added in its place. Blanks between two changes
 * count as changed.
 */
function joined(all: Run[]): Run[] {
  const runs = all.flatMap((run, at): Run[] => {
    const isBetween = run.kind === "same" && at > 0 && at < all.length - 1 && all[at - 1]?.kind !== "same" && all[at + 1]?.kind !== "same";
    if (!isBetween || run.text.trim() !== "") return [run];
    return [
      { kind: "removed", text: run.text },
      { kind: "added", text: run.text },
    ];
  });
  const found: Run[] = [];
  let [removed, added] = ["", ""];
  const settle = () => {
    if (removed) found.push({ kind: "removed", text: removed });
    if (added) found.push({ kind: "added", text: added });
    [removed, added] = ["", ""];
  };
  for (const { kind, text } of runs) {
    if (kind === "removed") removed += text;
    else if (kind === "added") added += text;
    else {
      settle();
      const last = found.at(-1);
      if (last?.kind === "same") last.text += text;
      else found.push({ kind, text });
    }
  }
  settle();
  return found;
}

/** Splits a text into words, blanks and punctuation marks. */
function words(text: string): string[] {
  return text.match(/[\p{L}\p{N}_]+|\s+|[^\p{L}\p{N}_\s]/gu) ?? [];
}

function unescape(text: string): string {
  const known: Record<string, string> = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: " " };
  return text.replace(/&(?:#(\d+)|#x([\da-f]+)|(\w+));/gi, (all, decimal?: string, hex?: string, name?: string) => {
    const code = decimal ? Number(decimal) : hex ? parseInt(hex, 16) : NaN;
    if (name) return known[name.toLowerCase()] ?? all;
    return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : all;
  });
}

function optionText(field: Field, value: string): string {
  return fieldOptions(field).find((option) => option.value === value)?.text ?? value;
}

function entryText(field: Field, entry: Entry): string {
  const parts = entryFields(field).map((inner) => {
    const text = valueText(inner, entry.values[inner.name] ?? "");
    return text ? `${fieldLabel(inner)}: ${text}` : "";
  });
  return parts.filter(Boolean).join(", ");
}
