/** The mock's versions, launches, users, permissions, packages, references and search: enough to drive their screens. */

const HOUR = 3_600_000;
const ago = (hours) => new Date(Date.now() - hours * HOUR).toISOString();
const text = (value) => ({ type: "String", value });

function version(name, hours, user, comment, labels = []) {
  return { name, path: "/content/demo/en/trieste", time: ago(hours), user, comment, labels, isBase: name === "1.2" };
}

/** Returns what the screens begin with. */
export function sampleConsole() {
  return {
    versions: [
      version("1.0", 900, "grace", "activated", ["launch-2025"]),
      version("1.1", 90, "ada", "activated"),
      version("1.2", 3, "ada", "before the new pictures"),
    ],
    deleted: [{ path: "/content/demo/en/autumn", versions: [version("1.0", 400, "ada", "activated"), version("1.1", 40, "ada", "activated")] }],
    branches: [
      { name: "main", root: "aa", base: null },
      { name: "spring-2027", root: "cc", base: "bb" },
      { name: "quiet", root: "bb", base: "bb" },
    ],
    conflicts: [],
    users: [
      { name: "admin", path: "/home/users/admin", disabled: null, isService: false, groups: ["administrators"] },
      { name: "ada", path: "/home/users/ada", disabled: null, isService: false, groups: ["content-authors"] },
      { name: "bea", path: "/home/users/bea", disabled: "left in May", isService: false, groups: [] },
      { name: "replication", path: "/home/users/system/replication", disabled: null, isService: true, groups: [] },
    ],
    groups: ["administrators", "content-authors", "dam-users"],
    entries: [
      { name: "allow", allow: true, principal: "content-authors", privileges: ["jcr:read", "rep:write"], restrictions: {} },
      { name: "deny", allow: false, principal: "ada", privileges: ["jcr:removeNode"], restrictions: { "rep:glob": ["/archive/*"] } },
    ],
    mounts: sampleMounts(),
    models: sampleModels(),
    inbox: sampleInbox(),
    failedSteps: [
      { item: 91, workflow: 40, title: "Activate", payload: "/content/demo/en/food", job: 512, reason: "the agent `publish` is disabled", ended: ago(5) },
    ],
    faults: [{ path: "/apps/site/config/org.tympan.assets.Mount-old", message: "the source `/mnt/old` is not in any place that `tympan.toml` allows" }],
    packages: [pack("shop", "site", "1.4", 48_200_000, ago(30)), pack("shop", "site.config", "1.4", 18_300, null)],
  };
}

function sampleModels() {
  const model = (name, title, fault) => ({
    path: `/var/workflow/models/${name}`, title, transient: false, topic: `com/adobe/granite/workflow/job/var/workflow/models/${name}`, ...(fault && { fault }),
  });
  return [
    model("review", "Review", null),
    model("legacy", "Old approval", "the step `Stamp` of `/var/workflow/models/legacy` names the unknown process `com.example.StampProcess`; known processes are NoopProcess, LockProcess"),
    { path: "/conf/global/settings/workflow/models/broken", fault: "the model `/conf/global/settings/workflow/models/broken` has no step of type START" },
  ];
}

function sampleInbox() {
  const item = (id, title, more) => ({
    id, workflow: id + 1000, model: "/var/workflow/models/review", step: "node1", title, type: "PARTICIPANT", assignee: "content-authors",
    started: ago(id), payload: "/content/demo/en/trieste", routes: ["node2"], ...more,
  });
  return [
    item(3, "Approve the text", { routes: ["publish", "rework"] }),
    item(7, "Stamp it", { model: "/var/workflow/models/legacy", payload: "/content/dam/demo/ferry.jpg" }),
    item(9, "Look at a page", { payload: null, assignee: null }),
  ];
}

function sampleMounts() {
  const last = { ended: ago(0.2), failure: null, added: 0, changed: 0, moved: 0, removed: 0, unchanged: 0, settling: 0, heldBack: 0, skipped: 0, skippedFiles: [] };
  const mount = (name, source, more) => ({
    name, source, target: `/content/dam/${name}`, period: 300, paused: false, nextRun: ago(-0.08), files: 0, job: null, last, ...more,
  });
  return [
    mount("archive", "s3://archive/2024", { files: 1204, last: { ...last, heldBack: 900 } }),
    mount("films", "/srv/films", {
      files: 12,
      job: { state: "ACTIVE", done: 3, total: 12, message: "reading" },
      last: { ...last, skipped: 1, skippedFiles: [{ path: "a/b.mov", reason: "it is longer than 64 GiB" }] },
    }),
    mount("press", "davs://dav.example.org/press", { files: 340, last: { ...last, added: 4, moved: 1, unchanged: 335 } }),
  ];
}

function pack(group, name, version, size, installed) {
  return {
    path: `/etc/packages/${group}/${name}-${version}.zip`,
    id: { group, name, version },
    size,
    data: "x",
    dependencies: [],
    created: ago(60),
    created_by: "ada",
    last_unpacked: installed,
    last_unpacked_by: installed && "admin",
  };
}

const changedTitle = {
  path: "jcr:content",
  kind: "changed",
  isReordered: false,
  properties: [
    { name: "jcr:title", before: text("Slow days in Trieste"), after: text("Slow days on the Gulf of Trieste") },
    { name: "cq:lastModified", before: text("a"), after: text("b") },
  ],
};
const addedTeaser = {
  path: "jcr:content/root/columns/teaser2",
  kind: "added",
  isReordered: false,
  properties: [
    { name: "jcr:title", before: null, after: text("Where to sleep") },
    { name: "text", before: null, after: text("<p>Rooms above the boats.</p>") },
  ],
};

const LAUNCH = [
  { path: "/content/demo/en/trieste", kind: "changed", nodes: [changedTitle, addedTeaser] },
  { path: "/content/demo/en/spring", kind: "added", nodes: [{ path: "", kind: "added", isReordered: false, properties: [] }] },
];

const json = (value, status = 200) => ({ status, value });
const NONE = { status: 204, value: null };

/** Answers a request to one of these endpoints; nothing if it is none of them. */
export function consoleAnswer(state, verb, path, query, body, refuse) {
  const name = path.slice("/api/v1/".length);
  const found = ENDPOINTS[`${verb} ${name}`];
  return found ? found(state.console, query, body, refuse, state) : null;
}

const ENDPOINTS = {
  "GET versions": (state, query) => json({ path: query.get("path"), versions: state.versions }),
  "POST versions": (state, _, { comment }) => {
    const made = version(`1.${state.versions.length}`, 0, "admin", comment ?? "");
    state.versions.push(made);
    return json(made, 201);
  },
  "GET versions/diff": (state, query) => {
    const from = query.get("from") ?? state.versions.at(-1).name;
    const to = query.get("to");
    return json({ path: query.get("path"), from, to, nodes: from === to ? [] : [changedTitle, addedTeaser] });
  },
  "POST versions/restore": (state, _, { path }) => {
    state.deleted = state.deleted.filter((one) => one.path !== path);
    return json({ path, etag: null });
  },
  "POST versions/label": (state, _, { version, label, move }, refuse) => {
    const holder = state.versions.find((one) => one.labels.includes(label));
    if (holder && !move) throw refuse(422, `the version ${holder.name} has the label \`${label}\` already`);
    if (holder) holder.labels = holder.labels.filter((one) => one !== label);
    state.versions.find((one) => one.name === version).labels.push(label);
    return NONE;
  },
  "DELETE versions/label": (state, query) => {
    for (const one of state.versions) one.labels = one.labels.filter((label) => label !== query.get("label"));
    return NONE;
  },
  "GET versions/deleted": (state, query) => json({ path: query.get("path"), nodes: state.deleted }),

  "GET assets/mounts": ({ mounts, faults }) => json({ mounts, faults }),
  "POST assets/mounts/run": (state, query, _, refuse) => {
    const mount = mountOf(state, query, refuse);
    mount.job = null;
    if (query.get("acceptRemovals") === "true") mount.last = { ...mount.last, removed: mount.last.heldBack, heldBack: 0 };
    mount.last = { ...mount.last, ended: new Date().toISOString() };
    return json({ changed: true });
  },
  "POST assets/mounts/pause": (state, query, _, refuse) => {
    Object.assign(mountOf(state, query, refuse), { paused: true, job: null });
    return json({ changed: true });
  },
  "POST assets/mounts/resume": (state, query, _, refuse) => {
    mountOf(state, query, refuse).paused = false;
    return json({ changed: true });
  },

  "GET workflows/models": ({ models }) => json({ models }),
  "GET workflows/inbox": ({ inbox }) => json({ items: inbox }),
  "GET workflows/failures": ({ failedSteps }, _, __, refuse) => {
    if (failedSteps === null) throw refuse(403, "only administrators may list failed steps");
    return json({ steps: failedSteps });
  },
  "GET workflows/back": (_, query) => json({ routes: query.get("item") === "3" ? ["write", "collect"] : [] }),
  "POST workflows/back": (state, query) => json({ item: takeItem(state, query.get("item")) }),
  "POST workflows": (state, _, { model, payload }, refuse, { operations }) => {
    if (!payload.startsWith("/content/demo")) throw refuse(404, `there is no node at \`${payload}\``);
    const { workflows } = operations.workflows;
    const [id, started] = [99, new Date().toISOString()];
    workflows.unshift({ ...workflows[0], id, payload, started });
    const item = Math.max(0, ...state.inbox.map((one) => one.id)) + 1;
    state.inbox.push({ ...state.inbox[0], id: item, workflow: id, model, payload, title: `Look at ${payload}`, routes: ["done"], started });
    return json({ id }, 201);
  },
  "POST workflows/complete": (state, _, { item }) => json({ completed: takeItem(state, item) }),
  "POST workflows/delegate": (state, _, { item, to }, refuse) => {
    if (!state.groups.includes(to)) throw refuse(422, `there is no user or group \`${to}\``);
    state.inbox.find(({ id }) => id === Number(item)).assignee = to;
    return json({ delegated: Number(item), to });
  },
  "POST workflows/restart": (state, query) => {
    state.failedSteps = state.failedSteps.filter(({ item }) => item !== Number(query.get("item")));
    return json({ item: Number(query.get("item")) });
  },

  "GET branches": (state) => json({ branches: state.branches }),
  "POST branches": (state, _, { name }, refuse) => {
    if (/\s/.test(name)) throw refuse(422, `branch \`${name}\`: a name may contain only letters, digits and \`-_./\``);
    state.branches.push({ name, root: "bb", base: "bb" });
    return json(state.branches.at(-1), 201);
  },
  "DELETE branches": (state, query) => {
    state.branches = state.branches.filter((one) => one.name !== query.get("name"));
    return NONE;
  },
  "GET branches/diff": (_, query) =>
    json({ name: query.get("name"), changes: query.get("name") === "spring-2027" ? LAUNCH : [], isComplete: true }),
  "POST branches/merge": (state, _, { only, dryRun, decisions = {} }) => {
    const changes = LAUNCH.filter(({ path }) => only.length === 0 || only.includes(path)).map(({ path, kind }) => ({ path, kind }));
    if (dryRun) return json({ root: null, changes, decided: [], conflicts: state.conflicts });
    const decided = state.conflicts.map((one) => ({ ...one, side: decisions[one.path] }));
    return json({ root: "dd", changes, decided, conflicts: [] });
  },
  "POST branches/promote": (_, __, { replace }, refuse) => {
    if (!replace) throw refuse(409, "`main` was changed since `spring-2027` was created or last merged");
    return json({ name: "main", root: "cc", base: null });
  },

  "GET users": (state, query) => json({ users: state.users.filter(({ name }) => name.includes(query.get("search") ?? "")), next: null }),
  "POST users": (state, _, { name, password }, refuse) => {
    if (state.users.some((one) => one.name === name)) throw refuse(412, `there is a user or group \`${name}\` already`);
    state.users.push({ name, path: `/home/users/${name}`, disabled: null, isService: false, groups: [], password });
    return json({ name, path: `/home/users/${name}` }, 201);
  },
  "GET user": (state, query, _, refuse) => {
    const found = state.users.find(({ name }) => name === query.get("name"));
    if (!found) throw refuse(404, `there is no user \`${query.get("name")}\``);
    return json({ ...found, allGroups: found.groups });
  },
  "PATCH user": (state, query, { disabled }) => {
    state.users.find(({ name }) => name === query.get("name")).disabled = disabled;
    return json({ ended: 2 });
  },
  "DELETE user": (state, query) => {
    state.users = state.users.filter(({ name }) => name !== query.get("name"));
    return NONE;
  },
  "PUT user/password": (state, query, { password, current }, refuse) => {
    if (query.get("name") === "admin" && current !== "secret") throw refuse(403, "the current password is wrong");
    state.users.find(({ name }) => name === query.get("name")).password = password;
    return json({ ended: 1 });
  },
  "GET groups": (state, query) => {
    const groups = state.groups.filter((name) => name.includes(query.get("search") ?? ""));
    return json({ groups: groups.map((name) => ({ name, path: `/home/groups/${name}` })), next: null });
  },
  "POST groups": (state, _, { name }) => {
    state.groups.push(name);
    return json({ name, path: `/home/groups/${name}` }, 201);
  },
  "GET group": (state, query) => {
    const members = state.users.filter(({ groups }) => groups.includes(query.get("name"))).map(({ name }) => ({ name, kind: "user" }));
    return json({ name: query.get("name"), path: "", members, allUsers: members.map(({ name }) => name), groups: [] });
  },
  "POST group/members": (state, _, { group, member }, refuse) => {
    const user = state.users.find(({ name }) => name === member);
    if (!user || !state.groups.includes(group)) throw refuse(404, `there is no user or group \`${user ? group : member}\``);
    user.groups.push(group);
    return NONE;
  },
  "DELETE group/members": (state, query) => {
    const user = state.users.find(({ name }) => name === query.get("member"));
    user.groups = user.groups.filter((one) => one !== query.get("group"));
    return NONE;
  },

  "GET permissions": (state, query) => {
    const path = query.get("path");
    const policy = (node, isInherited, entries) => ({ path: `${node}/rep:policy`, node, kind: "acl", isInherited, entries, principals: [] });
    const everyone = { name: "allow", allow: true, principal: "everyone", privileges: ["jcr:read"], restrictions: { "rep:globs": ["/content"] } };
    return json({ path, isComplete: true, policies: [policy(path, false, state.entries), policy("/", true, [everyone])] });
  },
  "POST permissions": (state, query, entry, refuse) => {
    if (entry.principal === "nobody") throw refuse(422, "there is no user or group `nobody`");
    state.entries.push({ ...entry, name: `allow${state.entries.length}` });
    return json({ path: query.get("path"), etag: null, entries: state.entries });
  },
  "DELETE permissions": (state, query) => {
    state.entries = state.entries.filter(({ name }) => name !== query.get("entry"));
    return json({ path: query.get("path"), etag: null, entries: state.entries });
  },
  "GET permissions/why": (_, query, __, refuse) => {
    const user = query.get("user");
    if (user === "nobody") throw refuse(404, "there is no user `nobody`");
    const path = query.get("path");
    const granting = { kind: "entry", policy: `${path}/rep:policy`, number: 1, name: "allow", principal: "content-authors", through: [], restrictions: [] };
    const denying = { ...granting, number: 2, name: "deny", principal: user };
    const cause = (one) => (one === "jcr:removeNode" ? denying : /read|Properties|Child/.test(one) ? granting : { kind: "nothing" });
    const privileges = query.getAll("privilege").map((one) => ({ privilege: one, granted: cause(one) === granting, cause: cause(one) }));
    return json({ user, path, groups: ["content-authors", "everyone"], privileges });
  },

  "GET references": (state, query) => {
    const path = query.get("path");
    const usedBy = state.usedBy?.[path] ? state.usedBy[path] : path.endsWith("/food") ? [{ path: "/content/demo/en/trieste/jcr:content/root/columns/teaser", property: "link", kind: "path" }] : [];
    return json({ path, usedBy, uses: [] });
  },

  "POST query": (_, __, { parameters, statement, limit, cursor }) => {
    const hit = (path, title, excerpt, type = "cq:Page") => ({
      path,
      score: 1,
      values: {
        "a.jcr:primaryType": type,
        "a.jcr:content/jcr:title": title,
        "a.jcr:content/metadata/dc:title": null,
        "a.jcr:title": null,
        "a.rep:excerpt()": excerpt,
      },
    });
    const all = [
      hit("/content/demo/en/trieste", "Slow days on the Gulf of Trieste", "A <strong>ferry</strong> leaves Muggia every hour &amp; nobody is in a hurry …"),
      hit("/content/demo/en/islands", "Islands without cars", "… take the <strong>ferry</strong> at nine …"),
      hit("/content/dam/demo/ferry.jpg", null, "The <strong>ferry</strong> at noon image/jpeg", "dam:Asset"),
    ];
    const wanted = all.filter(({ values }) => statement.includes("[nt:hierarchyNode]") || statement.includes(`[${values["a.jcr:primaryType"]}]`));
    const rows = parameters.text.startsWith("fer") ? wanted : [];
    const from = Number(cursor ?? 0);
    return json({ columns: [], rows: rows.slice(from, from + limit), words: [], facets: {}, cursor: null });
  },
  "GET suggest": (_, query) => json({ words: ["ferry", "ferries", "fern"].filter((word) => word.startsWith(query.get("prefix"))) }),
  "GET spellcheck": (_, query) => json({ words: query.get("text") === "fary" ? ["ferry"] : [] }),

  "GET packages": (state) => json({ packages: state.packages }),
  "POST packages": (state, query, _, refuse) => {
    if (query.get("install") !== "true" && query.get("replace") !== "true" && state.packages.some(({ id }) => id.name === "new")) {
      throw refuse(412, "a node already exists at `/etc/packages/shop/new-1.zip`");
    }
    const made = pack("shop", "new", "1", 1200, query.get("install") === "true" ? ago(0) : null);
    state.packages = [...state.packages.filter(({ id }) => id.name !== "new"), made];
    return json({ package: made, report: null, text: query.get("install") === "true" ? "package shop:new:1\n  pages 2" : null }, 201);
  },
  "POST packages/diff": () =>
    json({
      report: {
        nodes: [{ path: "/content/demo/en/new", change: "added", is_reordered: false, properties: [{ name: "jcr:title", before: null, after: "New" }] }],
      },
      text: "1 nodes added",
    }),
  "POST packages/install": (state, query) => {
    state.packages.find(({ id }) => query.get("id") === `${id.group}:${id.name}:${id.version}`).last_unpacked = ago(0);
    return json({ report: {}, text: "package installed\n  pages 12" });
  },
  "POST packages/uninstall": (state, query) => {
    state.packages.find(({ id }) => query.get("id") === `${id.group}:${id.name}:${id.version}`).last_unpacked = null;
    return json({ report: {}, text: "restored 12  removed 3" });
  },
  "DELETE packages": (state, query) => {
    state.packages = state.packages.filter(({ id }) => query.get("id") !== `${id.group}:${id.name}:${id.version}`);
    return json({});
  },
};

function takeItem(state, item) {
  state.inbox = state.inbox.filter(({ id }) => id !== Number(item));
  return Number(item);
}

function mountOf(state, query, refuse) {
  const mount = state.mounts.find((one) => one.name === query.get("name"));
  if (!mount) throw refuse(404, `there is no mount \`${query.get("name")}\``);
  return mount;
}
