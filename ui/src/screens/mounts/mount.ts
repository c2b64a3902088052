/**
 * Texts about a mount: its state, the result of its last run, and its interval.
 */
import type { Mount, Pass } from "../../server/answers";

export interface View {
  label: string;
  tone: "good" | "warn" | "bad" | "busy" | "neutral";
}

/** Returns the label and tone of a mount's state. */
export function stateOf(mount: Mount): View {
  if (mount.job?.state === "ACTIVE") return { label: "Running", tone: "busy" };
  if (mount.last?.failure) return { label: "Failed", tone: "bad" };
  if (mount.last && mount.last.heldBack > 0) return { label: "Confirmation needed", tone: "bad" };
  if (mount.paused) return { label: "Paused", tone: "warn" };
  if (mount.job) return { label: "Waiting", tone: "busy" };
  return mount.last ? { label: "Up to date", tone: "good" } : { label: "Not run yet", tone: "neutral" };
}

/** Returns a summary of a run, without counts that are zero. */
export function passText(pass: Pass): string {
  const parts: [number, string][] = [
    [pass.added, "added"],
    [pass.changed, "changed"],
    [pass.moved, "moved"],
    [pass.removed, "removed"],
    [pass.settling, "still being written"],
    [pass.skipped, "skipped"],
  ];
  const told = parts.filter(([count]) => count > 0).map(([count, word]) => `${count} ${word}`);
  return told.length === 0 ? "no changes" : told.join(", ");
}

/** Returns the interval of a mount as text. */
export function periodText(seconds: number): string {
  const units: [number, string][] = [
    [86_400, "day"],
    [3600, "hour"],
    [60, "minute"],
    [1, "second"],
  ];
  const [size, unit] = units.find(([size]) => seconds >= size && seconds % size === 0) ?? [1, "second"];
  const count = seconds / size;
  return count === 1 ? `every ${unit}` : `every ${count} ${unit}s`;
}
