/** The language of the UI's texts. Dates and numbers inside them follow it, so that no text mixes two languages. */
export const LANGUAGE = "en";

/** Returns a count as it is shown: `12,345`. */
export function countText(count: number): string {
  return count.toLocaleString(LANGUAGE);
}
