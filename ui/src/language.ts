/**
 * The language of the UI: its texts, dates and numbers.
 *
 * Texts are written in English in the code, and the English text is the key of its translation. `chooseLanguage` is
 * called once, before the UI is mounted; a change of the language reloads the page. Two languages are for tests: `pseudo`
 * shows longer texts in brackets, and `marked` puts every message between two invisible characters, so that whatever is
 * outside of them is either content or a text that cannot be translated.
 *
 * On failure: a text without a translation is shown in English.
 */

export type Language = "en" | "de" | "pseudo" | "marked";

const KEY = "tympan.language";
const loaders: Partial<Record<Language, () => Promise<{ default: Record<string, string> }>>> = { de: () => import("./language/de") };

let texts: Record<string, string> = {};

/** The language of the UI's texts. Dates and numbers are formatted in it, so that no text mixes two languages. */
export let LANGUAGE = "en";
/** The chosen language. */
export let language: Language = "en";

/** Loads the texts of the user's language: the one chosen in this browser, else the browser's first known one. */
export async function chooseLanguage(): Promise<void> {
  language = storedLanguage() ?? preferredLanguage();
  LANGUAGE = language === "de" ? "de" : "en";
  document.documentElement.lang = LANGUAGE;
  try {
    texts = (await loaders[language]?.())?.default ?? {};
  } catch {
    // The texts could not be loaded: the UI works in English.
    [language, LANGUAGE] = ["en", "en"];
  }
}

/** Stores another language and reloads the UI in it. */
export function switchLanguage(next: Language): void {
  try {
    localStorage.setItem(KEY, next);
  } catch {
    // Without storage, the browser's language stays.
  }
  location.reload();
}

/** Returns a text in the UI's language. `{name}` in it is replaced by the value of this name. */
export function t(text: string, values: Record<string, string | number> = {}): string {
  const translated = language === "pseudo" ? pseudoText(text) : (texts[text] ?? text);
  const filled = translated.replace(/\{(\w+)\}/g, (all, name: string) => String(values[name] ?? all));
  return language === "marked" ? `\u200b${filled}\u00ad` : filled;
}

/** Marks a text of a table as a message. It is translated with `t` where it is shown, as the language is chosen later. */
export function message(text: string): string {
  return text;
}

/** Returns the form of a text for a count: `one` for one, else `other`; `{count}` is replaced by the count. */
export function tn(count: number, one: string, other: string, values: Record<string, string | number> = {}): string {
  const form = new Intl.PluralRules(LANGUAGE).select(count) === "one" ? one : other;
  return t(form, { count: countText(count), ...values });
}

/** Returns a count with thousands separators: `12,345`. */
export function countText(count: number): string {
  return count.toLocaleString(LANGUAGE);
}

/** Returns a list in words: "a, b and c". */
export function listText(items: string[]): string {
  return new Intl.ListFormat(LANGUAGE, { type: "conjunction" }).format(items);
}

/** Returns a text in brackets, with accents and a third longer, as translations often are. */
export function pseudoText(text: string): string {
  const accents: Record<string, string> = { a: "á", e: "é", i: "í", o: "ó", u: "ú", A: "Á", E: "É", I: "Í", O: "Ó", U: "Ú", c: "ç", n: "ñ" };
  const marked = text.replace(/\{\w+\}|./gs, (part) => (part.length > 1 ? part : (accents[part] ?? part)));
  return `⟦${marked}${"~".repeat(Math.ceil(text.length / 3))}⟧`;
}

function storedLanguage(): Language | null {
  try {
    const stored = localStorage.getItem(KEY);
    return stored === "en" || stored === "de" || stored === "pseudo" || stored === "marked" ? stored : null;
  } catch {
    return null;
  }
}

function preferredLanguage(): Language {
  const known = navigator.languages.map((one) => one.slice(0, 2)).find((one) => one === "en" || one === "de");
  return known === "de" ? "de" : "en";
}
