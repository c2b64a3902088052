/** The mock's revisions: who changed what, as the change feed tells it, and the entity tags of pages. */

/** Notes a commit and tells those who follow. */
export function commit(state, user, changes, message = null) {
  const sequence = state.revisions.length + 1;
  const revision = {
    sequence,
    time: new Date().toISOString(),
    user,
    message,
    root: String(sequence),
    cursor: cursorOf(sequence),
    changes: changes.map((one) => ({ kind: "changed", from: null, type: "nt:unstructured", properties: [], ...one })),
  };
  state.revisions.push(revision);
  for (const client of state.clients) send(client, revision);
  return revision;
}

/** Returns the tag of the page that holds a path: the number of the last revision that changed it. */
export function tagOf(state, path) {
  const page = path.split("/jcr:content")[0];
  const isIts = (one) => one.path.split("/jcr:content")[0] === page;
  const last = state.revisions.findLast(({ changes }) => changes.some(isIts));
  return `"${last?.sequence ?? 0}.x"`;
}

const cursorOf = (sequence) => `${sequence}-${"0".repeat(64)}`;

const numberOf = (state, cursor) => (cursor === "now" ? state.revisions.length : cursor === "oldest" ? 0 : Number.parseInt(cursor, 10));

/** Returns the JSON of `GET /api/v1/changes`. */
export function revisionsSince(state, query) {
  const revisions = state.revisions.slice(numberOf(state, query.get("since") ?? "now"));
  const shown = revisions.map((one) => wanted(one, query.getAll("path"))).filter(Boolean);
  return { revisions: shown, next: cursorOf(state.revisions.length), root: "x", isEnd: true };
}

/** Answers `GET /api/v1/changes` with events for as long as the connection lasts. */
export function follow(state, query, request, response) {
  const since = numberOf(state, request.headers["last-event-id"] ?? query.get("since") ?? "now");
  const paths = query.getAll("path");
  // Who left while the answer was on its way is never told of closing again.
  if (response.destroyed) return;
  response.writeHead(200, { "Content-Type": "text/event-stream", "Cache-Control": "no-store" });
  response.write(`id: ${cursorOf(since)}\nevent: begin\ndata: {}\n\n`);
  const client = { response, paths };
  for (const revision of state.revisions.slice(since)) send(client, revision);
  state.clients.add(client);
  response.on("close", () => state.clients.delete(client));
}

function send({ response, paths }, revision) {
  const shown = wanted(revision, paths);
  if (shown) response.write(`id: ${shown.cursor}\nevent: change\ndata: ${JSON.stringify(shown)}\n\n`);
}

function wanted(revision, paths) {
  const isWanted = (path) => paths.length === 0 || paths.some((one) => matches(one, path));
  const changes = revision.changes.filter(({ path }) => isWanted(path));
  return changes.length > 0 ? { ...revision, changes } : null;
}

function matches(pattern, path) {
  if (!pattern.includes("*")) return path === pattern || path.startsWith(`${pattern}/`);
  const expression = pattern
    .split(/(\*\*|\*)/)
    .map((part) => (part === "**" ? ".*" : part === "*" ? "[^/]*" : part.replace(/[.+?^${}()|[\]\\]/g, "\\$&")))
    .join("");
  return new RegExp(`^${expression}$`).test(path);
}
