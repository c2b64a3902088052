/**
 * A page that is being edited: its state on the server, and the drafts of all dialogs opened so far.
 *
 * Invariants
 * * A draft is removed only when it is stored, discarded, or its component is deleted here.
 * * Input during a save stays in the form and counts as unsaved.
 * * A save is one commit of all changed drafts, on the condition that each document is unchanged since it was read.
 *   Changes that others saved since are merged into the form; if both changed the same property, the user is asked.
 *
 * On failure: a refused save has stored nothing.
 */
import { SvelteMap } from "svelte/reactivity";
import { Draft } from "../../form/draft.svelte";
import { isWithin } from "../../form/check";
import { mergeForms, type Clash } from "../../form/merge";
import { isEmptyPatch, type OrderStep } from "../../form/patch";
import { fieldLabel, sameValue } from "../../form/value";
import type { BatchResults, ComponentItem, Dialog, NodeAnswer, Operation, PageDetail, Revision } from "../../server/answers";
import { authorOf, newestCursor, revisionsSince, type Author } from "../../server/changes";
import { messageOf, read, readTagged, sendTo, ServerError, write } from "../../server/client";
import { activate, childPath, deactivate, freeName, lastSegment, type Place } from "../../server/post";
import type { KeptDraft, KeptDrafts } from "../../state/draft_store";
import { isSettling, pollPause } from "../../status";
import { componentName, findRow, type Spot } from "./tree";

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
/** The properties that an activation sets on a page; they are not edits. */
const NOTES = /^cq:lastReplicat/;

export class PageEdit {
  readonly path: string;
  page = $state.raw<PageDetail | null>(null);
  problem = $state("");
  isBusy = $state(false);
  /** Incremented when the preview must be reloaded. */
  edition = $state(0);
  /** The conflicts between the drafts and changes that others have saved. */
  clashes = $state.raw<DraftClash[]>([]);
  news = $state.raw<News[]>([]);
  /** Set when another user deleted or moved the page. */
  goneBy = $state.raw<Author | null>(null);
  /** The time of the drafts that were restored from this browser. */
  restoredFrom = $state<string | null>(null);
  readonly drafts = new SvelteMap<string, Draft>();
  readonly unread = new SvelteMap<string, string>();

  readonly changed = $derived([...this.drafts.values()].filter((draft) => draft.isChanged));

  #isOpen = true;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #burst: ReturnType<typeof setTimeout> | undefined;
  #cursor: string | null = null;
  /** The number of commits of this tab that the feed has not reported yet; negative if the feed was faster. */
  #made = 0;

  constructor(path: string) {
    this.path = path;
  }

  /** The cursor of the change feed when the page was read. */
  get cursor(): string | null {
    return this.#cursor;
  }

  async load(): Promise<void> {
    try {
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

  /** Stores every changed draft, after checking all of them. */
  async save(): Promise<SaveOutcome> {
    const wrong = this.#check();
    if (wrong) return wrong;
    if (this.changed.length === 0) return { kind: "nothing" };
    return this.#busy(async () => {
      for (let attempt = 1; ; attempt += 1) {
        const drafts = this.changed;
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
    });
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

  /** Restores the drafts that are stored in this browser. */
  async restore(kept: KeptDrafts): Promise<void> {
    this.#cursor = kept.cursor ?? this.#cursor;
    for (const { dialog, tag, values } of kept.drafts) {
      const draft = new Draft(dialog, tag);
      draft.values = values;
      if (draft.isChanged) this.drafts.set(dialog.path, draft);
    }
    if (this.changed.length === 0) return;
    this.restoredFrom = kept.at;
    await this.#catchUp().catch(() => {
      // The next save detects the changes.
    });
  }

  /** Returns the drafts to store in this browser. */
  kept(): KeptDraft[] {
    return this.changed.map(({ dialog, tag, values }) => ({ dialog, tag, values }));
  }

  /** Handles a revision of the change feed, made in this tab or elsewhere. */
  hear(revision: Revision, me: string): void {
    const content = `${this.path}/jcr:content`;
    const ours = revision.changes.filter(({ path }) => path === this.path || path === content || path.startsWith(`${content}/`));
    if (ours.length === 0 || (revision.user === me && this.#isOwn())) return;
    const edits = ours.filter((one) => one.properties.length === 0 || one.properties.some(({ name }) => !NOTES.test(name)));
    if (revision.user !== me && edits.length > 0) this.#tell(revision, edits.map(({ path }) => path));
    if (ours.some(({ path, kind }) => path === this.path && kind === "removed")) {
      this.goneBy = { user: revision.user, time: revision.time };
    }
    this.refreshSoon();
  }

  /**
   * Returns true if a revision of this user is attributed to this tab: while the tab has commits that the feed has not
   * reported yet.
   */
  #isOwn(): boolean {
    const isOwn = this.isBusy || this.#made > 0;
    if (isOwn) this.#made -= 1;
    return isOwn;
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
  add(resourceType: string, spot: Spot): Promise<string> {
    return this.#busy(async () => {
      const path = await addNode(spot.parent, resourceType, spot.place);
      this.#made += 1;
      await this.#refresh();
      return path;
    });
  }

  delete(item: ComponentItem): Promise<void> {
    return this.#busy(async () => {
      await this.#commit([{ op: "delete", path: item.path }], `delete ${item.path}`);
      for (const path of [...this.drafts.keys()]) {
        if (path === item.path || path.startsWith(`${item.path}/`)) this.drafts.delete(path);
      }
      await this.#refresh();
    });
  }

  move(item: ComponentItem, place: Place): Promise<void> {
    return this.#busy(async () => {
      await this.#commit([orderOperation({ path: item.path, place })], `move ${item.path}`);
      await this.#refresh();
    });
  }

  activate(): Promise<void> {
    return this.#busy(async () => {
      await write(this.path, activate(false));
      await this.load();
      this.#watch(0);
    });
  }

  deactivate(): Promise<void> {
    return this.#busy(async () => {
      await write(this.path, deactivate());
      await this.load();
      this.#watch(0);
    });
  }

  /** Returns the name of a resource for messages. */
  nameOf(dialog: Dialog): string {
    const row = this.page ? findRow(this.page.components, dialog.path) : null;
    return row ? componentName(row.item) : dialog.path === this.page?.content.path ? "Page" : dialog.title;
  }

  close(): void {
    this.#isOpen = false;
    clearTimeout(this.#timer);
    clearTimeout(this.#burst);
  }

  async #commit(operations: Operation[], message: string): Promise<void> {
    await commit(operations, message);
    this.#made += 1;
  }

  async #busy<T>(work: () => Promise<T>): Promise<T> {
    this.isBusy = true;
    try {
      return await work();
    } finally {
      this.isBusy = false;
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
    this.restoredFrom = null;
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
      if (place !== null) return { kind: "invalid", path: draft.dialog.path, place, tab: tabOf(draft.dialog, place) };
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
    return row ? componentName(row.item) : "Page";
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
function tabOf(dialog: Dialog, place: string): number {
  const shown = dialog.tabs.filter((tab) => tab.fields.some((field) => field.kind !== "hidden"));
  return Math.max(
    0,
    shown.findIndex((tab) => tab.fields.some((field) => isWithin(place, field.name))),
  );
}

function commit(operations: Operation[], message: string): Promise<BatchResults> {
  return sendTo<BatchResults>("POST", "/api/v1/batch", { operations, message });
}

/** Adds a node with a name that no sibling has. The entity tag ensures that no sibling takes the name meanwhile. */
async function addNode(parent: string, resourceType: string, place: Place): Promise<string> {
  for (let attempt = 1; ; attempt += 1) {
    const { value, tag } = await readTagged<NodeAnswer>("/api/v1/nodes", { path: parent, depth: 1 });
    const path = childPath(parent, freeName(lastSegment(resourceType), Object.keys(value.children ?? {})));
    const properties = { "sling:resourceType": resourceType };
    try {
      await commit(
        [
          { op: "patch", path: parent, patch: {}, ...(tag === null ? {} : { ifMatch: tag }) },
          { op: "put", path, node: { type: "nt:unstructured", properties } },
          orderOperation({ path, place }),
        ],
        `add ${path}`,
      );
      return path;
    } catch (error) {
      if (!isStale(error) || attempt === ATTEMPTS) throw error;
    }
  }
}

/** Returns the operations that store a draft: its patch, with its tag as the condition, and the order of its lists. */
function operationsOf(draft: Draft): Operation[] {
  const patch = draft.patch();
  const { path } = draft.dialog;
  const condition = draft.tag === null ? {} : { ifMatch: draft.tag };
  const steps = draft.steps();
  if (isEmptyPatch(patch) && steps.length === 0) return [];
  return [{ op: "patch", path, patch, ...condition }, ...steps.map(orderOperation)];
}

function orderOperation({ path, place }: OrderStep): Operation {
  if (typeof place === "string") return { op: "order", path, place };
  return "before" in place
    ? { op: "order", path, place: "before", sibling: place.before }
    : { op: "order", path, place: "after", sibling: place.after };
}

/** Returns true if a save was refused because others changed or deleted the document, or the commits conflict. */
function isStale(error: unknown): boolean {
  if (!(error instanceof ServerError)) return false;
  return error.status === 412 || error.status === 404 || (error.status === 409 && (error.problem.conflicts?.length ?? 0) > 0);
}
