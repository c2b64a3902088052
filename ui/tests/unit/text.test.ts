import { describe, expect, it } from "vitest";
import { readable, textRuns, valueText } from "../../src/form/text";

const shown = (before: string, after: string) =>
  textRuns(before, after)
    .map(({ kind, text }) => (kind === "same" ? text : kind === "removed" ? `[-${text}]` : `[+${text}]`))
    .join("");

describe("differences of texts", () => {
  const cases: [before: string, after: string, shown: string][] = [
    ["", "", ""],
    ["same words", "same words", "same words"],
    ["", "new", "[+new]"],
    ["old", "", "[-old]"],
    ["a quick fox", "a slow fox", "a [-quick][+slow] fox"],
    ["one two three", "one three", "one [-two ]three"],
    ["one three", "one two three", "one [+two ]three"],
    ["Zürich, 9:10", "Zürich, 9:15", "Zürich, 9:[-10][+15]"],
    ["Night train to Lisbon", "Spring title", "[-Night train to Lisbon][+Spring title]"],
    ["a b c d e f", "a x c y e f", "a [-b][+x] c [-d][+y] e f"],
  ];
  for (const [before, after, expected] of cases) it(`\`${before}\` to \`${after}\``, () => expect(shown(before, after)).toBe(expected));

  it("hold both texts whole, for any two texts", () => {
    const letters = ["a", "b", " ", "c", "\n", "ü", "."];
    let seed = 7;
    const next = (most: number) => (seed = (seed * 1103515245 + 12345) % 2147483648) % most;
    for (let round = 0; round < 500; round += 1) {
      const make = () => Array.from({ length: next(30) }, () => letters[next(letters.length)]).join("");
      const [before, after] = [make(), make()];
      const runs = textRuns(before, after);
      const side = (not: string) => runs.filter(({ kind }) => kind !== not).map(({ text }) => text).join("");
      expect(side("added")).toBe(before);
      expect(side("removed")).toBe(after);
    }
  });

  it("end for texts that have nothing in common", () => {
    const [before, after] = ["a ".repeat(5000), "b ".repeat(5000)];
    expect(textRuns(before, after).length).toBeGreaterThan(0);
  });
});

describe("texts to read", () => {
  it("are the words of HTML, block by block", () => {
    expect(readable("<p>A &amp; B</p><ul><li>one</li><li>two&nbsp;x</li></ul>")).toBe("A & B\none\ntwo x");
    expect(readable("1 < 2 & 3")).toBe("1 < 2 & 3");
    expect(readable("<p>&#8364; &#x41;</p>")).toBe("€ A");
  });
  it("name choices, and say yes and no", () => {
    expect(valueText({ name: "n", kind: "select", options: [{ value: "h1", text: "Large" }] }, "h1")).toBe("Large");
    expect(valueText({ name: "n", kind: "checkbox" }, false)).toBe("No");
    expect(valueText({ name: "n", kind: "multi", field: { name: "n", kind: "text" } }, ["a", "b"])).toBe("a\nb");
  });
});
