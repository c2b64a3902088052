/**
 * The history of one page in one tab: every edit as a step with an inverse, over text, properties and structure.
 *
 * Invariants
 * * Steps are undone and redone in strict order, so that a step always meets the paths that it was made with.
 * * A new step ends the redoable ones.
 * * Typing in one field is one step until the user pauses.
 * * The history is plain data: it is stored with the tab and survives a reload.
 *
 * Not here: carrying a step out (`page_edit`), and values that others changed meanwhile, which the user decides about.
 */
import { sameValue, type FieldValue } from "../../form/value";
import type { NodeAnswer, Operation, SentNode } from "../../server/answers";
import { lastSegment, parentPath, type Place } from "../../server/post";

/** A field that was changed, in the form or on the page. */
export interface ValueStep {
  kind: "value";
  path: string;
  field: string;
  /** The name of the edit for messages. */
  label: string;
  before: FieldValue;
  after: FieldValue;
  /** The times of the first and the last change, in milliseconds. */
  began: number;
  at: number;
}

/** A component that was added (`isAdded`) or removed. `node` is its content while it is absent. */
export interface PresenceStep {
  kind: "presence";
  path: string;
  label: string;
  isAdded: boolean;
  node: SentNode | null;
  place: Place;
}

/** A component that was moved, among its siblings or to another container. */
export interface MoveStep {
  kind: "move";
  label: string;
  from: string;
  to: string;
  before: Place;
  after: Place;
}

export type EditStep = ValueStep | PresenceStep | MoveStep;
export type Direction = "undo" | "redo";

/** The history as it is stored. */
export interface KeptHistory {
  done: EditStep[];
  undone: EditStep[];
}

/** The maximum number of steps that can be undone. */
const MOST_STEPS = 200;
/** A pause between two keys that ends a step, in milliseconds. */
const TYPING_PAUSE_MS = 1000;
/** The maximum duration of one step of typing, in milliseconds. */
const TYPING_MS = 8000;

export class EditHistory {
  #done = $state.raw<EditStep[]>([]);
  #undone = $state.raw<EditStep[]>([]);
  /** False after an undo: the next change begins a new step even if it follows at once. */
  #mayGrow = false;

  /** The step that `undo` or `redo` carries out next. */
  next(direction: Direction): EditStep | null {
    return (direction === "undo" ? this.#done : this.#undone).at(-1) ?? null;
  }

  get kept(): KeptHistory {
    return { done: this.#done, undone: this.#undone };
  }

  restore(kept: unknown): void {
    if (!isHistory(kept)) return;
    this.#done = kept.done;
    this.#undone = kept.undone;
  }

  record(step: EditStep): void {
    const last = this.#done.at(-1);
    const grown = this.#mayGrow && last && step.kind === "value" ? grow(last, step) : null;
    const steps = grown ? [...this.#done.slice(0, -1), ...(sameValue(grown.before, grown.after) ? [] : [grown])] : [...this.#done, step];
    this.#done = steps.slice(-MOST_STEPS);
    this.#undone = [];
    this.#mayGrow = true;
  }

  /** Ends the current step of typing. */
  endStep(): void {
    this.#mayGrow = false;
  }

  /** Moves the next step to the other side after it was carried out; `step` replaces it. */
  walk(direction: Direction, step: EditStep): void {
    this.#mayGrow = false;
    if (direction === "undo") {
      this.#done = this.#done.slice(0, -1);
      this.#undone = [...this.#undone, step];
    } else {
      this.#undone = this.#undone.slice(0, -1);
      this.#done = [...this.#done, step];
    }
  }

  /** Removes the next step, which cannot be carried out. */
  drop(direction: Direction): void {
    this.#mayGrow = false;
    if (direction === "undo") this.#done = this.#done.slice(0, -1);
    else this.#undone = this.#undone.slice(0, -1);
  }

  /** Forgets the older half of the steps, for storages that are full. Returns false if there is nothing to forget. */
  forgetOldest(): boolean {
    if (this.#done.length === 0) return false;
    this.#done = this.#done.slice(Math.ceil(this.#done.length / 2));
    return true;
  }
}

/** Returns true if carrying out a step makes its component appear. */
export function isAppearing(step: PresenceStep, direction: Direction): boolean {
  return step.isAdded === (direction === "redo");
}

/** Returns the path of the step's component after the step was carried out; `null` if it is gone. */
export function pathAfter(step: EditStep, direction: Direction): string | null {
  switch (step.kind) {
    case "value":
      return step.path;
    case "move":
      return direction === "undo" ? step.from : step.to;
    case "presence":
      return isAppearing(step, direction) ? step.path : null;
  }
}

/** Returns the API's operations that carry out a step of the structure. */
export function stepOperations(step: PresenceStep | MoveStep, direction: Direction): Operation[] {
  if (step.kind === "move") {
    const [from, to, place] = direction === "undo" ? [step.to, step.from, step.before] : [step.from, step.to, step.after];
    return [...(from === to ? [] : [{ op: "move" as const, from, to }]), orderOperation(to, place)];
  }
  if (!isAppearing(step, direction)) return [{ op: "delete", path: step.path }];
  if (step.node === null) throw new Error(`the content of \`${step.path}\` is unknown`);
  return [{ op: "put", path: step.path, node: step.node }, orderOperation(step.path, step.place)];
}

/** Returns the operation that orders a node among its siblings. */
export function orderOperation(path: string, place: Place): Operation {
  if (typeof place === "string") return { op: "order", path, place };
  return "before" in place
    ? { op: "order", path, place: "before", sibling: place.before }
    : { op: "order", path, place: "after", sibling: place.after };
}

/** Returns the path that a node has in another parent. */
export function pathIn(parent: string, path: string): string {
  return parentPath(path) === parent ? path : `${parent}/${lastSegment(path)}`;
}

/** The properties that the repository sets itself when a node is created. */
const OWN_PROPERTIES = new Set(["jcr:uuid", "jcr:baseVersion", "jcr:predecessors", "jcr:versionHistory", "jcr:isCheckedOut"]);

/** Returns a node that was read in the form that creates it again; `null` if it holds bytes, which JSON does not have. */
export function sentNode(answer: NodeAnswer): SentNode | null {
  const properties = Object.entries(answer.properties).filter(([name]) => !OWN_PROPERTIES.has(name) && name !== "jcr:primaryType");
  if (properties.some(([, { type }]) => type === "Binary")) return null;
  const children: [string, SentNode][] = [];
  for (const [name, child] of Object.entries(answer.children ?? {})) {
    const sent = sentNode(child);
    if (sent === null) return null;
    children.push([name, sent]);
  }
  return { type: answer.type, properties: Object.fromEntries(properties), ...(children.length > 0 ? { children: Object.fromEntries(children) } : {}) };
}

function grow(last: EditStep, next: ValueStep): ValueStep | null {
  if (last.kind !== "value" || last.path !== next.path || last.field !== next.field) return null;
  const isTyping = typeof last.after === "string" && typeof next.after === "string";
  if (!isTyping || next.at - last.at > TYPING_PAUSE_MS || next.at - last.began > TYPING_MS) return null;
  return sameValue(last.after, next.before) ? { ...last, after: next.after, at: next.at } : null;
}

function isHistory(kept: unknown): kept is KeptHistory {
  const { done, undone } = (kept ?? {}) as Partial<KeptHistory>;
  const isStep = (one: unknown) => ["value", "presence", "move"].includes((one as EditStep | null)?.kind ?? "");
  return Array.isArray(done) && Array.isArray(undone) && [...done, ...undone].every(isStep);
}
