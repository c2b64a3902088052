/**
 * Formats times for display. The current time is an argument.
 */
import { LANGUAGE, t } from "./language";

/** The formats of a language; made when first used, because the language is chosen after this module is loaded. */
function makeFormats() {
  return {
    relative: new Intl.RelativeTimeFormat(LANGUAGE, { numeric: "auto" }),
    sameYear: new Intl.DateTimeFormat(LANGUAGE, { day: "numeric", month: "short" }),
    otherYear: new Intl.DateTimeFormat(LANGUAGE, { day: "numeric", month: "short", year: "numeric" }),
    full: new Intl.DateTimeFormat(LANGUAGE, { dateStyle: "medium", timeStyle: "short" }),
    clock: new Intl.DateTimeFormat(LANGUAGE, { hour: "2-digit", minute: "2-digit" }),
  };
}
let made: ReturnType<typeof makeFormats> | null = null;
const formats = () => (made ??= makeFormats());

/** Returns a short form of a time: "5 minutes ago" within a week, else the date. */
export function shortTime(iso: string | null, now: Date): string {
  const time = parseTime(iso);
  if (!time) return "";
  const seconds = (time.getTime() - now.getTime()) / 1000;
  const distance = Math.abs(seconds);
  if (distance < 45) return t("just now");
  const { relative, sameYear, otherYear } = formats();
  if (distance < 3600) return relative.format(Math.round(seconds / 60), "minute");
  if (distance < 86_400) return relative.format(Math.round(seconds / 3600), "hour");
  if (distance < 7 * 86_400) return relative.format(Math.round(seconds / 86_400), "day");
  return (time.getFullYear() === now.getFullYear() ? sameYear : otherYear).format(time);
}

/** Returns a time with day, hour and minute. */
export function fullTime(iso: string | null): string {
  const time = parseTime(iso);
  return time ? formats().full.format(time) : "";
}

/** Returns the hour and minute of a time. */
export function clockText(iso: string | null): string {
  const time = parseTime(iso);
  return time ? formats().clock.format(time) : "";
}

/** Returns the value of an `<input type="datetime-local">` for a stored time, in the local time zone. */
export function toLocalInput(iso: string): string {
  const time = parseTime(iso);
  if (!time) return "";
  return `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())}T${two(time.getHours())}:${two(time.getMinutes())}`;
}

/** Returns the stored form of a local date and time: ISO 8601 with the local offset, as Sling expects it. */
export function fromLocalInput(local: string): string {
  const time = parseTime(local);
  if (!time) return local;
  const minutes = -time.getTimezoneOffset();
  const offset = `${minutes < 0 ? "-" : "+"}${two(Math.floor(Math.abs(minutes) / 60))}:${two(Math.abs(minutes) % 60)}`;
  return `${toLocalInput(local)}:00.000${offset}`;
}

function parseTime(text: string | null): Date | null {
  if (!text) return null;
  const time = new Date(text);
  return Number.isNaN(time.getTime()) ? null : time;
}

function two(number: number): string {
  return String(number).padStart(2, "0");
}
