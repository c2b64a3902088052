import { describe, expect, it } from "vitest";
import { pseudoText } from "../../src/language";
import german from "../../src/language/de";

const sources = import.meta.glob<string>(["../../src/**/*.svelte", "../../src/**/*.ts", "!../../src/language/**"], { query: "?raw", import: "default", eager: true });
const TEXT = /"((?:[^"\\]|\\.)*)"/;
const CALLS = [
  new RegExp(`\\bt\\(\\s*${TEXT.source}`, "g"),
  new RegExp(`\\? t\\(${TEXT.source}`, "g"),
  new RegExp(`\\bwords: ${TEXT.source}`, "g"),
  new RegExp(`\\btn\\(\\s*[^,]+,\\s*${TEXT.source},\\s*${TEXT.source}`, "g"),
];

/** Returns the texts of the code that are translated, each with the file that has it. */
function usedTexts(): Map<string, string> {
  const found = new Map<string, string>();
  for (const [file, source] of Object.entries(sources)) {
    // Comments show examples of texts.
    const code = source.replace(/\/\*[^]*?\*\//g, "");
    for (const call of CALLS) for (const [, ...texts] of code.matchAll(call)) for (const text of texts) if (text) found.set(text, file);
  }
  return found;
}

const placeholders = (text: string) => [...text.matchAll(/\{\w+\}/g)].map(([name]) => name).sort();

describe("the German texts", () => {
  it("are complete", () => {
    const missing = [...usedTexts()].filter(([text]) => !(text in german)).map(([text, file]) => `${file}: ${text}`);
    expect(missing).toEqual([]);
  });

  it("have the placeholders of the English ones, in any order", () => {
    for (const [english, text] of Object.entries(german)) expect(placeholders(text), english).toEqual(placeholders(english));
  });
});

describe("a pseudo-text", () => {
  it("is marked and longer, and keeps its placeholders", () => {
    expect(pseudoText("Moved {name} to {path}")).toBe("⟦Móvéd {name} tó {path}~~~~~~~~⟧");
  });
});
