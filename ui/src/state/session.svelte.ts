/**
 * The session of the current user.
 *
 * After a 401 response, the user is sent to the login page and returned afterwards. If the screen has unsaved changes,
 * a login dialog opens over the screen instead, and the refused request is sent again after login.
 */
import { onSignedOut, signIn, signOut, whoAmI } from "../server/client";
import { HOME, loginUrl } from "../route";
import { router } from "./router.svelte";

class Session {
  user = $state<string | null>(null);
  version = $state("");
  /** True if no policy restricts the user. The server checks every request anyway. */
  isAdministrator = $state(false);
  /** Set while the login dialog is open over a screen. */
  isExpired = $state(false);
  /** Returns true if the open screen has unsaved changes. */
  holdsChanges: () => boolean = () => false;

  #waiting: ((renewed: boolean) => void)[] = [];

  constructor() {
    onSignedOut(() => this.#renew());
  }

  /** Loads the current user from the server. */
  async load(): Promise<void> {
    const me = await whoAmI();
    this.user = me.user;
    this.version = me.version;
    this.isAdministrator = me.isAdministrator;
  }

  async signIn(user: string, password: string): Promise<void> {
    await signIn(user, password);
    await this.load();
    this.#settle(true);
  }

  async signOut(): Promise<void> {
    await signOut();
    this.user = null;
    await router.go(loginUrl(HOME));
  }

  /** Closes the login dialog without signing in; the refused requests fail. */
  abandon(): void {
    this.#settle(false);
  }

  /** Navigates to the login page, which returns to the current URL. */
  async toLogin(): Promise<void> {
    if (router.route.screen !== "login") await router.go(loginUrl(router.address));
  }

  async #renew(): Promise<boolean> {
    if (!this.holdsChanges()) {
      await this.toLogin();
      return false;
    }
    this.isExpired = true;
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  #settle(renewed: boolean): void {
    this.isExpired = false;
    for (const resolve of this.#waiting.splice(0)) resolve(renewed);
  }
}

export const session = new Session();
