/**
 * Data that a screen loads from the server, with its state: loading, ready or failed.
 *
 * Invariants
 * * The response to an earlier request is dropped.
 * * A reload keeps the current value until the new response arrives.
 */
import { messageOf } from "../server/client";

export class Loader<T> {
  state = $state<"loading" | "ready" | "failed">("loading");
  value = $state.raw<T | null>(null);
  problem = $state("");
  #turn = 0;

  /** Loads the value. `isNew` clears the current value immediately. */
  async load(ask: () => Promise<T>, isNew = false): Promise<void> {
    const turn = (this.#turn += 1);
    if (isNew) {
      this.value = null;
      this.state = "loading";
    }
    try {
      const value = await ask();
      if (turn !== this.#turn) return;
      this.value = value;
      this.state = "ready";
    } catch (error) {
      if (turn !== this.#turn) return;
      this.problem = messageOf(error);
      this.state = "failed";
    }
  }
}
