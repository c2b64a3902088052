/**
 * Short messages about the results of actions. Errors stay until they are closed.
 */

export interface Toast {
  id: number;
  tone: "good" | "bad";
  title: string;
  detail: string;
  /** A button in the message, e.g. to undo what it tells. */
  action: ToastAction | null;
}

export interface ToastAction {
  label: string;
  act: () => void;
}

/** The display time of a success message, in milliseconds. */
const SHOWN_MS = 6000;

class Toasts {
  list = $state<Toast[]>([]);
  #last = 0;

  good(title: string, detail = "", action: ToastAction | null = null): void {
    const id = this.#add("good", title, detail, action);
    setTimeout(() => this.close(id), SHOWN_MS);
  }

  bad(title: string, detail = ""): void {
    this.#add("bad", title, detail, null);
  }

  close(id: number): void {
    this.list = this.list.filter((toast) => toast.id !== id);
  }

  #add(tone: Toast["tone"], title: string, detail: string, action: ToastAction | null): number {
    this.#last += 1;
    const id = this.#last;
    // Only the newest five are shown, so that they do not cover the screen.
    this.list = [...this.list.slice(-4), { id, tone, title, detail, action }];
    return id;
  }
}

export const toasts = new Toasts();
