/**
 * Saves edits as they are typed: shortly after each change, and again by itself when the server could not be reached.
 *
 * Invariants
 * * One save at a time; changes during a save are saved by the next one.
 * * A save that the server refused for its content is not repeated until the next change.
 * * Switched off, nothing is saved until the user asks for it.
 */
import { messageOf, ServerError } from "../../server/client";

/** The time without a change after which a save begins, in milliseconds. */
const PAUSE_MS = 700;
/** The longest time that a change waits while the user keeps typing, in milliseconds. */
const LONGEST_MS = 4000;
/** The delay of the first attempt after a failed one, in milliseconds; it doubles up to the longest. */
const RETRY_MS = 2000;
const LONGEST_RETRY_MS = 30_000;
const KEY = "tympan.autosave";

export class AutoSave {
  /** The message of the last attempt, if it failed. */
  trouble = $state<string | null>(null);
  /** True while the server cannot be reached; saving is tried again by itself. */
  isCutOff = $state(false);
  isOn = $state(isSwitchedOn());

  #save: () => Promise<unknown>;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #since: number | null = null;
  #failures = 0;
  #isOpen = true;
  #onLine = () => this.isCutOff && void this.now();

  /** `save` stores all changes; it rejects if that failed. */
  constructor(save: () => Promise<unknown>) {
    this.#save = save;
    addEventListener("online", this.#onLine);
  }

  /** Notes a change. */
  touch(): void {
    if (!this.isOn || !this.#isOpen) return;
    this.#since ??= Date.now();
    this.#failures = 0;
    this.#wait(Math.max(0, Math.min(PAUSE_MS, this.#since + LONGEST_MS - Date.now())));
  }

  /** Saves what was changed, without waiting for a pause. */
  async now(): Promise<void> {
    clearTimeout(this.#timer);
    this.#since = null;
    try {
      await this.#save();
      this.#settle();
    } catch (error) {
      this.#fail(error);
    }
  }

  /** Ends the trouble of an earlier attempt, after a save that the user asked for. */
  #settle(): void {
    this.trouble = null;
    this.isCutOff = false;
    this.#failures = 0;
  }

  switch(isOn: boolean): void {
    this.isOn = isOn;
    try {
      localStorage.setItem(KEY, isOn ? "on" : "off");
    } catch {
      // Without storage, the choice lasts until the page is closed.
    }
    if (isOn) this.touch();
    else clearTimeout(this.#timer);
  }

  /** Notes that a save by the user succeeded. */
  saved(): void {
    clearTimeout(this.#timer);
    this.#since = null;
    this.#settle();
  }

  stop(): void {
    this.#isOpen = false;
    clearTimeout(this.#timer);
    removeEventListener("online", this.#onLine);
  }

  #fail(error: unknown): void {
    this.trouble = messageOf(error);
    const status = error instanceof ServerError ? error.status : 400;
    this.isCutOff = status === 0 || status === 429 || status >= 500;
    if (!this.isCutOff || !this.#isOpen) return;
    this.#wait(Math.min(RETRY_MS * 2 ** this.#failures, LONGEST_RETRY_MS));
    this.#failures += 1;
  }

  #wait(pause: number): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => void this.now(), pause);
  }
}

function isSwitchedOn(): boolean {
  try {
    return localStorage.getItem(KEY) !== "off";
  } catch {
    return true;
  }
}
