/**
 * The reads with which a view opens. They are sent as one request while the view's script is loaded.
 */
import type { Route } from "../route";
import { address } from "../server/client";
import { parentPath } from "../server/post";

/** The number of rows with which a listing opens. */
export const FIRST_ROWS = 100;
/** The log file with which the logs open. */
export const FIRST_LOG = "request.log";

/** Returns the addresses of the reads of a view; none if it needs no session. */
export function firstReads(route: Route): string[] {
  if (route.screen === "login" || route.screen === "missing") return [];
  return [address("/api/v1/me", {}), ...readsOf(route)];
}

function readsOf(route: Route): string[] {
  switch (route.screen) {
    case "sites":
      return listingOf(route.path);
    case "editor": {
      // The cursor comes first, so that no change after the page was read is missed.
      const opened = route.component === null ? [] : [address("/api/v1/dialog", { path: route.component })];
      return [
        address("/api/v1/changes", { since: "now" }),
        address("/api/v1/page", { path: route.path }),
        address("/api/v1/dialog", { path: `${route.path}/jcr:content` }),
        ...opened,
      ];
    }
    case "versions": {
      const sides = { from: route.from ?? undefined, to: route.to ?? undefined };
      return [
        address("/api/v1/privileges", { path: route.path }),
        address("/api/v1/versions", { path: route.path }),
        address("/api/v1/versions/diff", { path: route.path, ...sides }),
      ];
    }
    case "queue":
      return [address("/api/v1/queue", {})];
    case "permissions":
      return [address("/api/v1/permissions", { path: route.path })];
    case "workflows":
      return [address("/api/v1/workflows/inbox", {}), address("/api/v1/workflows/models", {}), address("/api/v1/workflows/failures", {})];
    case "launches":
      return route.name === null ? [address("/api/v1/branches", {})] : [address("/api/v1/branches/diff", { name: route.name, details: true, limit: 2000 })];
    case "users":
      if (route.name !== null) return [address(`/api/v1/${route.kind}`, { name: route.name })];
      return [address(`/api/v1/${route.kind}s`, { limit: FIRST_ROWS })];
    case "packages":
      return [address("/api/v1/packages", {})];
    case "mounts":
      return [address("/api/v1/assets/mounts", {})];
    case "operations":
      return [address(`/api/v1/operations/${route.view}`, route.view === "logs" ? { file: FIRST_LOG } : {})];
    case "assets":
      if (!route.isDetail) return listingOf(route.path);
      return [
        ...listingOf(parentPath(route.path)),
        address("/api/v1/privileges", { path: route.path }),
        address("/api/v1/nodes", { path: route.path, depth: 4 }),
      ];
    default:
      return [];
  }
}

/** The reads of a listing: what the user may do there, and its first rows. */
function listingOf(path: string): string[] {
  return [address("/api/v1/privileges", { path }), address("/api/v1/pages", { path, offset: 0, limit: FIRST_ROWS })];
}
