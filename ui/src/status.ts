/**
 * The status of a page: its label, its meaning and the actions that it allows.
 */
import { message, t } from "./language";
import type { Status } from "./server/answers";

export type Tone = "neutral" | "good" | "busy" | "warn" | "bad";

export interface StatusView {
  label: string;
  tone: Tone;
  /** The meaning in one sentence. */
  meaning: string;
}

/** The texts in English, which are the keys of their translations. */
const VIEWS: Record<Status, StatusView> = {
  draft: { label: message("Draft"), tone: "neutral", meaning: message("Never published. Not visible to visitors.") },
  modified: { label: message("Modified"), tone: "warn", meaning: message("Changed since it was published. Visitors see the published state.") },
  live: { label: message("Live"), tone: "good", meaning: message("Visitors see the current state.") },
  deactivated: { label: message("Unpublished"), tone: "neutral", meaning: message("Unpublished. No longer visible to visitors.") },
  queued: { label: message("In queue"), tone: "busy", meaning: message("Waiting to be sent to publish.") },
  failed: { label: message("Failed"), tone: "bad", meaning: message("The last publication did not reach the website. See the queue for the reason.") },
};

/** Returns the label and tone of a status. An unknown status is shown by its own name. */
export function statusView(status: Status): StatusView {
  const view = VIEWS[status];
  return view ? { ...view, label: t(view.label), meaning: t(view.meaning) } : { label: status, tone: "neutral", meaning: "" };
}

/** Returns true if visitors may see some state of the page, so that unpublishing it has an effect. */
export function canDeactivate(status: Status): boolean {
  return status === "live" || status === "modified" || status === "failed" || status === "queued";
}

/** Returns true if the status is expected to change soon without user action, so that polling it is useful. */
export function isSettling(status: Status): boolean {
  return status === "queued";
}

/** Returns the delay before the `attempt`-th poll of a settling status, in milliseconds: 1 s, increasing up to 15 s. */
export function pollPause(attempt: number): number {
  return Math.min(1000 * 1.5 ** attempt, 15_000);
}
