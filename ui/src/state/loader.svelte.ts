/**
 * Something that is read from the server for a screen: on its way, there, or refused.
 *
 * Invariants
 * * An answer that belongs to an earlier question is dropped.
 * * A reload keeps what is shown until the new answer is there.
 */
import { messageOf } from "../server/client";

export class Loader<T> {
  state = $state<"loading" | "ready" | "failed">("loading");
  value = $state.raw<T | null>(null);
  problem = $state("");
  #turn = 0;

  /** Asks; `isNew` forgets at once what was there. */
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
