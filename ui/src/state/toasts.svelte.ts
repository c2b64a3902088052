/**
 * Short messages about the results of actions. Errors stay until they are closed.
 */

export interface Toast {
  id: number;
  tone: "good" | "bad";
  title: string;
  detail: string;
}

/** The display time of a success message, in milliseconds. */
const SHOWN_MS = 6000;

class Toasts {
  list = $state<Toast[]>([]);
  #last = 0;

  good(title: string, detail = ""): void {
    const id = this.#add("good", title, detail);
    setTimeout(() => this.close(id), SHOWN_MS);
  }

  bad(title: string, detail = ""): void {
    this.#add("bad", title, detail);
  }

  close(id: number): void {
    this.list = this.list.filter((toast) => toast.id !== id);
  }

  #add(tone: Toast["tone"], title: string, detail: string): number {
    this.#last += 1;
    const id = this.#last;
    // Only the newest five are shown, so that they do not cover the screen.
    this.list = [...this.list.slice(-4), { id, tone, title, detail }];
    return id;
  }
}

export const toasts = new Toasts();
