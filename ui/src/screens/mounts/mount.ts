/**
 * What is to say about a mount: its state, what its last pass did, and what somebody should look at.
 */
import type { Mount, Pass } from "../../server/answers";

export interface View {
  label: string;
  tone: "good" | "warn" | "bad" | "busy" | "neutral";
}

/** Returns the state of a mount in a word. */
export function stateOf(mount: Mount): View {
  if (mount.job?.state === "ACTIVE") return { label: "Running", tone: "busy" };
  if (mount.last?.failure) return { label: "Failed", tone: "bad" };
  if (mount.last && mount.last.heldBack > 0) return { label: "Needs a decision", tone: "bad" };
  if (mount.paused) return { label: "Paused", tone: "warn" };
  if (mount.job) return { label: "Waiting", tone: "busy" };
  return mount.last ? { label: "In step", tone: "good" } : { label: "Not yet run", tone: "neutral" };
}

/** Returns what a pass did, without what it did not do. */
export function passText(pass: Pass): string {
  const parts: [number, string][] = [
    [pass.added, "added"],
    [pass.changed, "changed"],
    [pass.moved, "moved"],
    [pass.removed, "removed"],
    [pass.settling, "still being written"],
    [pass.skipped, "left out"],
  ];
  const told = parts.filter(([count]) => count > 0).map(([count, word]) => `${count} ${word}`);
  return told.length === 0 ? "nothing changed" : told.join(", ");
}

/** Returns how often a mount is looked at, in words. */
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
