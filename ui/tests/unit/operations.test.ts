import { describe, expect, it } from "vitest";
import type { Flame } from "../../src/screens/operations/answers";
import { axisEnd, bars, flameBoxes, flatten } from "../../src/screens/operations/chart";
import { BOX, layOut } from "../../src/screens/operations/diagram";
import { durationText, sizeText } from "../../src/screens/operations/words";

function flame(name: string, value: number, children: Flame[] = []): Flame {
  return { name, path: "/", calls: 1, value, self: value - children.reduce((sum, child) => sum + child.value, 0), reads: 0, queries: 0, children };
}

describe("a flame graph", () => {
  const page = flame("a/page.html", 100, [flame("a/list.html", 60, [flame("a/teaser.html", 60)]), flame("a/footer.html", 20)]);

  it("gives each component its share of the width, below its caller", () => {
    const boxes = flameBoxes([page], 200, 20).map(({ flame: { name }, x, y, width, text }) => [name, x, y, width, text]);
    expect(boxes).toEqual([
      ["a/page.html", 0, 0, 199, "a/page.html"],
      ["a/list.html", 0, 20, 119, "a/list.html"],
      ["a/teaser.html", 0, 40, 119, "a/teaser.html"],
      ["a/footer.html", 120, 20, 39, "a/…"],
    ]);
  });

  it("lists components by their own time", () => expect(flatten([page]).map(({ name }) => name.slice(2, 6))).toEqual(["teas", "page", "foot", "list"]));

  it("is empty without times", () => expect(flameBoxes([flame("a", 0)], 100, 20)).toEqual([]));
});

describe("a chart", () => {
  it("fills its height with the highest value", () =>
    expect(bars([0, 5, 10], 30, 100).map(({ y, height }) => [y, height])).toEqual([[100, 0], [50, 50], [0, 100]]));
  it("ends its axis at a round value", () => expect([0, 1, 3, 41, 900].map(axisEnd)).toEqual([1, 1, 5, 50, 1000]));
});

describe("quantities", () => {
  it("are told in the unit in which they are short", () => {
    expect([340.4, 2500, 90_000, 5 * 3_600_000, 4 * 86_400_000].map(durationText)).toEqual(["340 ms", "2.5 s", "1.5 min", "5 h", "4 d"]);
    expect([0, 1023, 1536, 48_200_000, 3 * 2 ** 40].map(sizeText)).toEqual(["0 B", "1,023 B", "1.5 KiB", "46 MiB", "3 TiB"]);
  });
});

describe("a diagram of a workflow model", () => {
  const step = (name: string, type = "PROCESS") => ({ name, title: name, type });
  const way = (from: string, to: string) => ({ from, to, rule: null });

  it("puts each step below all that lead to it, also in a loop", () => {
    const model = { steps: [step("e", "END"), step("s", "START"), step("a"), step("b"), step("lost")], transitions: [way("s", "a"), way("s", "b"), way("a", "b"), way("b", "e"), way("b", "a")] };
    const { boxes, lines } = layOut(model);
    const rows = Object.fromEntries(boxes.map(({ step: { name }, y }) => [name, Math.round(y / (BOX.height + 34))]));
    expect(rows).toEqual({ s: 0, a: 1, b: 2, e: 3, lost: 4 });
    expect(lines.map(({ isBack }) => isBack)).toEqual([false, false, false, false, true]);
  });

  it("leaves out transitions of missing steps", () => expect(layOut({ steps: [step("s", "START")], transitions: [way("s", "gone")] }).lines).toEqual([]));
});
