/**
 * A stand-in for the author server, as far as the UI knows it: login, the JSON API, Sling POST, the page preview, and
 * the built UI under the author's Content-Security-Policy. It keeps its content in memory and a log of all writes.
 */
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";
import { assetAnswer, multipart, processAsset, receiveChunk, sendRendition } from "./assets.mjs";
import { batch, nodeOf } from "./batch.mjs";
import { DIALOGS, INSERTABLE, node, PAGE, sampleContent, sampleQueue } from "./content.mjs";
import { consoleAnswer, sampleConsole } from "./console.mjs";
import { operationsAnswer, sampleOperations } from "./operations.mjs";
import { commit, follow, revisionsSince, tagOf } from "./feed.mjs";

const DIST = fileURLToPath(new URL("../../dist/", import.meta.url));
const DELAY_MS = Number(process.env.UI_DELAY_MS ?? 0);
const TYPES = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml" };
const SCREENS = /^\/(login|sites|assets|editor|queue|versions|permissions|launches|users|packages|mounts|workflows|operations|search)\.html(\/|$)/;
export const POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

/** A refusal with a status and the message that the UI must show as it is. */
class Refusal extends Error {
  constructor(status, message, facts = {}) {
    super(message);
    this.status = status;
    this.facts = facts;
  }
}

/** Starts the server on a free port; `close()` ends it. */
export async function startMock({ port = 0 } = {}) {
  const state = {
    root: sampleContent(),
    agents: sampleQueue(),
    csrf: "token-1",
    isSignedIn: false,
    writes: [],
    failNext: null,
    settle: new Set(),
    /** The number of uploads whose connection breaks off after so many that arrive, and the paths below which the user may only read. */
    cutUploads: 0,
    cutAfter: 0,
    /** While set, no asset is processed. */
    holdProcessing: false,
    readOnly: [],
    isAdministrator: true,
    operations: sampleOperations(),
    console: sampleConsole(),
    revisions: [],
    clients: new Set(),
    /** Who else has the page open, as `/api/v1/presence` tells it. */
    editors: [],
    /** What the user may not do with pages, as `/api/v1/page` tells it. */
    denied: null,
    /** What pages refer to, as `/api/v1/replication/companions` tells it. */
    companions: [],
    /** While true, nothing reaches the server: each request is cut. */
    isCut: false,
  };
  const server = createServer((request, response) => {
    handle(state, request, response).catch((error) => {
      // A browser that gets this challenge waits for its own login dialog, so that a test of it never ends.
      if (error.status === 401 && request.headers["x-requested-with"] !== "XMLHttpRequest") {
        response.setHeader("WWW-Authenticate", "Basic");
      }
      sendJson(response, error.status ?? 500, {
        error: error.message,
        detail: error.message,
        "status.message": error.message,
        ...error.facts,
      });
    });
  });
  await new Promise((resolve) => server.listen(port, "127.0.0.1", resolve));
  const origin = `http://127.0.0.1:${server.address().port}`;
  return {
    origin,
    state,
    /** Changes properties as another user does. */
    editAs: (user, path, properties) => {
      Object.assign(find(state, path).properties, properties);
      touch(state, path, user);
      commit(state, user, [{ path, properties: Object.keys(properties).map((name) => ({ name, kind: "changed" })) }]);
    },
    /** Removes a node as another user does. */
    removeAs: (user, path) => {
      find(state, parentOf(path)).children.delete(nameOf(path));
      commit(state, user, [{ path, kind: "removed" }]);
    },
    close: () => {
      server.closeAllConnections();
      return new Promise((resolve) => server.close(resolve));
    },
  };
}

/** Waits as a far server would: up to `UI_DELAY_MS`, a different time for each answer. */
async function travel() {
  if (DELAY_MS > 0) await new Promise((resolve) => setTimeout(resolve, Math.random() * DELAY_MS));
}

async function handle(state, request, response) {
  if (state.isCut) return request.destroy();
  await travel();
  const url = new URL(request.url, "http://mock");
  const path = decodeURIComponent(url.pathname);
  if (request.method !== "GET") return change(state, url, path, request, response);
  if (path === "/") return redirect(response, "/sites.html/content");
  if (SCREENS.test(path)) return sendFile(response, "index.html");
  if (path.startsWith("/ui/")) return sendFile(response, path.slice("/ui/".length));
  if (path.startsWith("/api/")) {
    if (!state.isSignedIn) throw new Refusal(401, "not signed in");
    if (path === "/api/v1/reads") return sendJson(response, 200, { answers: url.searchParams.getAll("read").map((read) => combined(state, read)) });
    if (path === "/api/v1/changes" && request.headers.accept?.includes("text/event-stream")) return follow(state, url.searchParams, request, response);
    const told = readAnswer(state, path, url.searchParams);
    if (told.tag) response.setHeader("ETag", told.tag);
    return sendJson(response, told.status, told.value);
  }
  if (sendRendition(path, response)) return undefined;
  if (path.endsWith(".html")) {
    // A version is shown as the page is now: the mock keeps no content of versions.
    const page = path.slice(0, -".html".length).replace(/;v='[^']*'$/, "");
    return sendHtml(response, renderPage(state, page, url.searchParams.get("wcmmode")));
  }
  throw new Refusal(404, `there is nothing at \`${path}\``);
}

/** One of several reads of a request, as if it were requested alone. */
function combined(state, read) {
  const url = new URL(`/api/v1/${read}`, "http://mock");
  try {
    return readAnswer(state, url.pathname, url.searchParams);
  } catch (error) {
    return { status: error.status ?? 500, tag: null, value: { detail: error.message, ...error.facts } };
  }
}

function readAnswer(state, path, query) {
  if (path === "/api/v1/changes") return { status: 200, tag: null, value: revisionsSince(state, query) };
  const refuse = (status, message) => new Refusal(status, message);
  const told = consoleAnswer(state, "GET", path, query, null, refuse) ?? operationsAnswer(state, "GET", path, query, null, refuse);
  if (told) return { tag: null, ...told };
  const at = query.get("path");
  return { status: 200, tag: at ? tagOf(state, at) : null, value: answer(state, path, query) };
}

/** Whoever may only read somewhere is no administrator. */
const isAdministrator = (state) => state.isAdministrator && state.readOnly.length === 0;

function answer(state, path, query) {
  const at = query.get("path");
  switch (path) {
    case "/api/v1/me":
      return { user: "admin", csrf: state.csrf, version: "0.1.0", role: "author", isAdministrator: isAdministrator(state) };
    case "/api/v1/pages":
      return pages(state, at, query);
    case "/api/v1/page":
      return pageDetail(state, at);
    case "/api/v1/dialog":
      return dialog(state, at);
    case "/api/v1/nodes":
      return nodeAnswer(find(state, at), at, Number(query.get("depth") ?? 0));
    case "/api/v1/templates": {
      const templates = [...(state.root.children.get("apps")?.children.get("demo").children.get("templates").children ?? [])];
      const isAllowed = ([, { properties }]) => new RegExp(`^(?:${properties.allowedPaths})$`).test(`${at}/page`);
      return { path: at, templates: templates.filter(isAllowed).map(([name]) => ({ path: `/apps/demo/templates/${name}` })) };
    }
    case "/api/v1/privileges": {
      const isReadOnly = state.readOnly.some((one) => at === one || at.startsWith(`${one}/`));
      find(state, at);
      return { path: at, user: "admin", isAdministrator: isAdministrator(state), privileges: isReadOnly ? ["jcr:read"] : ["jcr:read", "rep:write", "crx:replicate", "jcr:versionManagement"] };
    }
    case "/api/v1/assets/duplicates":
      return { groups: [{ original: "a", bytes: 240_000, paths: ["/content/dam/demo/harbor.jpg", "/content/dam/demo/noon.jpg"] }], more: false };
    case "/api/v1/queue":
      return { agents: state.agents.map((agent) => ({ ...agent, queued: agent.items.length })) };
    case "/api/v1/replication/companions":
      return { companions: state.companions };
    default:
      throw new Refusal(404, `there is no \`${path}\``);
  }
}

function find(state, path) {
  let at = state.root;
  for (const name of path.split("/").filter(Boolean)) {
    at = at?.children.get(name);
    if (!at) throw new Refusal(404, `there is no node at \`${path}\``);
  }
  return at;
}

function nodeAnswer(one, path, depth) {
  const properties = Object.entries(one.properties).map(([name, value]) => [
    name,
    Array.isArray(value) ? { type: "String", values: value } : { type: "String", value },
  ]);
  const children = [...one.children].map(([name, child]) => [name, nodeAnswer(child, `${path}/${name}`, depth - 1)]);
  return {
    path,
    name: nameOf(path),
    type: one.properties["jcr:primaryType"] ?? "nt:unstructured",
    properties: Object.fromEntries(properties),
    ...(depth > 0 ? { children: Object.fromEntries(children) } : {}),
  };
}

const isPage = (one) => one.properties["jcr:primaryType"] === "cq:Page";
const kindOf = (one) => ({ "cq:Page": "page", "dam:Asset": "asset", "cq:Tag": "node", "nt:file": "node" })[one.properties["jcr:primaryType"]] ?? "folder";
const nameOf = (path) => path.slice(path.lastIndexOf("/") + 1);
const parentOf = (path) => path.slice(0, path.lastIndexOf("/")) || "/";
const contentOf = (one) => one.children.get("jcr:content");
const titleOf = (one, path) => contentOf(one)?.children.get("metadata")?.properties["dc:title"] ?? contentOf(one)?.properties["jcr:title"] ?? one.properties["jcr:title"] ?? nameOf(path);

function crumbs(state, path) {
  const names = path.split("/").filter(Boolean);
  return names.map((_, at) => {
    const crumb = `/${names.slice(0, at + 1).join("/")}`;
    return { path: crumb, title: titleOf(find(state, crumb), crumb) };
  });
}

function summary(state, one, path) {
  const content = contentOf(one)?.properties ?? {};
  // Each look brings a queued page one step nearer to publish.
  if (state.settle.delete(path)) one.status = "live";
  return {
    path,
    title: titleOf(one, path),
    status: one.status ?? "draft",
    modified: content["cq:lastModified"] ?? null,
    modifiedBy: content["cq:lastModifiedBy"] ?? null,
    activated: one.status === "live" ? (content["cq:lastModified"] ?? null) : null,
  };
}

function pages(state, path, query) {
  const parent = find(state, path);
  const children = [...parent.children].filter(([name]) => name !== "jcr:content");
  const sort = query.get("sort");
  const key = ([name, one]) => (sort?.endsWith("title") ? titleOf(one, name) : (contentOf(one)?.properties["cq:lastModified"] ?? ""));
  if (sort) children.sort((a, b) => (key(a) < key(b) ? -1 : 1) * (sort.startsWith("-") ? -1 : 1));
  const offset = Number(query.get("after") ?? query.get("offset") ?? 0);
  const limit = Number(query.get("limit") ?? 100);
  const end = offset + limit;
  const items = children.slice(offset, end).map(([name, one]) => ({
    ...summary(state, one, `${path}/${name}`),
    name,
    type: kindOf(one),
    resourceType: contentOf(one)?.properties["sling:resourceType"] ?? null,
    template: null,
    hasChildren: [...one.children.keys()].some((child) => child !== "jcr:content"),
  }));
  return {
    path,
    title: titleOf(parent, path),
    type: kindOf(parent),
    crumbs: crumbs(state, path),
    total: children.length,
    items,
    next: sort && end < children.length ? String(end) : null,
  };
}

function components(one, path) {
  return [...one.children]
    .filter(([, child]) => child.properties["sling:resourceType"])
    .map(([name, child]) => {
      const { properties } = child;
      const type = properties["sling:resourceType"];
      return {
        path: `${path}/${name}`,
        name,
        resourceType: type,
        title: DIALOGS[type]?.title ?? nameOf(type),
        label: properties["jcr:title"] ?? properties.alt ?? null,
        container: type.endsWith("/container"),
        children: components(child, `${path}/${name}`),
      };
    });
}

function pageDetail(state, path) {
  const one = find(state, path);
  if (!isPage(one)) throw new Refusal(404, `\`${path}\` is no page`);
  const content = contentOf(one);
  const base = `${path}/jcr:content`;
  return {
    ...summary(state, one, path),
    url: `${path}.html`,
    content: { path: base, resourceType: content.properties["sling:resourceType"], title: content.properties["jcr:title"] },
    components: components(content, base),
    insertable: INSERTABLE,
    ...(state.denied ? { denied: state.denied } : {}),
  };
}

function dialog(state, path) {
  const one = find(state, path);
  const resourceType = one.properties["sling:resourceType"];
  const found = DIALOGS[resourceType];
  const groups = (found?.tabs ?? []).flatMap((tab) => tab.fields).filter((field) => field.field?.kind === "group");
  const lists = groups.map(({ name }) => [name, entries(one.children.get(name))]);
  return {
    path,
    resourceType,
    title: found?.title ?? nameOf(resourceType),
    tabs: found?.tabs ?? [],
    values: { ...one.properties, ...Object.fromEntries(lists) },
    hasDialog: found !== undefined,
  };
}

/** Returns the entries of a list as the API tells them: their properties, and `@name`. */
function entries(list) {
  return [...(list?.children ?? [])].map(([name, { properties }]) => ({ "@name": name, ...properties }));
}

async function change(state, url, path, request, response) {
  const type = request.headers["content-type"] ?? "";
  const bytes = await readBytes(request);
  if (type.startsWith("multipart/")) return upload(state, path, multipart(bytes, type), request, response);
  const body = bytes.toString("utf8");
  const form = new URLSearchParams(body);
  if (path === "/login") return login(state, form, response);
  if (!state.isSignedIn) throw new Refusal(401, "not signed in");
  if (request.headers["x-csrf-token"] !== state.csrf) throw new Refusal(403, "the CSRF token is missing or belongs to another login");
  if (path === "/logout") {
    state.isSignedIn = false;
    return sendJson(response, 200, {});
  }
  // Who is there is no change of content.
  if (path === "/api/v1/presence") return sendJson(response, 200, { editors: state.editors });
  if (path.startsWith("/api/v1/queue/")) return queueAction(state, nameOf(path), url.searchParams.get("id"), response);
  const kind = request.headers["content-type"] ?? "";
  const sent = kind.includes("json") ? JSON.parse(body) : kind.includes("urlencoded") ? Object.fromEntries(form) : {};
  const refuse = (status, message, facts) => new Refusal(status, message, facts);
  const query = Object.fromEntries(url.searchParams);
  if (path === "/api/v1/packages/build") {
    state.writes.push({ verb: "POST", path, query, body });
    return response.writeHead(200, { "Content-Type": "application/zip" }).end("PK");
  }
  const rows = path === "/api/v1/query" && assetAnswer(state.root, sent);
  if (rows) return sendJson(response, 200, rows);
  const told = path.startsWith("/api/v1/") && (consoleAnswer(state, request.method, path, url.searchParams, sent, refuse) ?? operationsAnswer(state, request.method, path, url.searchParams, form, refuse));
  if (told) {
    state.writes.push({ verb: request.method, path, query, body: sent });
    return sendJson(response, told.status, told.value);
  }
  const isApi = path.startsWith("/api/v1/");
  state.writes.push(isApi ? { verb: request.method, path, query, body: sent, operations: sent.operations } : { path, form: [...form] });
  if (state.failNext) {
    const message = state.failNext;
    state.failNext = null;
    throw new Refusal(500, message);
  }
  if (path === "/api/v1/batch") {
    const results = batch(state, sent, { find, refuse, reorder, touch, transfer });
    for (const { op, path: at } of sent.operations) {
      if (op === "put" && find(state, at).properties["jcr:primaryType"] === "dam:Asset" && !state.holdProcessing) processAsset(find(state, at));
    }
    return sendJson(response, 200, results);
  }
  if (path === "/api/v1/replication") return sendJson(response, 200, replicate(state, sent));
  if (isApi) return sendJson(response, 200, nodeChange(state, request.method, path, url.searchParams, sent));
  const changed = write(state, path, form);
  commit(state, "admin", [{ path: changed }]);
  sendJson(response, 200, { "status.code": 200, "status.message": "OK", path: changed, changes: [] });
}

/** Carries out a change of one node by the API. */
function nodeChange(state, verb, path, query, sent) {
  switch (`${verb} ${path.slice("/api/v1/".length)}`) {
    case "PUT nodes": {
      const at = query.get("path");
      const siblings = find(state, parentOf(at)).children;
      if (siblings.has(nameOf(at))) throw new Refusal(412, `there is a node \`${at}\` already`);
      const made = nodeOf(sent);
      const content = made.children.get("jcr:content");
      const template = content?.properties["cq:template"];
      if (template) {
        const initial = structuredClone(find(state, `${template}/jcr:content`));
        made.children.set("jcr:content", { ...initial, properties: { ...initial.properties, ...content.properties } });
      }
      siblings.set(nameOf(at), { ...made, status: "draft" });
      commit(state, "admin", [{ path: at, kind: "added" }]);
      return { path: at, etag: null };
    }
    case "PATCH nodes": {
      const at = query.get("path");
      const patch = (one, { properties = {}, children = {} }) => {
        for (const [name, value] of Object.entries(properties)) {
          if (value === null) delete one.properties[name];
          else one.properties[name] = typeof value === "object" ? (value.values ?? value.value) : value;
        }
        for (const [name, child] of Object.entries(children)) patch(one.children.get(name), child);
      };
      patch(find(state, at), sent);
      commit(state, "admin", [{ path: at }]);
      return { path: at, etag: null };
    }
    case "POST nodes/order": {
      reorder(find(state, parentOf(sent.path)), nameOf(sent.path), sent.sibling ? `${sent.place} ${sent.sibling}` : sent.place);
      return { path: sent.path, etag: null };
    }
    case "DELETE nodes": {
      const at = query.get("path");
      find(state, parentOf(at)).children.delete(nameOf(at));
      commit(state, "admin", [{ path: at, kind: "removed" }]);
      return {};
    }
    case "POST nodes/move":
    case "POST nodes/copy":
      transfer(state, sent.from, sent.to, nameOf(path));
      commit(state, "admin", [{ path: sent.to, kind: "added" }]);
      return { path: sent.to, etag: null, ...(nameOf(path) === "move" ? { rewritten: [], kept: [] } : {}) };
    default:
      throw new Refusal(404, `there is no \`${path}\``);
  }
}

function login(state, form, response) {
  if (form.get("password") !== "secret") throw new Refusal(401, "wrong user name or password");
  state.isSignedIn = true;
  response.setHeader("Set-Cookie", "tympan-session=mock; HttpOnly; SameSite=Strict; Path=/");
  sendJson(response, 200, { user: form.get("user"), csrf: state.csrf });
}

function queueAction(state, verb, id, response) {
  for (const agent of state.agents) {
    const item = agent.items.find((one) => String(one.id) === id);
    if (!item) continue;
    if (verb === "cancel") agent.items = agent.items.filter((one) => one !== item);
    else Object.assign(item, { attempt: item.attempt + 1, state: "sending" });
    return sendJson(response, 200, {});
  }
  throw new Refusal(404, `there is no item \`${id}\` in a queue`);
}

/** Activates or deactivates pages and what they refer to. */
function replicate(state, { action, paths }) {
  for (const path of paths) {
    const companion = state.companions.find((one) => one.path === path);
    if (companion) Object.assign(companion, { status: "live", ticked: false });
    else Object.assign(find(state, path), { status: action === "activate" ? "queued" : "deactivated" });
    if (action === "activate" && !companion) state.settle.add(path);
  }
  return { paths, left: [] };
}

/** Activates or deactivates by a Sling POST. */
function write(state, path, form) {
  find(state, path).status = form.get(":operation") === "activate" ? "queued" : "deactivated";
  if (form.get(":operation") === "activate") state.settle.add(path);
  return path;
}

function transfer(state, path, destination, operation, replace = false) {
  const target = find(state, parentOf(destination)).children;
  if (!replace && target.has(nameOf(destination))) throw new Refusal(412, `there is a node \`${destination}\` already; nothing was moved`);
  target.set(nameOf(destination), structuredClone(find(state, path)));
  if (operation === "move") find(state, parentOf(path)).children.delete(nameOf(path));
  return destination;
}

function reorder(parent, name, order) {
  const names = [...parent.children.keys()].filter((one) => one !== name);
  const [word, neighbor] = order.split(" ");
  const at = { first: 0, last: names.length, before: names.indexOf(neighbor), after: names.indexOf(neighbor) + 1 }[word];
  names.splice(at, 0, name);
  parent.children = new Map(names.map((one) => [one, parent.children.get(one)]));
}

function touch(state, path, user = "admin") {
  const pagePath = path.split("/jcr:content")[0];
  const one = find(state, pagePath);
  const content = contentOf(one);
  if (!content) return;
  Object.assign(content.properties, { "cq:lastModified": new Date().toISOString(), "cq:lastModifiedBy": user });
  if (one.status === "live") one.status = "modified";
}

function renderPage(state, path, mode) {
  const one = find(state, path);
  const content = contentOf(one);
  if (!content) throw new Refusal(404, `\`${path}\` is no page`);
  const base = `${path}/jcr:content`;
  const body = [...content.children].map(([name, child]) => renderComponent(child, `${base}/${name}`, mode === "edit")).join("");
  return `<!doctype html><html lang="en"><head><meta charset="utf-8"><title>${content.properties["jcr:title"]}</title><style>
    body{font:17px/1.6 Georgia,serif;margin:0;color:#222} main{max-width:880px;margin:auto;padding:24px}
    .bar{background:#143642;color:#fff;padding:18px 28px;font-weight:bold} h1{font-size:2.2em;line-height:1.2}
    .image{height:300px;background:linear-gradient(160deg,#9fc7d6,#f2d7b0 60%,#6b8f9c);border-radius:6px}
    .columns{display:grid;grid-template-columns:repeat(auto-fit,minmax(220px,1fr));gap:20px} .teaser{padding:16px;border:1px solid #ddd;border-radius:6px}
    </style></head><body><div class="bar">Tidewater Magazine</div><main><a href="/content/demo/en/alps.html">Elsewhere</a>${body}</main></body></html>`;
}

function renderComponent(one, path, isEdit) {
  const { properties } = one;
  const type = nameOf(properties["sling:resourceType"] ?? "");
  const parts = [...one.children].filter(([, child]) => child.properties["sling:resourceType"]);
  const inside = parts.map(([name, child]) => renderComponent(child, `${path}/${name}`, isEdit)).join("");
  const title = properties["jcr:title"] ?? "";
  const html =
    {
      title: `<h1>${title}</h1>`,
      text: properties.text ?? "<p>(empty)</p>",
      image: `<div class="image" role="img" aria-label="${properties.alt ?? ""}"></div>`,
      teaser: `<div class="teaser"><h3>${title}</h3>${properties.text ?? ""}</div>`,
      slideshow: `<ol>${[...(one.children.get("slides")?.children.values() ?? [])].map((slide) => `<li>${slide.properties.caption}</li>`).join("")}</ol>`,
      container: `<div class="${properties.layout === "2" ? "columns" : "stack"}">${inside}</div>`,
    }[type] ?? `<p>${type}</p>`;
  return isEdit ? `<div data-tympan-path="${path}" data-tympan-type="${properties["sling:resourceType"]}">${html}</div>` : html;
}

async function readBytes(request) {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  return Buffer.concat(chunks);
}

function upload(state, path, parts, request, response) {
  if (request.headers["x-csrf-token"] !== state.csrf) throw new Refusal(403, "the CSRF token is missing or belongs to another login");
  if (state.readOnly.some((one) => path === one || path.startsWith(`${one}/`))) throw new Refusal(403, `you may not add nodes to \`${path}\``);
  const received = state.writes.filter(({ verb }) => verb === "UPLOAD").length;
  if (state.cutUploads > 0 && received >= state.cutAfter) {
    state.cutUploads -= 1;
    return request.socket.destroy();
  }
  receiveChunk(find(state, path), parts, (status, message) => new Refusal(status, message));
  state.writes.push({ verb: "UPLOAD", path });
  return sendJson(response, 200, { "status.code": 200, "status.message": "OK", path, changes: [] });
}

async function sendFile(response, name) {
  const file = normalize(join(DIST, name));
  if (!file.startsWith(DIST)) throw new Refusal(404, "outside of the UI");
  const bytes = await readFile(file).catch(() => {
    throw new Refusal(404, `the UI has no \`${name}\``);
  });
  response.writeHead(200, {
    "Content-Type": TYPES[extname(file)] ?? "application/octet-stream",
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
  });
  response.end(bytes);
}

function sendHtml(response, html) {
  response.writeHead(200, { "Content-Type": "text/html; charset=utf-8" });
  response.end(html);
}

function sendJson(response, status, value) {
  if (status === 204) return response.writeHead(204).end();
  response.writeHead(status, { "Content-Type": "application/json" });
  response.end(JSON.stringify(value));
}

function redirect(response, location) {
  response.writeHead(302, { Location: location });
  response.end();
}
