/**
 * The state of an agent's queue in words: what is stuck, since when, and what helps.
 */
import { t, tn } from "../../language";
import type { Agent, QueueItem } from "../../server/answers";
import { shortTime } from "../../time";

export interface QueueReport {
  tone: "neutral" | "good" | "busy" | "bad";
  label: string;
  /** One sentence per fact. */
  sentences: string[];
}

/** Returns the report of an agent. */
export function queueReport(agent: Agent, now: Date): QueueReport {
  const refused = agent.items.filter(({ state }) => isRefused(state));
  const waiting = agent.items.filter(({ state }) => !isRefused(state));
  const refusals = refused.length === 0 ? [] : [refusalText(refused)];
  if (!agent.enabled) {
    const text = waiting.length === 0 ? t("This agent is switched off.") : tn(waiting.length, "This agent is switched off: {count} item waits until somebody switches it on.", "This agent is switched off: {count} items wait until somebody switches it on.");
    return { tone: "neutral", label: t("Disabled"), sentences: [text, ...refusals] };
  }
  if (agent.blocked !== null) return { tone: "bad", label: t("Blocked"), sentences: [...blockedTexts(waiting, now), ...refusals] };
  if (waiting.length > 0) {
    const text = tn(waiting.length, "{count} item is being sent.", "{count} items are being sent, one after the other.");
    return { tone: "busy", label: t("Sending"), sentences: [text, ...refusals] };
  }
  if (refused.length > 0) return { tone: "bad", label: t("Refused"), sentences: refusals };
  return { tone: "good", label: t("Idle"), sentences: [t("Everything was sent.")] };
}

/** Returns what an item does, in words: "Publish /content/site/en". */
export function itemName(item: QueueItem): string {
  return [actionName(item.action), item.path].filter(Boolean).join(" ") || t("item {id}", { id: item.id });
}

export function actionName(action: string | null): string {
  return action === "Activate" ? t("Publish") : action === "Deactivate" ? t("Unpublish") : (action ?? "");
}

/** Returns the state of an item in words. */
export function itemState(state: string): string {
  const names: Record<string, string> = {
    HELD: t("is being stored"),
    DELAYED: t("waits for the next attempt"),
    QUEUED: t("waits for its turn"),
    ACTIVE: t("is being sent"),
    GIVEN_UP: t("refused"),
    ERROR: t("refused"),
  };
  return names[state] ?? state;
}

function blockedTexts(waiting: QueueItem[], now: Date): string[] {
  const [first] = waiting;
  if (!first) return [t("The target cannot be reached. Nothing waits for it.")];
  const values = { name: itemName(first), time: shortTime(first.created, now), count: first.attempt };
  const attempt =
    first.attempt > 0
      ? tn(first.attempt, "“{name}”, requested {time}, was tried once without success.", "“{name}”, requested {time}, was tried {count} times without success.", values)
      : t("“{name}”, requested {time}, cannot be sent.", values);
  const behind = waiting.length - 1;
  const rest = behind === 0 ? [] : [tn(behind, "{count} more item waits behind it, since the order is kept.", "{count} more items wait behind it, since the order is kept.")];
  return [attempt, ...rest, t("It is tried again by itself, without limit. Visitors see the earlier state until then.")];
}

function refusalText(refused: QueueItem[]): string {
  const [first] = refused;
  const name = first ? itemName(first) : "";
  return tn(
    refused.length,
    "“{name}” was refused and is not tried again. Correct what the reason says, then retry it.",
    "{count} items were refused and are not tried again, the first “{name}”. Correct what the reasons say, then retry them.",
    { name },
  );
}

function isRefused(state: string): boolean {
  return state === "GIVEN_UP" || state === "ERROR";
}
