/**
 * A page while it is edited: what the server knows of it, and the drafts of everything opened so far.
 *
 * Invariants
 * * A draft is given up only when it is stored, discarded, or its component is deleted.
 * * What is typed while a save runs stays in the form and counts as unsaved.
 *
 * On failure: a save stops at the first refused write; what was stored before it is stored, the rest stays a draft.
 */
import { SvelteMap } from "svelte/reactivity";
import { Draft } from "../../form/draft.svelte";
import { isWithin } from "../../form/check";
import { fieldLabel, sameValue } from "../../form/value";
import type { ComponentItem, Dialog, PageDetail } from "../../server/answers";
import { create, messageOf, read, write } from "../../server/client";
import { activate, createComponent, deactivate, remove, reorder, type Place } from "../../server/post";
import { isSettling, pollPause } from "../../status";
import { componentName, findRow, type Spot } from "./tree";

/** How a save ended. */
export type SaveOutcome =
  { kind: "nothing" } | { kind: "saved"; summary: string } | { kind: "invalid"; path: string; place: string; tab: number };

export class PageEdit {
  readonly path: string;
  page = $state.raw<PageDetail | null>(null);
  problem = $state("");
  isBusy = $state(false);
  /** Counts the changes that the preview has to show. */
  edition = $state(0);
  readonly drafts = new SvelteMap<string, Draft>();
  readonly unread = new SvelteMap<string, string>();

  readonly changed = $derived([...this.drafts.values()].filter((draft) => draft.isChanged));

  #isOpen = true;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(path: string) {
    this.path = path;
  }

  async load(): Promise<void> {
    try {
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
    const drafts = this.changed;
    if (drafts.length === 0) return { kind: "nothing" };
    for (const draft of drafts) {
      const place = draft.check();
      if (place !== null) return { kind: "invalid", path: draft.dialog.path, place, tab: tabOf(draft.dialog, place) };
    }
    return this.#busy(async () => {
      const saved: string[] = [];
      for (const draft of drafts) {
        saved.push(`${this.nameOf(draft.dialog)}: ${draft.changed.map(fieldLabel).join(", ")}`);
        await this.#store(draft);
      }
      await this.#refresh();
      return { kind: "saved", summary: saved.join(" · ") };
    });
  }

  discard(): void {
    for (const draft of this.changed) draft.discard();
  }

  /** Adds a component; answers its path. */
  add(resourceType: string, spot: Spot): Promise<string> {
    return this.#busy(async () => {
      const path = await create(spot.parent, createComponent(resourceType, spot.place));
      await this.#refresh();
      return path;
    });
  }

  delete(item: ComponentItem): Promise<void> {
    return this.#busy(async () => {
      await write(item.path, remove());
      for (const path of [...this.drafts.keys()]) {
        if (path === item.path || path.startsWith(`${item.path}/`)) this.drafts.delete(path);
      }
      await this.#refresh();
    });
  }

  move(item: ComponentItem, place: Place): Promise<void> {
    return this.#busy(async () => {
      await write(item.path, reorder(place));
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

  async #store(draft: Draft): Promise<void> {
    const { path } = draft.dialog;
    const sent = { ...draft.values };
    const steps = draft.steps();
    await write(path, draft.pairs());
    for (const step of steps) await write(step.path, reorder(step.place));
    const stored = await readDraft(path);
    for (const [name, value] of Object.entries(draft.values)) {
      if (!sameValue(value, sent[name])) stored.set(name, value);
    }
    this.drafts.set(path, stored);
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
  return new Draft(await read<Dialog>("/api/v1/dialog", { path }));
}

/** Returns which of the shown tabs holds a place of the form. */
function tabOf(dialog: Dialog, place: string): number {
  const shown = dialog.tabs.filter((tab) => tab.fields.some((field) => field.kind !== "hidden"));
  return Math.max(
    0,
    shown.findIndex((tab) => tab.fields.some((field) => isWithin(place, field.name))),
  );
}
