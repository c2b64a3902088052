import { describe, expect, it } from "vitest";
import { listOf, readSources } from "../../scripts/messages.mjs";
import { pseudoText } from "../../src/language";
import german from "../../src/language/de";
import list from "../../src/language/en.json?raw";

const { messages, literals } = readSources();
const placeholders = (text: string) => [...text.matchAll(/\{\w+\}/g)].map(([name]) => name).sort();

describe("the texts of the interface", () => {
  it("are messages", () => expect(literals).toEqual([]));

  it("are all in the list that `npm run messages` writes", () => {
    expect(listOf(messages)).toBe(list);
  });

  it("say publish and unpublish for what the manual calls activate and deactivate", () => {
    const words = [...messages.keys(), ...Object.values(german)].map((text) => text.replace(/\/[\w/]+/g, ""));
    expect(words.filter((text) => /activat|replicat|aktivier|repliz/i.test(text))).toEqual([]);
  });
});

describe("the German texts", () => {
  it("are complete, and none is left over", () => {
    const missing = [...messages].filter(([text]) => !(text in german)).map(([text, file]) => `${file}: ${text}`);
    expect(missing).toEqual([]);
    expect(Object.keys(german).filter((text) => !messages.has(text))).toEqual([]);
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
