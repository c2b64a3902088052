/**
 * A page that is being edited: its state on the server, the drafts of all dialogs opened so far, and the history of
 * edits.
 *
 * Invariants
 * * A draft is removed only when it is stored, discarded, or its component is deleted or moved here.
 * * Input during a save stays in the form and counts as unsaved.
 * * A save is one commit of all changed drafts, on the condition that each document is unchanged since it was read.
 *   Changes that others saved since are merged into the form; if both changed the same property, the user is asked.
 * * Saves and changes of the structure run one after the other, in the order of the edits.
 * * Every edit is a step of the history; undoing one is an edit like any other, and is saved like one.
 *
 * On failure: a refused save has stored nothing.
 */
import { SvelteMap } from "svelte/reactivity";
import { Draft } from "../../form/draft.svelte";
import { isWithin } from "../../form/check";
import { shownTabs } from "../../form/condition";
import { mergeForms, type Clash } from "../../form/merge";
import { isEmptyPatch } from "../../form/patch";
import { fieldLabel, sameValue, type FieldValue } from "../../form/value";
import { t } from "../../language";
import type { BatchResults, ComponentItem, Dialog, NodeAnswer, Operation, PageDetail, Replicated, Revision } from "../../server/answers";
import { authorOf, newestCursor, revisionsSince, type Author } from "../../server/changes";
import { messageOf, read, readTagged, sendTo, ServerError } from "../../server/client";
import { childPath, freeName, lastSegment, parentPath, type Place } from "../../server/post";
import type { KeptDraft, KeptDrafts } from "../../state/draft_store";
import { editorTab } from "../../state/editor_tab";
import { isSettling, pollPause } from "../../status";
import { AutoSave } from "./autosave.svelte";
import {
  EditHistory,
  isAppearing,
  orderOperation,
  pathAfter,
  sentNode,
  stepOperations,
  type Direction,
  type EditStep,
  type MoveStep,
  type PresenceStep,
  type ValueStep,
} from "./history.svelte";
import { componentName, findRow, placeOf, type Spot } from "./tree";

/** A draft that conflicts with changes that others have saved. */
export interface DraftClash {
  draft: Draft;
  name: string;
  /** The form as it is stored now; null if the component no longer exists. */
  present: Draft | null;
  clashes: (Clash & { author: Author | null })[];
  /** The user who removed the component. */
  author: Author | null;
}

/** The chosen side, by the path of the draft and the name of the field; `""` for a component that no longer exists. */
export type Decisions = Map<string, Map<string, "mine" | "theirs">>;

/** The result of a save. */
export type SaveOutcome =
  | { kind: "nothing" }
  | { kind: "saved"; summary: string }
  | { kind: "invalid"; path: string; place: string; tab: number }
  | { kind: "clash" };

/** The result of an undo or redo. */
export type WalkOutcome =
  | { kind: "nothing" }
  /** `path` is the component to show; null if it is gone. */
  | { kind: "done"; step: EditStep; path: string | null }
  /** The field has another value than the step left; carrying it out would replace that. */
  | { kind: "changed"; step: ValueStep; present: FieldValue; wanted: FieldValue };

/** What an activation carries out. */
export interface Publication {
  /** The documents that are activated before the page. */
  companions: string[];
  /** The times at which the page appears and vanishes, as stored; null for at once and never. */
  onTime: string | null;
  offTime: string | null;
  /** True if the stored times differ from these. */
  setsTimes: boolean;
}

/** The changes of another user since the page was opened. */
export interface News {
  user: string;
  time: string;
  /** The changed components. */
  places: string[];
}

/** The maximum number of attempts of a save that meets new changes each time. */
const ATTEMPTS = 5;
/** The delay before changes of others are loaded, so that a burst of changes is loaded once. */
const BURST_MS = 300;
/** The levels of a component that are read before it is removed. */
const MOST_LEVELS = 100;
/** The properties that an activation sets on a page; they are not edits. */
const NOTES = /^cq:lastReplicat/;

export class PageEdit {
  readonly path: string;
  page = $state.raw<PageDetail | null>(null);
  problem = $state("");
  isBusy = $state(false);
  /** Incremented when the preview must be drawn again. */
  edition = $state(0);
  /** The conflicts between the drafts and changes that others have saved. */
  clashes = $state.raw<DraftClash[]>([]);
  news = $state.raw<News[]>([]);
  /** Set when another user deleted or moved the page. */
  goneBy = $state.raw<Author | null>(null);
  /** The time of the drafts that were restored from this browser. */
  restoredFrom = $state<string | null>(null);
  readonly drafts = new SvelteMap<string, Draft>();
  readonly history = new EditHistory();
  readonly autosave = new AutoSave(() => this.#saveTyped());
  /** Called before the first commit, so that the preview can note the state that it shows. */
  prepare: (() => Promise<void>) | null = null;
  readonly unread = new SvelteMap<string, string>();

  readonly changed = $derived([...this.drafts.values()].filter((draft) => draft.isChanged));

  #isOpen = true;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #burst: ReturnType<typeof setTimeout> | undefined;
  #cursor: string | null = null;
  /** The identity of this tab (see `state/editor_tab`); empty until the page is loaded. */
  tab = "";
  /** The end of the work that was begun last. */
  #last: Promise<unknown> = Promise.resolve();
  #running = 0;

  constructor(path: string) {
    this.path = path;
  }

  /** The end of the messages of this tab's commits, by which the feed's revisions are recognized. */
  get #mark(): string {
    return `(editor ${this.tab})`;
  }

  /** The cursor of the change feed when the page was read. */
  get cursor(): string | null {
    return this.#cursor;
  }

  async load(): Promise<void> {
    try {
      this.tab ||= await editorTab();
      this.#cursor ??= await newestCursor().catch(() => null);
      const page = await read<PageDetail>("/api/v1/page", { path: this.path });
      if (!this.#isOpen) return;
      this.page = page;
      this.problem = "";
      if (isSettling(page.status)) this.#watch(0);
    } catch (error) {
      this.problem = messageOf(error);
    }
  }

  /** Opens the dialog of a resource, unless it is open already. */
  async open(path: string): Promise<void> {
    if (this.drafts.has(path)) return;
    this.unread.delete(path);
    try {
      const draft = await readDraft(path);
      if (this.#isOpen && !this.drafts.has(path)) this.drafts.set(path, draft);
    } catch (error) {
      this.unread.set(path, messageOf(error));
    }
  }

  /** Sets a field as the user entered it: a step of the history, saved soon. */
  set(path: string, field: string, value: FieldValue): void {
    const draft = this.drafts.get(path);
    const before = draft?.values[field] ?? "";
    if (!draft || sameValue(before, value)) return;
    draft.set(field, value);
    const known = draft.fields.get(field);
    const label = `${clipped(this.nameOf(draft.dialog))}: ${known ? fieldLabel(known) : field}`;
    const now = Date.now();
    this.history.record({ kind: "value", path, field, label, before, after: value, began: now, at: now });
    this.autosave.touch();
  }

  /** Stores every changed draft, after checking all of them. */
  async save(): Promise<SaveOutcome> {
    const wrong = this.#check();
    if (wrong) return wrong;
    if (this.changed.length === 0) return { kind: "nothing" };
    const outcome = await this.#busy(() => this.#saveDrafts(() => this.changed));
    if (outcome.kind !== "invalid") this.autosave.saved();
    return outcome;
  }

  /** Stores the changed drafts that are valid and have no open conflict; the others wait for the user. */
  async #saveTyped(): Promise<void> {
    if (this.#savable().length > 0) await this.#busy(() => this.#saveDrafts(() => this.#savable()));
  }

  #savable(): Draft[] {
    return this.changed.filter((draft) => draft.check() === null && !this.clashes.some((clash) => clash.draft === draft));
  }

  async #saveDrafts(pick: () => Draft[]): Promise<SaveOutcome> {
    for (let attempt = 1; ; attempt += 1) {
      const drafts = pick();
      if (drafts.length === 0) return { kind: "nothing" };
      try {
        return { kind: "saved", summary: await this.#store(drafts) };
      } catch (error) {
        if (!isStale(error) || attempt === ATTEMPTS) throw error;
        await this.#catchUp();
        if (this.clashes.length > 0) return { kind: "clash" };
        // Changes of others may make values of this form invalid.
        const invalid = this.#check();
        if (invalid) return invalid;
      }
    }
  }

  /**
   * Carries out the next step of the history. Without `isForced`, a field that was changed since is left as it is, and
   * the outcome tells its value.
   */
  async walk(direction: Direction, isForced = false): Promise<WalkOutcome> {
    const step = this.history.next(direction);
    if (step === null) return { kind: "nothing" };
    return step.kind === "value" ? this.#walkValue(step, direction, isForced) : this.#walkStructure(step, direction);
  }

  async #walkValue(step: ValueStep, direction: Direction, isForced: boolean): Promise<WalkOutcome> {
    await this.open(step.path);
    const draft = this.drafts.get(step.path);
    if (!draft?.fields.has(step.field)) {
      this.history.drop(direction);
      throw new Error(this.unread.get(step.path) ?? t("The field no longer exists: {label}", { label: step.label }));
    }
    const [left, wanted] = direction === "undo" ? [step.after, step.before] : [step.before, step.after];
    const present = draft.values[step.field] ?? "";
    if (!isForced && !sameValue(present, left) && !sameValue(present, wanted)) return { kind: "changed", step, present, wanted };
    draft.set(step.field, wanted);
    this.history.walk(direction, step);
    this.autosave.touch();
    return { kind: "done", step, path: step.path };
  }

  async #walkStructure(step: PresenceStep | MoveStep, direction: Direction): Promise<WalkOutcome> {
    try {
      const performed = await this.#perform(step, direction);
      this.history.walk(direction, performed);
      return { kind: "done", step: performed, path: pathAfter(performed, direction) };
    } catch (error) {
      // What the server refuses now stays refused, for example because the container is gone.
      if (error instanceof ServerError && [404, 409, 412, 422].includes(error.status)) this.history.drop(direction);
      throw error;
    }
  }

  /** Applies the user's decisions about the conflicts; the next save stores them. */
  decide(decisions: Decisions): void {
    for (const { draft, present, clashes } of this.clashes) {
      const { path } = draft.dialog;
      const decided = decisions.get(path);
      if (!present) {
        if (decided?.get("") === "theirs") this.drafts.delete(path);
        continue;
      }
      const next = new Draft(present.dialog, present.tag);
      next.values = mergeForms(draft.dialog, draft.values, present.dialog).values;
      for (const { field, theirs } of clashes) {
        if (decided?.get(field.name) === "theirs") next.set(field.name, theirs);
      }
      this.drafts.set(path, next);
    }
    this.clashes = [];
  }

  /** Restores drafts that are stored in this browser, the newest last, and saves them. */
  async restore(stored: KeptDrafts[]): Promise<void> {
    for (const kept of stored) {
      this.#cursor = kept.cursor ?? this.#cursor;
      for (const { dialog, tag, values } of kept.drafts) {
        const draft = new Draft(dialog, tag);
        draft.values = values;
        if (draft.isChanged) this.drafts.set(dialog.path, draft);
      }
    }
    if (this.changed.length === 0) return;
    this.restoredFrom = stored.at(-1)?.at ?? null;
    await this.#catchUp().catch(() => {
      // The next save detects the changes.
    });
    this.autosave.touch();
  }

  /** Returns the drafts to store in this browser. */
  kept(): KeptDraft[] {
    return this.changed.map(({ dialog, tag, values }) => ({ dialog, tag, values }));
  }

  /** Handles a revision of the change feed, made in this tab or elsewhere. */
  hear(revision: Revision, me: string): void {
    const content = `${this.path}/jcr:content`;
    const ours = revision.changes.filter(({ path }) => path === this.path || path === content || path.startsWith(`${content}/`));
    if (ours.length === 0 || (revision.user === me && revision.message?.endsWith(this.#mark))) return;
    const edits = ours.filter((one) => one.properties.length === 0 || one.properties.some(({ name }) => !NOTES.test(name)));
    if (edits.length > 0) this.#tell(revision, edits.map(({ path }) => path));
    if (ours.some(({ path, kind }) => path === this.path && kind === "removed")) {
      this.goneBy = { user: revision.user, time: revision.time };
    }
    this.refreshSoon();
  }

  /** Loads the changes of others, once a burst of changes is over. */
  refreshSoon(): void {
    clearTimeout(this.#burst);
    this.#burst = setTimeout(() => {
      if (!this.#isOpen) return;
      if (this.isBusy) return this.refreshSoon();
      void this.#refresh()
        .then(() => this.#catchUp())
        .catch(() => {
          // The next change or save tries again.
        });
    }, BURST_MS);
  }

  discard(): void {
    this.clashes = [];
    this.restoredFrom = null;
    for (const draft of this.changed) draft.discard();
    // A discarded draft shows the values as they were read, which others may have changed since.
    this.refreshSoon();
  }

  /** Adds a component and returns its path. */
  async add(resourceType: string, spot: Spot): Promise<string> {
    const name = lastSegment(resourceType);
    const node = { type: "nt:unstructured", properties: { "sling:resourceType": resourceType } };
    const path = await this.#insert(spot, name, (to) => ({ op: "put", path: to, node }));
    this.#recordAdded(path, spot);
    return path;
  }

  /** Copies a component, also one of another page, and returns the path of the copy. */
  async copy(from: string, spot: Spot): Promise<string> {
    const path = await this.#insert(spot, lastSegment(from), (to) => ({ op: "copy", from, to }));
    this.#recordAdded(path, spot);
    return path;
  }

  #insert(spot: Spot, name: string, operation: (path: string) => Operation): Promise<string> {
    return this.#busy(async () => {
      await this.#saveDrafts(() => this.#savable());
      const path = await this.#addNode(spot, name, operation);
      await this.#refresh();
      return path;
    });
  }

  #recordAdded(path: string, { place }: Spot): void {
    const row = this.page ? findRow(this.page.components, path) : null;
    const label = t("Add {name}", { name: row?.item.title ?? lastSegment(path) });
    this.history.record({ kind: "presence", path, label, isAdded: true, node: null, place });
  }

  /** Returns true if the history can bring a component back after it is deleted: if there are no files inside. */
  async canRestore(item: ComponentItem): Promise<boolean> {
    return sentNode(await read<NodeAnswer>("/api/v1/nodes", { path: item.path, depth: MOST_LEVELS })) !== null;
  }

  /** Deletes a component. Returns true if the history can bring it back, which it cannot with files inside. */
  async delete(item: ComponentItem): Promise<boolean> {
    const label = t("Delete {name}", { name: clipped(componentName(item)) });
    const step: PresenceStep = { kind: "presence", path: item.path, label, isAdded: false, node: null, place: "last" };
    const performed = (await this.#perform(step, "redo")) as PresenceStep;
    if (performed.node !== null) this.history.record(performed);
    return performed.node !== null;
  }

  /** Moves a component among its siblings or to another container. Returns its new path. */
  async move(item: ComponentItem, parent: string, place: Place): Promise<string> {
    const before = this.page ? placeOf(this.page.components, item.path) : "last";
    const to = parent === parentPath(item.path) ? item.path : childPath(parent, freeName(item.name, await childNames(parent)));
    const label = t("Move {name}", { name: clipped(componentName(item)) });
    const step: MoveStep = { kind: "move", label, from: item.path, to, before, after: place };
    await this.#perform(step, "redo");
    this.history.record(step);
    return to;
  }

  /** Activates the page with its companions, after setting its times. */
  publish({ companions, onTime, offTime, setsTimes }: Publication): Promise<Replicated> {
    return this.#busy(async () => {
      const date = (value: string | null) => (value === null ? null : { type: "Date", value });
      if (setsTimes && this.page) {
        const patch = { properties: { onTime: date(onTime), offTime: date(offTime) } };
        await this.#commit([{ op: "patch", path: this.page.content.path, patch }], `set the times of ${this.path}`);
        await this.#catchUp();
      }
      const done = await sendTo<Replicated>("POST", "/api/v1/replication", { action: "activate", paths: [...companions, this.path] });
      await this.load();
      this.#watch(0);
      return done;
    });
  }

  deactivate(): Promise<void> {
    return this.#busy(async () => {
      await sendTo("POST", "/api/v1/replication", { action: "deactivate", paths: [this.path] });
      await this.load();
      this.#watch(0);
    });
  }

  /** Returns the name of a resource for messages. */
  nameOf(dialog: Dialog): string {
    const row = this.page ? findRow(this.page.components, dialog.path) : null;
    return row ? componentName(row.item) : dialog.path === this.page?.content.path ? t("Page") : dialog.title;
  }

  close(): void {
    this.#isOpen = false;
    this.autosave.stop();
    clearTimeout(this.#timer);
    clearTimeout(this.#burst);
  }

  async #commit(operations: Operation[], message: string): Promise<void> {
    await this.prepare?.();
    await sendTo<BatchResults>("POST", "/api/v1/batch", { operations, message: `${message} ${this.#mark}` });
  }

  /** Runs work after all work that was begun before. */
  #busy<T>(work: () => Promise<T>): Promise<T> {
    this.isBusy = true;
    this.#running += 1;
    const turn = this.#last.then(work).finally(() => {
      this.#running -= 1;
      this.isBusy = this.#running > 0;
    });
    this.#last = turn.catch(() => {
      // Who began the work hears of its failure; the next one runs anyway.
    });
    return turn;
  }

  /**
   * Carries out a step of the structure, after storing what was typed before it. Returns the step with the content of a
   * component that it removed.
   */
  #perform(step: PresenceStep | MoveStep, direction: Direction): Promise<PresenceStep | MoveStep> {
    return this.#busy(async () => {
      await this.#saveDrafts(() => this.#savable());
      const left = step.kind === "move" ? (direction === "undo" ? step.to : step.from) : step.path;
      const isLeft = (path: string) => path === left || path.startsWith(`${left}/`);
      if (step.kind === "move" && step.from !== step.to) {
        const unsaved = this.changed.find(({ dialog }) => isLeft(dialog.path));
        if (unsaved) throw new Error(t("Correct or discard the changes of {name} first.", { name: this.nameOf(unsaved.dialog) }));
      }
      let performed = step;
      if (step.kind === "presence" && !isAppearing(step, direction)) performed = await this.#captured(step);
      await this.#commit(stepOperations(performed, direction), `${direction === "undo" ? "undo" : "edit"} ${this.path}`);
      for (const path of [...this.drafts.keys()]) if (isLeft(path) && pathAfter(step, direction) !== path) this.drafts.delete(path);
      await this.#refresh();
      return performed;
    });
  }

  /** Returns the step with the content and the position of its component, so that it can be brought back. */
  async #captured(step: PresenceStep): Promise<PresenceStep> {
    const node = sentNode(await read<NodeAnswer>("/api/v1/nodes", { path: step.path, depth: MOST_LEVELS }));
    const place = this.page ? placeOf(this.page.components, step.path) : step.place;
    return { ...step, node, place };
  }

  /** Adds a node with a name that no sibling has. The entity tag ensures that no sibling takes the name meanwhile. */
  async #addNode({ parent, place }: Spot, hint: string, operation: (path: string) => Operation): Promise<string> {
    for (let attempt = 1; ; attempt += 1) {
      const { value, tag } = await readTagged<NodeAnswer>("/api/v1/nodes", { path: parent, depth: 1 });
      const path = childPath(parent, freeName(hint, Object.keys(value.children ?? {})));
      const guard: Operation = { op: "patch", path: parent, patch: {}, ...(tag === null ? {} : { ifMatch: tag }) };
      try {
        await this.#commit([guard, operation(path), orderOperation(path, place)], `edit ${this.path}`);
        return path;
      } catch (error) {
        if (!isStale(error) || attempt === ATTEMPTS) throw error;
      }
    }
  }

  async #refresh(): Promise<void> {
    await this.load();
    this.edition += 1;
  }

  /** Stores drafts in one commit and returns a summary of the changes. */
  async #store(drafts: Draft[]): Promise<string> {
    const sent = drafts.map((draft) => ({ draft, values: { ...draft.values } }));
    const summary = drafts.map((draft) => `${this.nameOf(draft.dialog)}: ${draft.changed.map(fieldLabel).join(", ")}`);
    const operations = drafts.flatMap(operationsOf);
    if (operations.length > 0) await this.#commit(operations, `edit ${this.path}`);
    await Promise.all(sent.map(({ draft, values }) => this.#takeStored(draft, values)));
    await this.#refresh();
    return summary.join(" · ");
  }

  /** Reloads a stored draft and keeps the input that was made while it was sent. */
  async #takeStored(draft: Draft, sent: Draft["values"]): Promise<void> {
    const { path } = draft.dialog;
    const stored = await readDraft(path);
    for (const [name, value] of Object.entries(draft.values)) {
      if (!sameValue(value, sent[name])) stored.set(name, value);
    }
    this.drafts.set(path, stored);
  }

  #check(): SaveOutcome | null {
    for (const draft of this.changed) {
      const place = draft.check();
      if (place !== null) return { kind: "invalid", path: draft.dialog.path, place, tab: tabOf(draft, place) };
    }
    return null;
  }

  /** Merges the changes of others into the open drafts, and records the conflicts. */
  async #catchUp(): Promise<void> {
    const cursor = await newestCursor().catch(() => null);
    const found = await Promise.all([...this.drafts.keys()].map((path) => this.#compare(path)));
    const clashing = found.filter((one) => one !== null);
    if (clashing.length > 0) await this.#nameAuthors(clashing);
    else this.#cursor = cursor ?? this.#cursor;
    if (this.#isOpen) this.clashes = clashing;
  }

  async #compare(path: string): Promise<DraftClash | null> {
    let present: Draft | null = null;
    try {
      present = await readDraft(path);
    } catch (error) {
      if (!(error instanceof ServerError) || error.status !== 404) throw error;
    }
    const draft = this.drafts.get(path);
    if (!draft || present?.tag === draft.tag) return null;
    const name = this.nameOf(draft.dialog);
    if (!present) {
      if (draft.isChanged) return { draft, name, present: null, clashes: [], author: null };
      this.drafts.delete(path);
      return null;
    }
    const merged = mergeForms(draft.dialog, draft.values, present.dialog);
    if (merged.clashes.length > 0) {
      return { draft, name, present, clashes: merged.clashes.map((clash) => ({ ...clash, author: null })), author: null };
    }
    present.values = merged.values;
    this.drafts.set(path, present);
    return null;
  }

  /** Sets the author of each conflicting change: from the feed, or else the last author of the page. */
  async #nameAuthors(clashing: DraftClash[]): Promise<void> {
    const revisions = this.#cursor === null ? [] : await revisionsSince(this.#cursor, this.path).catch(() => []);
    const { modifiedBy: user, modified: time } = this.page ?? {};
    const last = user && time ? { user, time } : null;
    for (const one of clashing) {
      const { path } = one.draft.dialog;
      one.author = authorOf(revisions, path, "") ?? last;
      for (const clash of one.clashes) clash.author = authorOf(revisions, path, clash.field.name) ?? last;
    }
  }

  #tell(revision: Revision, paths: string[]): void {
    const places = [...new Set(paths.map((path) => this.#placeName(path)))];
    const others = this.news.filter(({ user }) => user !== revision.user);
    const before = this.news.find(({ user }) => user === revision.user)?.places ?? [];
    this.news = [...others, { user: revision.user, time: revision.time, places: [...new Set([...before, ...places])] }];
  }

  #placeName(path: string): string {
    const row = this.page ? findRow(this.page.components, path) : null;
    return row ? componentName(row.item) : t("Page");
  }

  /** Polls the status until the replication of the page has finished. */
  #watch(attempt: number): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(async () => {
      if (!this.#isOpen) return;
      if (!document.hidden) await this.#readStatus();
      if (this.page && isSettling(this.page.status)) this.#watch(attempt + 1);
    }, pollPause(attempt));
  }

  async #readStatus(): Promise<void> {
    try {
      const page = await read<PageDetail>("/api/v1/page", { path: this.path });
      if (this.#isOpen) this.page = page;
    } catch {
      // The next poll may succeed; the next action reports a page that no longer exists.
    }
  }
}

async function readDraft(path: string): Promise<Draft> {
  const { value, tag } = await readTagged<Dialog>("/api/v1/dialog", { path });
  return new Draft(value, tag);
}

/** Returns the index of the shown tab that contains a place of the form. */
function tabOf({ dialog, values }: Draft, place: string): number {
  const shown = shownTabs(dialog, values);
  return Math.max(
    0,
    shown.findIndex((tab) => tab.fields.some((field) => isWithin(place, field.name))),
  );
}

/** Returns a name short enough for the label of a step. */
function clipped(name: string): string {
  return name.length > 44 ? `${name.slice(0, 40).trimEnd()}…` : name;
}

/** Returns the names of a node's children. */
async function childNames(path: string): Promise<string[]> {
  return Object.keys((await read<NodeAnswer>("/api/v1/nodes", { path, depth: 1 })).children ?? {});
}

/** Returns the operations that store a draft: its patch, with its tag as the condition, and the order of its lists. */
function operationsOf(draft: Draft): Operation[] {
  const patch = draft.patch();
  const { path } = draft.dialog;
  const condition = draft.tag === null ? {} : { ifMatch: draft.tag };
  const steps = draft.steps();
  if (isEmptyPatch(patch) && steps.length === 0) return [];
  return [{ op: "patch", path, patch, ...condition }, ...steps.map((step) => orderOperation(step.path, step.place))];
}

/** Returns true if a save was refused because others changed or deleted the document, or the commits conflict. */
function isStale(error: unknown): boolean {
  if (!(error instanceof ServerError)) return false;
  return error.status === 412 || error.status === 404 || (error.status === 409 && (error.problem.conflicts?.length ?? 0) > 0);
}
