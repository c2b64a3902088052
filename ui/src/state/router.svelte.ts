/**
 * The current URL, and functions that change it.
 *
 * A screen with unsaved changes sets `guard`, which is called before every navigation. For closing the tab, the browser
 * asks itself (`beforeunload`).
 */
import { launchOf, parseRoute, stayInLaunch, type Route } from "../route";
import { forgetAhead, useBranch } from "../server/client";

/** Applies the launch of a URL to all links and requests. */
function enter(url: URL): URL {
  stayInLaunch(launchOf(url));
  useBranch(launchOf(url));
  return url;
}

class Router {
  #url = $state.raw(enter(new URL(location.href)));
  readonly route: Route = $derived(parseRoute(this.#url));
  /** The launch of the current URL. */
  readonly launch: string | null = $derived(launchOf(this.#url));

  /** Resolves to true if the screen may be left. */
  guard: (() => Promise<boolean>) | null = null;

  get address(): string {
    return this.#url.pathname + this.#url.search;
  }

  /** Navigates to a URL of this UI, unless the guard refuses. */
  async go(address: string): Promise<void> {
    if (this.guard && !(await this.guard())) return;
    history.pushState(null, "", address);
    forgetAhead();
    this.#take();
    scrollTo(0, 0);
  }

  /** Changes the URL of the same screen, without a new history entry. */
  replace(address: string): void {
    if (address === this.address) return;
    history.replaceState(null, "", address);
    this.#take();
  }

  /** Handles the browser's back and forward buttons, and plain clicks on links to screens of this UI. */
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
    // The browser has already navigated: restore the old URL until the guard has answered.
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
