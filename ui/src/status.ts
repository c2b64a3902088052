/**
 * What a page's status means, what can be done in it, and how it is shown.
 */
import type { Status } from "./server/answers";

export type Tone = "neutral" | "good" | "busy" | "warn" | "bad";

export interface StatusView {
  label: string;
  tone: Tone;
  /** The meaning in one sentence. */
  meaning: string;
}

const VIEWS: Record<Status, StatusView> = {
  draft: { label: "Draft", tone: "neutral", meaning: "Never activated: visitors do not see it." },
  modified: { label: "Modified", tone: "warn", meaning: "Changed since its last activation: visitors see the earlier state." },
  live: { label: "Live", tone: "good", meaning: "Visitors see it as it is here." },
  deactivated: { label: "Deactivated", tone: "neutral", meaning: "Taken off: visitors do not see it any more." },
  queued: { label: "In queue", tone: "busy", meaning: "On its way to publish." },
  failed: { label: "Failed", tone: "bad", meaning: "The last activation did not reach publish; the queue says why." },
};

/** Returns how a status is shown. A status this version does not know is shown by its own name. */
export function statusView(status: Status): StatusView {
  return VIEWS[status] ?? { label: status, tone: "neutral", meaning: "" };
}

/** Whether visitors may see some state of the page, so that deactivating it has an effect. */
export function canDeactivate(status: Status): boolean {
  return status === "live" || status === "modified" || status === "failed" || status === "queued";
}

/** Whether the status changes by itself soon, so that asking again is worth it. */
export function isSettling(status: Status): boolean {
  return status === "queued";
}

/** Returns the pause before the `attempt`-th look at a settling status, in milliseconds: 1 s, then ever longer, up to 15 s. */
export function pollPause(attempt: number): number {
  return Math.min(1000 * 1.5 ** attempt, 15_000);
}
