/**
 * Presence: tells the server that a page is open here, and learns who else has it open.
 *
 * On failure: nobody is shown. An author without this endpoint is not asked again.
 */
import { ServerError, sendTo } from "../server/client";

export interface PresentEditor {
  user: string;
  since: string;
}

/** The delay of the first report, so that the page itself is loaded first, and the interval of the others. */
const FIRST_MS = 2500;
const PERIOD_MS = 20_000;

/** Reports a page as open until the returned function is called. `onchange` gets the other editors. */
export function reportPresence(path: string, tab: () => string, onchange: (editors: PresentEditor[]) => void): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  let isOver = false;
  let hasReported = false;

  async function report(): Promise<void> {
    if (isOver) return;
    if (!document.hidden && tab() !== "") {
      try {
        const { editors } = await sendTo<{ editors: PresentEditor[] }>("POST", "/api/v1/presence", { path, tab: tab() });
        hasReported = true;
        if (!isOver) onchange(editors);
      } catch (error) {
        if (error instanceof ServerError && error.status >= 400 && error.status < 500) return;
      }
    }
    if (!isOver) timer = setTimeout(() => void report(), PERIOD_MS);
  }

  function leave(): void {
    if (!hasReported) return;
    hasReported = false;
    void sendTo("POST", "/api/v1/presence", { path, tab: tab(), leaving: true }).catch(() => {
      // The server forgets an editor that is silent.
    });
  }

  timer = setTimeout(() => void report(), FIRST_MS);
  addEventListener("pagehide", leave);
  return () => {
    isOver = true;
    clearTimeout(timer);
    removeEventListener("pagehide", leave);
    leave();
  };
}
