/**
 * The children of one path: one slot per child, loaded as the user scrolls near it.
 *
 * Invariants
 * * In content order, any part of the list is loaded by its position, so that the end of 100,000 rows takes one
 *   request. By title or time the server sorts, and the list is loaded from its beginning.
 * * Filtering, and sorting by columns that the server cannot sort by, load all remaining rows first.
 * * A reload keeps the shown rows until the new ones arrive, and loads only the visible part.
 * * The response to a request for an earlier path, order or reload is dropped.
 */
import { SvelteSet } from "svelte/reactivity";
import type { Crumb, PageItem, PageList } from "../../server/answers";
import { withFacts } from "../../assets/find";
import { messageOf, read } from "../../server/client";
import { FIRST_ROWS } from "../../state/first_reads";
import { isSettling, pollPause } from "../../status";
import { arrange, serverSort, type Sort } from "./order";

/** The number of rows per request by position. */
const CHUNK = FIRST_ROWS;
/** The number of rows per request when all rows are needed. */
const MANY = 1000;
/** The maximum number of rows that are sorted in the browser once they are loaded. */
const FEW = 1000;

/** A slot of the list; `null` until its row is loaded. */
export type Slot = PageItem | null;

export class Listing {
  readonly path: string;
  title = $state("");
  crumbs = $state.raw<Crumb[]>([]);
  isPage = $state(false);
  slots = $state.raw<Slot[]>([]);
  state = $state<"loading" | "ready" | "failed">("loading");
  problem = $state("");
  filter = $state("");
  readonly selected = new SvelteSet<string>();
  #sort = $state.raw<Sort | null>(null);
  /** The sort order that the server applies to the slots; `null` for content order. */
  #order = $state.raw<string | null>(null);

  readonly items = $derived(this.slots.filter((slot) => slot !== null));
  readonly total = $derived(this.slots.length);
  readonly isComplete = $derived(this.items.length === this.slots.length);
  readonly needsAll = $derived(this.filter.trim() !== "" || (this.#sort !== null && this.#order === null));
  readonly rows: Slot[] = $derived(this.needsAll ? arrange(this.items, this.filter, this.#order === null ? this.#sort : null) : this.slots);
  readonly chosen = $derived(this.items.filter((item) => this.selected.has(item.path)));

  /** The chunks that were loaded or requested since the last reload. */
  #fresh = new Set<number>();
  /** In a list that the server sorts: the cursor of the next part, and the number of loaded rows. */
  #next: string | null = null;
  #filled = 0;
  #filling: Promise<void> | null = null;
  #view = { from: 0, to: CHUNK };
  #turn = 0;
  #begun: Promise<void> | null = null;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #burst: ReturnType<typeof setTimeout> | undefined;

  constructor(path: string) {
    this.path = path;
    // The breadcrumb shows names until the server has sent the titles, or if it cannot.
    const names = path.split("/").filter(Boolean);
    this.crumbs = names.map((name, at) => ({ path: `/${names.slice(0, at + 1).join("/")}`, title: name }));
  }

  get sort(): Sort | null {
    return this.#sort;
  }

  /** Sorts the list: in the browser if it is short and completely loaded, else on the server if it can. */
  set sort(sort: Sort | null) {
    this.#sort = sort;
    const isHere = this.isComplete && this.total <= FEW && this.#order === null;
    const order = sort === null || isHere ? null : serverSort(sort);
    if (order === this.#order) return;
    this.#order = order;
    // Rows that are not loaded cannot be shown as selected.
    this.selected.clear();
    this.slots = this.slots.map(() => null);
    void this.load();
  }

  /** Loads or reloads the visible rows. */
  load(): Promise<void> {
    this.#begun = this.#load();
    return this.#begun;
  }

  /** Resolves when the load that was begun last is over; begins one if there was none. */
  loaded(): Promise<void> {
    return this.#begun ?? this.load();
  }

  async #load(): Promise<void> {
    this.#turn += 1;
    this.#fresh.clear();
    [this.#next, this.#filled, this.#filling] = [null, 0, null];
    const { from, to } = this.#view;
    await this.#read(Math.min(from, Math.max(0, this.total - 1)), to);
    if (this.needsAll) await this.loadAll();
  }

  /** Loads the missing rows of a part of the list. */
  async ensure(from: number, to: number): Promise<void> {
    this.#view = { from, to };
    if (this.state === "ready") await this.#read(from, Math.min(to, this.total));
  }

  /** Loads all missing rows. */
  async loadAll(): Promise<void> {
    const turn = this.#turn;
    if (this.#order !== null) return this.#fill(this.total, MANY);
    while (turn === this.#turn && this.state === "ready") {
      const at = this.slots.indexOf(null);
      if (at < 0) return;
      await this.#take(at, MANY);
    }
  }

  /** Reloads soon, once a burst of changes is over. */
  refreshSoon(): void {
    clearTimeout(this.#burst);
    this.#burst = setTimeout(() => void this.load(), 400);
  }

  /** Reloads repeatedly while a shown page is in the replication queue. */
  watch(attempt = 0): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(async () => {
      if (!document.hidden) await this.load();
      if (this.items.some((item) => isSettling(item.status))) this.watch(attempt + 1);
    }, pollPause(attempt));
  }

  stop(): void {
    this.#turn += 1;
    clearTimeout(this.#timer);
    clearTimeout(this.#burst);
  }

  async #read(from: number, to: number): Promise<void> {
    if (this.#order !== null) return this.#fill(to, CHUNK);
    const missing: number[] = [];
    for (let chunk = Math.floor(from / CHUNK); chunk * CHUNK < Math.max(to, 1); chunk += 1) {
      if (!this.#fresh.has(chunk)) missing.push(chunk);
    }
    for (const chunk of missing) this.#fresh.add(chunk);
    await Promise.all(missing.map((chunk) => this.#take(chunk * CHUNK, CHUNK)));
  }

  /** Loads rows by their position. */
  async #take(offset: number, limit: number): Promise<void> {
    await this.#ask({ offset, limit }, (answer) => this.#put(offset, answer));
  }

  /** Loads rows of a list that the server sorts, until `wanted` rows are loaded. */
  async #fill(wanted: number, limit: number): Promise<void> {
    const turn = this.#turn;
    while (turn === this.#turn && (this.#filled < wanted || this.#filled === 0)) {
      if (this.#filled > 0 && this.#next === null) return;
      this.#filling ??= this.#fillOne(limit).finally(() => (this.#filling = null));
      await this.#filling;
      if (this.state === "failed" || this.total === 0) return;
    }
  }

  async #fillOne(limit: number): Promise<void> {
    const after = this.#next ?? undefined;
    await this.#ask({ sort: this.#order ?? undefined, after, limit }, (answer) => {
      this.#put(this.#filled, answer);
      this.#filled += answer.items.length;
      this.#next = answer.next ?? null;
    });
  }

  async #ask(parameters: Record<string, string | number | undefined>, take: (answer: PageList) => void): Promise<void> {
    const turn = this.#turn;
    try {
      const answer = await read<PageList>("/api/v1/pages", { path: this.path, ...parameters });
      if (answer.items.some(({ type }) => type === "asset")) answer.items = await withFacts(answer.items);
      if (turn !== this.#turn) return;
      take(answer);
      this.state = "ready";
    } catch (error) {
      if (turn !== this.#turn) return;
      this.problem = messageOf(error);
      this.state = "failed";
    }
  }

  #put(offset: number, answer: PageList): void {
    // A list that ends before its total is truncated there; otherwise the missing rows would be requested forever.
    const isShort = answer.items.length === 0 && offset < answer.total;
    const total = isShort ? offset : answer.total;
    const slots = this.slots.slice(0, total);
    while (slots.length < total) slots.push(null);
    answer.items.forEach((item, at) => {
      if (offset + at < total) slots[offset + at] = item;
    });
    const isGone = slots.length < this.slots.length || slots.some((slot, at) => slot?.path !== this.slots[at]?.path);
    this.slots = slots;
    this.title = answer.title;
    this.crumbs = answer.crumbs;
    this.isPage = answer.type === "page";
    if (isGone) this.#forgetGone();
  }

  /** Removes rows from the selection that are no longer in the list. */
  #forgetGone(): void {
    if (this.selected.size === 0 || !this.isComplete) return;
    const present = new Set(this.items.map((item) => item.path));
    for (const path of [...this.selected]) if (!present.has(path)) this.selected.delete(path);
  }
}
