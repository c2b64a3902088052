import { describe, expect, it } from "vitest";
import { passText, periodText, stateOf } from "../../src/screens/mounts/mount";
import type { Mount, Pass } from "../../src/server/answers";

const pass: Pass = {
  ended: "2026-01-01T00:00:00Z",
  failure: null,
  added: 0,
  changed: 0,
  moved: 0,
  removed: 0,
  unchanged: 9,
  settling: 0,
  heldBack: 0,
  skipped: 0,
  skippedFiles: [],
};
const mount: Mount = {
  name: "press",
  source: "/srv/press",
  target: "/content/dam/press",
  period: 300,
  paused: false,
  nextRun: null,
  files: 9,
  job: null,
  last: pass,
};

describe("the state of a mount", () => {
  const running = { state: "ACTIVE", done: 1, total: 2, message: "reading" };
  const states: [Partial<Mount>, string][] = [
    [{}, "Up to date"],
    [{ last: null }, "Not run yet"],
    [{ paused: true }, "Paused"],
    [{ job: { ...running, state: "QUEUED" } }, "Waiting"],
    [{ paused: true, last: { ...pass, failure: "no route to host" } }, "Failed"],
    [{ last: { ...pass, heldBack: 12 } }, "Confirmation needed"],
    [{ job: running, last: { ...pass, failure: "no route to host" } }, "Running"],
  ];
  for (const [change, expected] of states) {
    it(`is \`${expected}\``, () => expect(stateOf({ ...mount, ...change }).label).toBe(expected));
  }
});

describe("words", () => {
  it("tell what a pass did, and nothing else", () => {
    expect(passText(pass)).toBe("no changes");
    expect(passText({ ...pass, added: 4, removed: 1, skipped: 2 })).toBe("4 added, 1 removed, 2 skipped");
  });
  it("tell periods in their largest unit", () => {
    expect([1, 90, 300, 3600, 7200, 86_400].map(periodText)).toEqual([
      "every second",
      "every 90 seconds",
      "every 5 minutes",
      "every hour",
      "every 2 hours",
      "every day",
    ]);
  });
});
