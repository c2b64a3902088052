/**
 * Texts about a mount: its state, the result of its last run, and its interval.
 */
import { t, tn } from "../../language";
import type { Mount, Pass } from "../../server/answers";

export interface View {
  label: string;
  tone: "good" | "warn" | "bad" | "busy" | "neutral";
}

/** Returns the label and tone of a mount's state. */
export function stateOf(mount: Mount): View {
  if (mount.job?.state === "ACTIVE") return { label: t("Running"), tone: "busy" };
  if (mount.last?.failure) return { label: t("Failed"), tone: "bad" };
  if (mount.last && mount.last.heldBack > 0) return { label: t("Confirmation needed"), tone: "bad" };
  if (mount.paused) return { label: t("Paused"), tone: "warn" };
  if (mount.job) return { label: t("Waiting"), tone: "busy" };
  return mount.last ? { label: t("Up to date"), tone: "good" } : { label: t("Not run yet"), tone: "neutral" };
}

/** Returns a summary of a run, without counts that are zero. */
export function passText(pass: Pass): string {
  const parts: [number, string][] = [
    [pass.added, t("added")],
    [pass.changed, t("changed")],
    [pass.moved, t("moved")],
    [pass.removed, t("removed")],
    [pass.settling, t("still being written")],
    [pass.skipped, t("skipped")],
  ];
  const told = parts.filter(([count]) => count > 0).map(([count, word]) => `${count} ${word}`);
  return told.length === 0 ? t("no changes") : told.join(", ");
}

/** Returns the interval of a mount as text. */
export function periodText(seconds: number): string {
  const isWhole = (size: number) => seconds >= size && seconds % size === 0;
  if (isWhole(86_400)) return tn(seconds / 86_400, "every day", "every {count} days");
  if (isWhole(3600)) return tn(seconds / 3600, "every hour", "every {count} hours");
  if (isWhole(60)) return tn(seconds / 60, "every minute", "every {count} minutes");
  return tn(seconds, "every second", "every {count} seconds");
}
