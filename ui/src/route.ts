/**
 * The URLs of the UI: converts a URL to a [`Route`] and back.
 *
 * Every state that users may want to share has a URL.
 */

export type Panel = "page" | "components";

export type Route =
  | { screen: "login"; resource: string; reason: string | null }
  | { screen: "sites"; path: string }
  | { screen: "assets"; path: string; isDetail: boolean; find: Record<string, string> }
  | { screen: "editor"; path: string; panel: Panel; component: string | null }
  | { screen: "queue" }
  | { screen: "versions"; path: string; from: string | null; to: string | null }
  | { screen: "permissions"; path: string }
  | { screen: "launches"; name: string | null }
  | { screen: "users"; kind: "user" | "group"; name: string | null }
  | { screen: "packages" }
  | { screen: "mounts" }
  | { screen: "workflows"; show: "inbox" | "models" | "failed" }
  | { screen: "operations"; view: OperationsView }
  | { screen: "search"; text: string; path: string; type: string; facets: Record<string, string> }
  | { screen: "missing"; address: string };

/** The views for administrators, in the order of their navigation. */
export const OPERATIONS_VIEWS = ["jobs", "workflows", "replication", "caches", "performance", "backup", "health", "logs", "maintenance", "configuration"] as const;
export type OperationsView = (typeof OPERATIONS_VIEWS)[number];

/** The parameters by which assets are searched. */
export const ASSET_FILTERS = ["words", "kind", "orientation", "size", "days", "tag", "state"] as const;

/** The parameters by which the hits of a search are narrowed. */
export const SEARCH_FACETS = ["template", "tag", "state", "days"] as const;

/** The default URL. */
export const HOME = "/sites.html/content";

/** Returns the route of a URL. */
export function parseRoute(url: URL): Route {
  const path = decodePath(url.pathname);
  const query = url.searchParams;
  if (path === "/login.html") return { screen: "login", resource: safeResource(query.get("resource")), reason: query.get("reason") };
  if (path === "/queue.html") return { screen: "queue" };
  if (path === "/packages.html") return { screen: "packages" };
  if (path === "/mounts.html") return { screen: "mounts" };
  if (path === "/operations.html" || path.startsWith("/operations.html/")) {
    const view = OPERATIONS_VIEWS.find((one) => path === operationsUrl(one)) ?? "jobs";
    return { screen: "operations", view };
  }
  if (path === "/workflows.html") {
    const show = query.get("show");
    return { screen: "workflows", show: show === "models" || show === "failed" ? show : "inbox" };
  }
  if (path === "/search.html") {
    const facets = Object.fromEntries(SEARCH_FACETS.flatMap((name) => (query.get(name) ? [[name, query.get(name) ?? ""]] : [])));
    return { screen: "search", text: query.get("text") ?? "", path: query.get("path") ?? "", type: query.get("type") ?? "", facets };
  }
  if (path === "/assets.html" || path.startsWith("/assets.html/")) {
    const find = Object.fromEntries(ASSET_FILTERS.flatMap((name) => (query.get(name) ? [[name, query.get(name) ?? ""]] : [])));
    return { screen: "assets", path: trimSlash(path.slice("/assets.html".length)) || "/content/dam", isDetail: query.get("show") === "detail", find };
  }
  if (path === "/users.html") return { screen: "users", kind: query.get("show") === "groups" ? "group" : "user", name: null };
  const account = /^\/users\.html\/(user|group)\/(.+)$/.exec(path);
  if (account) return { screen: "users", kind: account[1] as "user" | "group", name: account[2] ?? null };
  if (path === "/launches.html") return { screen: "launches", name: null };
  if (path.startsWith("/launches.html/")) return { screen: "launches", name: path.slice("/launches.html/".length) };
  if (path.startsWith("/permissions.html/")) return { screen: "permissions", path: trimSlash(path.slice("/permissions.html".length)) };
  if (path.startsWith("/versions.html/")) {
    return { screen: "versions", path: trimSlash(path.slice("/versions.html".length)), from: query.get("from"), to: query.get("to") };
  }
  if (path === "/sites.html") return { screen: "sites", path: "/content" };
  if (path.startsWith("/sites.html/")) return { screen: "sites", path: trimSlash(path.slice("/sites.html".length)) };
  if (path.startsWith("/editor.html/")) {
    const component = query.get("component");
    const panel = component !== null || query.get("panel") === "components" ? "components" : "page";
    return { screen: "editor", path: path.slice("/editor.html".length).replace(/\.html$/, ""), panel, component };
  }
  return { screen: "missing", address: url.pathname };
}

/** The launch that is edited instead of the site itself. Every URL of sites and editor contains it. */
let launch: string | null = null;

/** Returns the launch of a URL. */
export function launchOf(url: URL): string | null {
  return url.searchParams.get("launch") || null;
}

/** Sets the launch for all URLs that this module returns. */
export function stayInLaunch(name: string | null): void {
  launch = name;
}

/** Returns the URL of the listing below a path. */
export function sitesUrl(path: string): string {
  return withQuery(`/sites.html${encodePath(path)}`, {});
}

/** Returns the URL of the assets in a folder, or of those below it that a search finds. */
export function assetsUrl(path: string, find: Record<string, string> = {}): string {
  const words = Object.fromEntries(Object.entries(find).map(([name, value]) => [name, value.trim() || null]));
  return withQuery(`/assets.html${encodePath(path)}`, words);
}

/** Returns the URL of one asset. */
export function assetUrl(path: string): string {
  return withQuery(`/assets.html${encodePath(path)}`, { show: "detail" });
}

/** Returns the URL of a page's versions, optionally with two of them compared. */
export function versionsUrl(path: string, from: string | null = null, to: string | null = null): string {
  return withQuery(`/versions.html${encodePath(path)}`, { from, to });
}

/** Returns the URL of the permissions at a path. */
export function permissionsUrl(path: string): string {
  return `/permissions.html${encodePath(path)}`;
}

/** Returns the URL of the launches, or of one of them. */
export function launchesUrl(name: string | null = null): string {
  return name === null ? "/launches.html" : `/launches.html/${encodeURIComponent(name)}`;
}

/** Returns the URL of a user or group, or of the list of them. */
export function usersUrl(kind: "user" | "group", name: string | null = null): string {
  if (name !== null) return `/users.html/${kind}/${encodeURIComponent(name)}`;
  return kind === "group" ? "/users.html?show=groups" : "/users.html";
}

/** Returns the URL of the inbox, of the workflow models, or of the failed steps. */
export function workflowsUrl(show: "inbox" | "models" | "failed" = "inbox"): string {
  return show === "inbox" ? "/workflows.html" : `/workflows.html?show=${show}`;
}

/** Returns the URL of a view for administrators. */
export function operationsUrl(view: OperationsView): string {
  return `/operations.html/${view}`;
}

/** Returns the URL of a search. */
export function searchUrl(search: { text: string; path?: string; type?: string; facets?: Record<string, string> }): string {
  const facets = Object.fromEntries(Object.entries(search.facets ?? {}).map(([name, value]) => [name, value || null]));
  return withQuery("/search.html", { text: search.text || null, path: search.path || null, type: search.type || null, ...facets });
}

/** Returns the URL of a page's editor, optionally with a panel or a component opened. */
export function editorUrl(path: string, panel: Panel = "page", component: string | null = null): string {
  const isPlain = component !== null || panel !== "components";
  return withQuery(`/editor.html${encodePath(path)}.html`, { component, panel: isPlain ? null : "components" });
}

/** Returns the URL of a page on the author: in edit mode or as visitors see it, optionally in a version. */
export function pageUrl(path: string, mode: "edit" | "disabled", version: string | null = null): string {
  const of = version === null ? "" : `;v='${encodeURIComponent(version)}'`;
  const query = new URLSearchParams({ wcmmode: mode });
  if (launch !== null) query.set("tympan-branch", launch);
  return `${encodePath(path)}${of}.html?${query}`;
}

/** Returns the URL of the login page, which returns to `resource` after login. */
export function loginUrl(resource: string): string {
  return `/login.html?${new URLSearchParams({ resource })}`;
}

/** Returns a content path as a URL path. Colons are not escaped, so that `jcr:content` stays readable. */
export function encodePath(path: string): string {
  return path
    .split("/")
    .map((segment) => encodeURIComponent(segment).replace(/%3A/gi, ":"))
    .join("/");
}

/**
 * Returns the URL to open after login: `resource` if it is a path of this server, else [`HOME`].
 *
 * A login link that redirects to another server enables phishing, so `//host`, `/\host` and schemes are refused.
 */
export function safeResource(resource: string | null): string {
  if (resource === null || !/^\/(?![/\\])/.test(resource) || /[\u0000-\u001f]/.test(resource)) return HOME;
  return resource === "/" || resource.startsWith("/login") ? HOME : resource;
}

function withQuery(address: string, parameters: Record<string, string | null>): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries({ ...parameters, launch })) if (value !== null) query.set(name, value);
  const text = query.toString();
  return text ? `${address}?${text}` : address;
}

function decodePath(path: string): string {
  try {
    return decodeURIComponent(path);
  } catch {
    return path;
  }
}

function trimSlash(path: string): string {
  return path.length > 1 ? path.replace(/\/+$/, "") || "/" : path;
}
