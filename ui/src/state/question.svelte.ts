/**
 * Confirmation questions, shown one at a time in a dialog.
 */

export interface Question {
  title: string;
  text: string;
  /** The affected items, one line each. */
  subjects?: string[];
  /** The label of the confirm button. */
  action: string;
  isDangerous?: boolean;
  /** The label of a third button, e.g. "Save first". */
  alternative?: string;
}

export type Answer = "yes" | "alternative" | "no";

class Questions {
  open = $state<Question | null>(null);
  #resolve: ((answer: Answer) => void) | null = null;

  /** Asks a question and resolves with the answer. A second question replaces an open one, which is answered "no". */
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
