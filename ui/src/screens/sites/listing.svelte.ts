/**
 * The children of one path, read page by page.
 *
 * Invariants
 * * Rows are read as the user comes near them. Sorting and filtering need all rows and read the rest first.
 * * An answer that belongs to an earlier path or reload is dropped.
 */
import { SvelteSet } from "svelte/reactivity";
import type { Crumb, PageItem, PageList } from "../../server/answers";
import { messageOf, read } from "../../server/client";
import { isSettling, pollPause } from "../../status";
import { arrange, type Sort } from "./order";

const FIRST = 100;
const REST = 500;

export class Listing {
  readonly path: string;
  title = $state("");
  crumbs = $state.raw<Crumb[]>([]);
  isPage = $state(false);
  items = $state.raw<PageItem[]>([]);
  total = $state(0);
  state = $state<"loading" | "ready" | "failed">("loading");
  problem = $state("");
  filter = $state("");
  sort = $state.raw<Sort | null>(null);
  readonly selected = new SvelteSet<string>();

  readonly rows = $derived(arrange(this.items, this.filter, this.sort));
  readonly chosen = $derived(this.items.filter((item) => this.selected.has(item.path)));
  readonly isComplete = $derived(this.items.length >= this.total);
  readonly needsAll = $derived(this.filter.trim() !== "" || this.sort !== null);

  #reading: Promise<void> | null = null;
  #turn = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(path: string) {
    this.path = path;
    // Until the server has told the titles, and where it cannot, the names lead the way.
    const names = path.split("/").filter(Boolean);
    this.crumbs = names.map((name, at) => ({ path: `/${names.slice(0, at + 1).join("/")}`, title: name }));
  }

  /** Reads the first rows, or after a change as many rows as are shown. */
  async load(): Promise<void> {
    const turn = (this.#turn += 1);
    const shown = this.items.length;
    try {
      let answer = await this.#ask(0, Math.max(FIRST, Math.min(shown, REST)));
      const items = answer.items;
      while (answer.items.length > 0 && items.length < Math.min(shown, answer.total) && turn === this.#turn) {
        answer = await this.#ask(items.length, REST);
        items.push(...answer.items);
      }
      if (turn !== this.#turn) return;
      this.#take({ ...answer, items }, []);
      this.state = "ready";
    } catch (error) {
      if (turn !== this.#turn) return;
      this.problem = messageOf(error);
      this.state = "failed";
    }
  }

  /** Reads the rows after the last one. */
  loadMore(limit = FIRST): Promise<void> {
    this.#reading ??= this.#append(limit).finally(() => (this.#reading = null));
    return this.#reading;
  }

  /** Reads every row that is missing. */
  async loadAll(): Promise<void> {
    while (!this.isComplete && this.state === "ready") await this.loadMore(REST);
  }

  /** Looks again and again while a shown page is on its way to publish. */
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
  }

  async #append(limit: number): Promise<void> {
    const turn = this.#turn;
    const before = this.items;
    try {
      const answer = await this.#ask(before.length, limit);
      if (turn !== this.#turn) return;
      // A list that ended early ends here, or an ever larger offset would be asked for.
      if (answer.items.length === 0) answer.total = before.length;
      this.#take(answer, before);
    } catch (error) {
      if (turn !== this.#turn) return;
      this.problem = messageOf(error);
      this.state = "failed";
    }
  }

  #ask(offset: number, limit: number): Promise<PageList> {
    return read<PageList>("/api/v1/pages", { path: this.path, offset, limit });
  }

  #take(answer: PageList, before: PageItem[]): void {
    const known = new Set(before.map((item) => item.path));
    this.items = [...before, ...answer.items.filter((item) => !known.has(item.path))];
    this.title = answer.title;
    this.crumbs = answer.crumbs;
    this.isPage = answer.type === "page";
    this.total = answer.total;
    const present = new Set(this.items.map((item) => item.path));
    for (const path of [...this.selected]) if (!present.has(path)) this.selected.delete(path);
  }
}
