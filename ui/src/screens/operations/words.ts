/**
 * Quantities in words, and the state of queues.
 */
import { LANGUAGE, t, tn } from "../../language";
import type { Tone } from "../../status";
import type { JobQueue } from "./answers";

/** Returns a size in the largest unit in which it is at least 1. */
export function sizeText(bytes: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const at = Math.min(units.length - 1, bytes < 1 ? 0 : Math.floor(Math.log2(bytes) / 10));
  const number = bytes / 1024 ** at;
  return `${number.toLocaleString(LANGUAGE, { maximumFractionDigits: number < 10 && at > 0 ? 1 : 0 })} ${units[at]}`;
}

/** Returns a duration with one unit: "340 ms", "2.5 s", "3 min", "5 h", "2 d". */
export function durationText(ms: number): string {
  const of = (value: number, unit: string) => `${value.toLocaleString(LANGUAGE, { maximumFractionDigits: value < 10 ? 1 : 0 })} ${unit}`;
  if (ms < 1000) return of(ms, "ms");
  if (ms < 60_000) return of(ms / 1000, "s");
  if (ms < 3_600_000) return of(ms / 60_000, "min");
  if (ms < 172_800_000) return of(ms / 3_600_000, "h");
  return of(ms / 86_400_000, "d");
}

/** Returns a percentage: "97.3 %". */
export function percentText(percent: number): string {
  return `${percent.toLocaleString(LANGUAGE, { maximumFractionDigits: 1 })} %`;
}

export interface StateWords {
  tone: Tone;
  label: string;
  /** One sentence. */
  sentence: string;
}

/** Returns the state of a queue in words. */
export function queueWords(queue: JobQueue): StateWords {
  const waiting = tn(queue.queued, "{count} job waits", "{count} jobs wait");
  if (queue.paused) {
    const sentence = queue.queued > 0 ? t("{waiting} until somebody resumes the queue.", { waiting }) : t("No job starts until somebody resumes the queue.");
    return { tone: "warn", label: t("Paused"), sentence };
  }
  if (queue.active > 0) {
    const sentence = tn(queue.active, "{count} job runs; {waiting}.", "{count} jobs run; {waiting}.", { waiting });
    return { tone: "busy", label: t("Running"), sentence };
  }
  if (queue.queued > 0) return { tone: "busy", label: t("Waiting"), sentence: t("{waiting} for a process that handles them.", { waiting }) };
  if (queue.givenUp > 0) return { tone: "bad", label: t("Failed"), sentence: tn(queue.givenUp, "{count} job failed for good.", "{count} jobs failed for good.") };
  return { tone: "good", label: t("Idle"), sentence: t("Nothing waits.") };
}
