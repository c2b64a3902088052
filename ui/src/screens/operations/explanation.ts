/**
 * The conclusion of an explanation: whether visitors get an address from the cache, and if not, why.
 */
import { t } from "../../language";
import type { Tone } from "../../status";
import type { Explanation } from "./answers";

export interface Conclusion {
  tone: Tone;
  /** One sentence; the server's reason follows it. */
  sentence: string;
  reason: string;
}

/** Returns the conclusion; the reasons are the dispatcher's own words. */
export function conclude(explanation: Explanation): Conclusion {
  const { rules, filter, cache, state } = explanation;
  if (filter.startsWith("denied")) return { tone: "bad", sentence: t("Visitors are refused."), reason: filter };
  const uncached = /^not cacheable: (.*)$/.exec(cache);
  if (uncached) return { tone: "warn", sentence: t("This address is not cached: each request goes to the publisher."), reason: uncached[1] ?? "" };
  if (cache === "not consulted") return { tone: "neutral", sentence: t("The cache is not asked."), reason: rules ?? filter };
  if (state?.startsWith("fresh")) return { tone: "good", sentence: t("Visitors get this address from the cache."), reason: state };
  if (state?.startsWith("absent")) return { tone: "busy", sentence: t("This address can be cached, but is not in the cache now."), reason: state };
  return { tone: "busy", sentence: t("This address is cached, and is fetched again with the next request."), reason: state ?? cache };
}
