/** `POST /api/v1/batch` of the mock: patches under a condition, and changes of the structure, all or nothing. */
import { node } from "./content.mjs";
import { commit, tagOf } from "./feed.mjs";

/** Carries out a batch; `find` looks a node up, `refuse` makes a refusal. */
export function batch(state, { operations, message }, { find, refuse, reorder, touch, transfer }) {
  const made = operations.filter(({ op }) => op !== "order" && op !== "delete").map(({ path, to }) => path ?? to);
  const isMade = (path) => made.some((one) => path === one || path.startsWith(`${one}/`));
  operations.forEach((operation, at) => {
    const path = operation.path ?? operation.from;
    if (!isMade(path)) find(state, ["order", "put"].includes(operation.op) ? parentOf(path) : path);
    // A batch is carried out completely or not at all.
    if (operation.op === "move" && !operation.replace && exists(state, operation.to, find)) throw refuse(412, `there is a node \`${operation.to}\` already`);
    const current = tagOf(state, path);
    if (operation.ifMatch && operation.ifMatch !== current) {
      throw refuse(412, `\`${operation.path}\` was changed since it was read`, { currentTag: current, operation: at });
    }
  });
  const changes = [];
  for (const operation of operations) {
    if (operation.op === "patch") apply(find(state, operation.path), operation.path, operation.patch, changes);
    else changes.push(change(state, operation, { find, reorder, transfer }));
    touch(state, operation.to ?? operation.path);
  }
  commit(state, "admin", changes, message ?? null);
  return { results: operations.map(({ op, path, to }) => ({ op, path: to ?? path, status: 200, etag: tagOf(state, to ?? path) })) };
}

const parentOf = (path) => path.slice(0, path.lastIndexOf("/"));

function exists(state, path, find) {
  try {
    return Boolean(find(state, path));
  } catch {
    return false;
  }
}

function change(state, { op, path, node: sent, place, sibling, from, to, replace }, { find, reorder, transfer }) {
  if (op === "move" || op === "copy") {
    transfer(state, from, to, op, replace);
    return { path: to, from, kind: op === "move" ? "moved" : "added" };
  }
  const parent = find(state, parentOf(path));
  const name = path.slice(path.lastIndexOf("/") + 1);
  switch (op) {
    case "put":
      if (sent.children || !parent.children.has(name)) parent.children.set(name, { ...nodeOf(sent), status: "draft" });
      else Object.assign(parent.children.get(name).properties, sent.properties);
      return { path, kind: "added" };
    case "delete":
      parent.children.delete(name);
      return { path, kind: "removed" };
    default:
      reorder(parent, name, sibling ? `${place} ${sibling}` : place);
      return { path, kind: "reordered" };
  }
}

/** Returns a node as the API takes it. */
export function nodeOf({ type, properties = {}, children = {} }) {
  const plain = Object.entries(properties).map(([name, value]) => [name, typeof value === "object" ? (value.values ?? value.value) : value]);
  const below = Object.fromEntries(Object.entries(children).map(([name, child]) => [name, nodeOf(child)]));
  return node({ "jcr:primaryType": type, ...Object.fromEntries(plain) }, below);
}

function apply(one, path, patch, changes) {
  const names = Object.keys(patch.properties ?? {});
  for (const name of names) {
    const sent = patch.properties[name];
    if (sent === null) delete one.properties[name];
    else one.properties[name] = typeof sent === "object" ? (sent.values ?? sent.value) : sent;
  }
  if (names.length > 0) changes.push({ path, properties: names.map((name) => ({ name, kind: "changed" })) });
  for (const [name, child] of Object.entries(patch.children ?? {})) {
    if (child === null) {
      one.children.delete(name);
      changes.push({ path: `${path}/${name}`, kind: "removed" });
      continue;
    }
    if (!one.children.has(name)) one.children.set(name, node(child.type ? { "jcr:primaryType": child.type } : {}));
    apply(one.children.get(name), `${path}/${name}`, child, changes);
  }
}
