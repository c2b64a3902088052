/**
 * The current address, and the ways to change it.
 *
 * A screen with unsaved changes sets `guard`; every way out of the screen asks it first. Leaving the tab is asked
 * by the browser itself (`beforeunload`).
 */
import { launchOf, parseRoute, stayInLaunch, type Route } from "../route";
import { useBranch } from "../server/client";

/** Makes links and requests stay in the launch of an address. */
function enter(url: URL): URL {
  stayInLaunch(launchOf(url));
  useBranch(launchOf(url));
  return url;
}

class Router {
  #url = $state.raw(enter(new URL(location.href)));
  readonly route: Route = $derived(parseRoute(this.#url));
  /** The launch that the address is about. */
  readonly launch: string | null = $derived(launchOf(this.#url));

  /** Answers whether the screen may be left. */
  guard: (() => Promise<boolean>) | null = null;

  get address(): string {
    return this.#url.pathname + this.#url.search;
  }

  /** Goes to an address of this UI, unless the guard objects. */
  async go(address: string): Promise<void> {
    if (this.guard && !(await this.guard())) return;
    history.pushState(null, "", address);
    this.#take();
    scrollTo(0, 0);
  }

  /** Changes the address of the same screen, without a new entry in the history. */
  replace(address: string): void {
    if (address === this.address) return;
    history.replaceState(null, "", address);
    this.#take();
  }

  /** Follows the browser's back and forward buttons, and plain clicks on links to screens of this UI. */
  listen(): () => void {
    const onPop = () => void this.#pop();
    const onClick = (event: MouseEvent) => this.#click(event);
    addEventListener("popstate", onPop);
    document.addEventListener("click", onClick);
    return () => {
      removeEventListener("popstate", onPop);
      document.removeEventListener("click", onClick);
    };
  }

  #take(): void {
    this.#url = enter(new URL(location.href));
  }

  async #pop(): Promise<void> {
    const target = location.pathname + location.search;
    if (!this.guard) return this.#take();
    // The browser has moved already: stand still on the old address until the guard has answered.
    history.pushState(null, "", this.address);
    await this.go(target);
  }

  #click(event: MouseEvent): void {
    if (event.defaultPrevented || event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    const link = (event.target as Element | null)?.closest?.("a");
    if (!link || link.target || link.hasAttribute("download") || link.origin !== location.origin) return;
    const screen = parseRoute(new URL(link.href)).screen;
    if (screen === "missing" || screen === "login") return;
    event.preventDefault();
    void this.go(link.pathname + link.search);
  }
}

export const router = new Router();
