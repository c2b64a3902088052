/**
 * What a publication of a page takes along, and its times.
 */
import { t } from "../../language";
import { companionsOf } from "../../parts/companions";
import type { Companion, NodeAnswer, PageDetail } from "../../server/answers";
import { read } from "../../server/client";

/** What a page needs and has, when its activation is planned. */
export interface PublicationNeeds {
  companions: Companion[];
  /** The stored times at which the page appears and vanishes; null for none. */
  onTime: string | null;
  offTime: string | null;
}

/** Loads what the page refers to, and its times. A time that has passed counts as none. */
export async function needsOf(page: PageDetail): Promise<PublicationNeeds> {
  const [companions, content] = await Promise.all([
    companionsOf([page.path]),
    page.onTime === undefined ? read<NodeAnswer>("/api/v1/nodes", { path: page.content.path }) : null,
  ]);
  const stored = (name: "onTime" | "offTime") => (content ? textOf(content, name) : (page[name] ?? null));
  return { companions, onTime: pending(stored("onTime")), offTime: pending(stored("offTime")) };
}

/** Returns the proposal for a later activation: the next day, at eight in the morning. */
export function nextMorning(now: Date): Date {
  const morning = new Date(now);
  morning.setDate(morning.getDate() + 1);
  morning.setHours(8, 0, 0, 0);
  return morning;
}

/** Returns what is wrong with the times of an activation, or `null`. */
export function timesProblem(onTime: Date | null, offTime: Date | null, now: Date): string | null {
  if (onTime !== null && Number.isNaN(onTime.getTime())) return t("Enter the day and time of publication.");
  if (offTime !== null && Number.isNaN(offTime.getTime())) return t("Enter the day and time of the end.");
  if (onTime !== null && onTime <= now) return t("This time has passed. Choose a later one, or “Now”.");
  if (offTime !== null && offTime <= (onTime ?? now)) return t("The end must be after the publication.");
  return null;
}

function pending(time: string | null): string | null {
  return time !== null && new Date(time) > new Date() ? time : null;
}

function textOf(node: NodeAnswer, name: string): string | null {
  const value = node.properties[name]?.value;
  return value === undefined ? null : String(value);
}
