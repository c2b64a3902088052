/**
 * Questions that must be answered before something is done: one at a time, answered by a dialog.
 */

export interface Question {
  title: string;
  text: string;
  /** What is affected, one line each. */
  subjects?: string[];
  /** The label of the button that says yes. */
  action: string;
  isDangerous?: boolean;
  /** A third way out, e.g. "Save first". */
  alternative?: string;
}

export type Answer = "yes" | "alternative" | "no";

class Questions {
  open = $state<Question | null>(null);
  #resolve: ((answer: Answer) => void) | null = null;

  /** Asks, and resolves with the answer. A second question takes the place of an open one, which is answered "no". */
  ask(question: Question): Promise<Answer> {
    this.answer("no");
    this.open = question;
    return new Promise((resolve) => (this.#resolve = resolve));
  }

  async confirm(question: Question): Promise<boolean> {
    return (await this.ask(question)) === "yes";
  }

  answer(answer: Answer): void {
    this.open = null;
    this.#resolve?.(answer);
    this.#resolve = null;
  }
}

export const questions = new Questions();
