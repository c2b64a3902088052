/**
 * The form in which a console shows its list: the user's choice, stored in this browser.
 */

export type ViewKind = "list" | "cards" | "columns";

export class ViewChoice {
  chosen = $state<ViewKind>("list");
  readonly #key: string;

  constructor(console: string, initial: ViewKind) {
    this.#key = `tympan.view.${console}`;
    this.chosen = this.#stored() ?? initial;
  }

  choose(view: ViewKind): void {
    this.chosen = view;
    try {
      localStorage.setItem(this.#key, view);
    } catch {
      // Without storage, the choice lasts until the page is closed.
    }
  }

  #stored(): ViewKind | null {
    try {
      const stored = localStorage.getItem(this.#key);
      return stored === "list" || stored === "cards" || stored === "columns" ? stored : null;
    } catch {
      return null;
    }
  }
}
