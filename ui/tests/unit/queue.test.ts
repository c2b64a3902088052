import { describe, expect, it } from "vitest";
import { queueReport } from "../../src/screens/queue/queue";
import type { Agent, QueueItem } from "../../src/server/answers";

const NOW = new Date("2026-11-30T12:00:00Z");
const item = (more: Partial<QueueItem> = {}): QueueItem => ({
  id: 1,
  action: "Activate",
  path: "/content/a",
  user: "ada",
  created: "2026-11-30T11:30:00Z",
  attempt: 0,
  lastError: null,
  state: "QUEUED",
  ...more,
});
const agent = (items: QueueItem[], more: Partial<Agent> = {}): Agent => ({
  name: "publish",
  title: "Publish",
  target: "",
  enabled: true,
  blocked: null,
  queued: items.length,
  items,
  ...more,
});

describe("the report of a queue", () => {
  it("says what is stuck, since when, and what waits behind it", () => {
    const report = queueReport(agent([item({ attempt: 3, state: "DELAYED" }), item(), item()], { blocked: "connection refused" }), NOW);
    expect(report).toMatchObject({ tone: "bad", label: "Blocked" });
    expect(report.sentences).toEqual([
      "“Publish /content/a”, requested 30 minutes ago, was tried 3 times without success.",
      "2 more items wait behind it, since the order is kept.",
      "It is tried again by itself, without limit. Visitors see the earlier state until then.",
    ]);
  });

  it("says that a refused item needs somebody, although later ones go on", () => {
    const report = queueReport(agent([item({ state: "GIVEN_UP" })]), NOW);
    expect(report).toEqual({ tone: "bad", label: "Refused", sentences: ["“Publish /content/a” was refused and is not tried again. Correct what the reason says, then retry it."] });
    expect(queueReport(agent([item({ state: "GIVEN_UP" }), item()]), NOW).label).toBe("Sending");
  });

  it("says that nothing is sent by an agent that is switched off", () => {
    expect(queueReport(agent([item(), item()], { enabled: false }), NOW).sentences).toEqual(["This agent is switched off: 2 items wait until somebody switches it on."]);
    expect(queueReport(agent([], { enabled: false }), NOW).sentences).toEqual(["This agent is switched off."]);
  });

  it("is quiet when everything was sent", () => {
    expect(queueReport(agent([]), NOW)).toEqual({ tone: "good", label: "Idle", sentences: ["Everything was sent."] });
  });
});
