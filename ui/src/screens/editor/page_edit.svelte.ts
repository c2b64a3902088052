/**
 * A page while it is edited: what the server knows of it, and the drafts of everything opened so far.
 *
 * Invariants
 * * A draft is given up only when it is stored, discarded, or its component is deleted here.
 * * What is typed while a save runs stays in the form and counts as unsaved.
 * * A save is one commit, of all changed drafts, and only over the state that each of them was read from. Where others
 *   saved meanwhile, their changes come into the form; where both changed the same property, the editor is asked.
 *
 * On failure: a save that is refused has stored nothing.
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

/** A draft that clashes with what others have saved. */
export interface DraftClash {
  draft: Draft;
  name: string;
  /** The form as it is stored now; nothing if the component is gone. */
  present: Draft | null;
  clashes: (Clash & { author: Author | null })[];
  /** Who took the component away. */
  author: Author | null;
}

/** Whose value counts, by the path of the draft and the name of the field; `""` stands for a component that is gone. */
export type Decisions = Map<string, Map<string, "mine" | "theirs">>;

/** How a save ended. */
export type SaveOutcome =
  | { kind: "nothing" }
  | { kind: "saved"; summary: string }
  | { kind: "invalid"; path: string; place: string; tab: number }
  | { kind: "clash" };

/** What somebody else changed since the page was opened. */
export interface News {
  user: string;
  time: string;
  /** The components and fields. */
  places: string[];
}

/** A save that meets ever new changes gives up after so many. */
const ATTEMPTS = 5;
/** Pause before what others changed is read, so that a burst of changes is read once. */
const BURST_MS = 300;
/** What an activation notes on a page; nobody's edit. */
const NOTES = /^cq:lastReplicat/;

export class PageEdit {
  readonly path: string;
  page = $state.raw<PageDetail | null>(null);
  problem = $state("");
  isBusy = $state(false);
  /** Counts the changes that the preview has to show. */
  edition = $state(0);
  /** Where this form and what others saved differ in the same property. */
  clashes = $state.raw<DraftClash[]>([]);
  news = $state.raw<News[]>([]);
  /** Set when somebody else deleted or moved the page. */
  goneBy = $state.raw<Author | null>(null);
  /** When the changes were left that were brought back from this browser. */
  restoredFrom = $state<string | null>(null);
  readonly drafts = new SvelteMap<string, Draft>();
  readonly unread = new SvelteMap<string, string>();

  readonly changed = $derived([...this.drafts.values()].filter((draft) => draft.isChanged));

  #isOpen = true;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #burst: ReturnType<typeof setTimeout> | undefined;
  #cursor: string | null = null;
  /** How many commits this tab has made that the feed has not told of yet; less than nothing if it was faster. */
  #made = 0;

  constructor(path: string) {
    this.path = path;
  }

  /** Where the change feed was when the page was read. */
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
          // What others wrote may break what this form checked.
          const invalid = this.#check();
          if (invalid) return invalid;
        }
      }
    });
  }

  /** Takes the editor's decisions over the clashes; the next save stores them. */
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

  /** Brings back what was left in this browser. */
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
      // The next save finds out what has changed.
    });
  }

  /** Returns what has to be kept in this browser. */
  kept(): KeptDraft[] {
    return this.changed.map(({ dialog, tag, values }) => ({ dialog, tag, values }));
  }

  /** Takes in a change that somebody made, here or elsewhere. */
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

  /** Takes a revision of this user for one that this tab made, as long as there are such; another tab's is news. */
  #isOwn(): boolean {
    const isOwn = this.isBusy || this.#made > 0;
    if (isOwn) this.#made -= 1;
    return isOwn;
  }

  /** Reads what others have changed, once a burst of changes is over. */
  refreshSoon(): void {
    clearTimeout(this.#burst);
    this.#burst = setTimeout(() => {
      if (!this.#isOpen) return;
      if (this.isBusy) return this.refreshSoon();
      void this.#refresh()
        .then(() => this.#catchUp())
        .catch(() => {
          // The next change or save reads again.
        });
    }, BURST_MS);
  }

  discard(): void {
    this.clashes = [];
    this.restoredFrom = null;
    for (const draft of this.changed) draft.discard();
    // A discarded draft shows what was stored when it was read, which others may have changed.
    this.refreshSoon();
  }

  /** Adds a component; answers its path. */
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

  /** Returns how a resource is called in messages. */
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

  /** Stores drafts in one commit; answers in words what was stored. */
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

  /** Opens a stored draft anew, with what was typed while it was sent. */
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

  /** Brings what others have saved into the open drafts, and notes where both sides changed the same. */
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

  /** Notes who made the other change. Where the feed does not reach back so far, the page tells who changed it last. */
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

  /** Looks at the status until the page has arrived where it was sent. */
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
      // The next look may succeed; a page that is gone shows at the next action.
    }
  }
}

async function readDraft(path: string): Promise<Draft> {
  const { value, tag } = await readTagged<Dialog>("/api/v1/dialog", { path });
  return new Draft(value, tag);
}

/** Returns which of the shown tabs holds a place of the form. */
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

/** Adds a node under a name that no sibling has. The tag sees to it that none gets that name meanwhile. */
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

/** Returns what stores a draft: its patch, under the condition of its tag, and the order of its lists. */
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

/** Whether a save was refused because others have saved: the document is another one, or gone, or the commits clash. */
function isStale(error: unknown): boolean {
  if (!(error instanceof ServerError)) return false;
  return error.status === 412 || error.status === 404 || (error.status === 409 && (error.problem.conflicts?.length ?? 0) > 0);
}
