/**
 * Changes of content as they happen: one stream of server-sent events per screen, as long as its tab is in view.
 *
 * Invariants
 * * No change is missed between two connections: each begins behind the last event of the one before.
 * * A tab in the background holds no connection, since a browser opens few to one server. In view again, it hears what
 *   it has missed.
 *
 * On failure: a stream that the server refuses is asked for again after a pause; where its cursor is lost, the screen
 * is told to read everything again.
 */
import type { Revision } from "../server/answers";
import { address } from "../server/client";
import { newestCursor } from "../server/changes";

export interface Follower {
  /** Paths or patterns (see the guide of the change feed). */
  paths: string[];
  /** Called for each revision that changed something there. */
  onchange: (revision: Revision) => void;
  /** Called when changes may have been missed. */
  onlost: () => void;
}

const PAUSE_MS = 5000;

/** Follows the changes of some paths until the answered function is called. */
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
      // The browser connects again by itself, unless the server has refused.
      if (stream.readyState !== EventSource.CLOSED) return;
      shut();
      timer = setTimeout(() => void again(), PAUSE_MS);
    });
  }

  /** A refused stream is one whose login has ended or whose cursor is lost; asking by hand tells the two apart. */
  async function again(): Promise<void> {
    if (isOver) return;
    try {
      const now = await newestCursor();
      if (isOver) return;
      cursor = now;
      onlost();
    } catch {
      // The server is still away; the next attempt asks again.
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
