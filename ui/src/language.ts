/** The language of the UI's texts. Dates and numbers are formatted in it, so that no text mixes two languages. */
export const LANGUAGE = "en";

/** Returns a count with thousands separators: `12,345`. */
export function countText(count: number): string {
  return count.toLocaleString(LANGUAGE);
}
