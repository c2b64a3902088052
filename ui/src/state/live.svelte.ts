/**
 * Changes of content in real time: one stream of server-sent events per screen, while its tab is visible.
 *
 * Invariants
 * * No change is missed between two connections: each starts after the last event of the previous one.
 * * A tab in the background holds no connection, since browsers limit the connections per server. When it is visible
 *   again, it receives the missed changes.
 *
 * On failure: a stream that the server refuses is requested again after a delay; if its cursor is no longer valid, the
 * screen is told to reload everything.
 */
import type { Revision } from "../server/answers";
import { address } from "../server/client";
import { newestCursor } from "../server/changes";

export interface Follower {
  /** Paths or patterns (see the guide of the change feed). */
  paths: string[];
  /** Called for each revision that changed something at these paths. */
  onchange: (revision: Revision) => void;
  /** Called when changes may have been missed. */
  onlost: () => void;
}

const PAUSE_MS = 5000;

/** Follows the changes of some paths until the returned function is called. */
export function follow({ paths, onchange, onlost }: Follower, since: string | null = null): () => void {
  let cursor = since;
  let source: EventSource | null = null;
  let timer: ReturnType<typeof setTimeout> | undefined;
  let isOver = false;

  function open(): void {
    if (isOver || source || document.hidden) return;
    const stream = new EventSource(address("/api/v1/changes", { path: paths, since: cursor ?? "now" }));
    source = stream;
    const keep = (event: MessageEvent) => (cursor = event.lastEventId || cursor);
    stream.addEventListener("begin", keep);
    stream.addEventListener("place", keep);
    stream.addEventListener("change", (event: MessageEvent<string>) => {
      keep(event);
      onchange(JSON.parse(event.data) as Revision);
    });
    stream.addEventListener("error", () => {
      // The browser reconnects by itself, unless the server refused the request.
      if (stream.readyState !== EventSource.CLOSED) return;
      shut();
      timer = setTimeout(() => void again(), PAUSE_MS);
    });
  }

  /** A stream is refused if the session has expired or the cursor is invalid; a separate request tells which. */
  async function again(): Promise<void> {
    if (isOver) return;
    try {
      const now = await newestCursor();
      if (isOver) return;
      cursor = now;
      onlost();
    } catch {
      // The server is still unavailable; the next attempt tries again.
    }
    open();
  }

  function shut(): void {
    clearTimeout(timer);
    source?.close();
    source = null;
  }

  const onView = () => (document.hidden ? shut() : open());
  document.addEventListener("visibilitychange", onView);
  open();
  return () => {
    isOver = true;
    document.removeEventListener("visibilitychange", onView);
    shut();
  };
}
