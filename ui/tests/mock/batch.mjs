/** `POST /api/v1/batch` of the mock: patches under a condition, and orders, all or nothing. */
import { node } from "./content.mjs";
import { commit, tagOf } from "./feed.mjs";

/** Carries out a batch; `find` looks a node up, `refuse` makes a refusal. */
export function batch(state, { operations }, { find, refuse, reorder, touch }) {
  operations.forEach((operation, at) => {
    find(state, ["order", "put"].includes(operation.op) ? parentOf(operation.path) : operation.path);
    const current = tagOf(state, operation.path);
    if (operation.ifMatch && operation.ifMatch !== current) {
      throw refuse(412, `\`${operation.path}\` was changed since it was read`, { currentTag: current, operation: at });
    }
  });
  const changes = [];
  for (const operation of operations) {
    if (operation.op === "patch") apply(find(state, operation.path), operation.path, operation.patch, changes);
    else changes.push(change(state, operation, { find, reorder }));
    touch(state, operation.path);
  }
  commit(state, "admin", changes);
  return { results: operations.map(({ op, path }) => ({ op, path, status: 200, etag: tagOf(state, path) })) };
}

const parentOf = (path) => path.slice(0, path.lastIndexOf("/"));

function change(state, { op, path, node: sent, place, sibling }, { find, reorder }) {
  const parent = find(state, parentOf(path));
  const name = path.slice(path.lastIndexOf("/") + 1);
  switch (op) {
    case "put":
      parent.children.set(name, node({ "jcr:primaryType": sent.type, ...sent.properties }));
      return { path, kind: "added" };
    case "delete":
      parent.children.delete(name);
      return { path, kind: "removed" };
    default:
      reorder(parent, name, sibling ? `${place} ${sibling}` : place);
      return { path, kind: "reordered" };
  }
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
