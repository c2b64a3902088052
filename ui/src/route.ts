/**
 * The addresses of the UI: which screen a URL means, and which URL a screen has.
 *
 * In: a URL. Out: a [`Route`], and back. Every state that a colleague may want to be sent has an address.
 */

export type Panel = "page" | "components";

export type Route =
  | { screen: "login"; resource: string; reason: string | null }
  | { screen: "sites"; path: string }
  | { screen: "editor"; path: string; panel: Panel; component: string | null }
  | { screen: "queue" }
  | { screen: "missing"; address: string };

/** The place that opens when nothing else is asked for. */
export const HOME = "/sites.html/content";

/** Returns the route of a URL. */
export function parseRoute(url: URL): Route {
  const path = decodePath(url.pathname);
  const query = url.searchParams;
  if (path === "/login.html") return { screen: "login", resource: safeResource(query.get("resource")), reason: query.get("reason") };
  if (path === "/queue.html") return { screen: "queue" };
  if (path === "/sites.html") return { screen: "sites", path: "/content" };
  if (path.startsWith("/sites.html/")) return { screen: "sites", path: trimSlash(path.slice("/sites.html".length)) };
  if (path.startsWith("/editor.html/")) {
    const component = query.get("component");
    const panel = component !== null || query.get("panel") === "components" ? "components" : "page";
    return { screen: "editor", path: path.slice("/editor.html".length).replace(/\.html$/, ""), panel, component };
  }
  return { screen: "missing", address: url.pathname };
}

/** Returns the address of the listing below a path. */
export function sitesUrl(path: string): string {
  return `/sites.html${encodePath(path)}`;
}

/** Returns the address of a page's editor, optionally with a panel or a component opened. */
export function editorUrl(path: string, panel: Panel = "page", component: string | null = null): string {
  const base = `/editor.html${encodePath(path)}.html`;
  if (component !== null) return `${base}?${new URLSearchParams({ component })}`;
  return panel === "components" ? `${base}?panel=components` : base;
}

/** Returns the address of the login page that leads back to `resource`. */
export function loginUrl(resource: string): string {
  return `/login.html?${new URLSearchParams({ resource })}`;
}

/** Returns a content path as a URL path. Colons stay readable, since every `jcr:content` has one. */
export function encodePath(path: string): string {
  return path
    .split("/")
    .map((segment) => encodeURIComponent(segment).replace(/%3A/gi, ":"))
    .join("/");
}

/**
 * Returns where to go after login: `resource` if it is a path of this server, else [`HOME`].
 *
 * A login link that leads to another server is a phishing tool, so `//host`, `/\host` and schemes are refused.
 */
export function safeResource(resource: string | null): string {
  if (resource === null || !/^\/(?![/\\])/.test(resource) || /[\u0000-\u001f]/.test(resource)) return HOME;
  return resource === "/" || resource.startsWith("/login") ? HOME : resource;
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
