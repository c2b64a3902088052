/** The mock's answers for administrators: jobs, agents, health, configuration. */

const HOUR = 3_600_000;
const ago = (hours) => new Date(Date.now() - hours * HOUR).toISOString();
const json = (value, status = 200) => ({ status, value });

/** Returns what the views begin with. */
export function sampleOperations() {
  return {
    queues: sampleQueues(),
    failed: [
      { id: 501, topic: "dam/update_asset", queue: "Assets", state: "GIVEN_UP", properties: { path: "/content/dam/demo/broken.jpg" }, attempt: 10, created: ago(9), ended: ago(5), user: "ada", lastError: "the picture `broken.jpg` ends after 3 of 1,204 lines" },
      { id: 502, topic: "tympan/backup/save", queue: "<main queue>", state: "ERROR", properties: {}, attempt: 1, created: ago(3), ended: ago(3), user: "system", lastError: "cannot open the vault `/backup/vault`: the password is wrong" },
    ],
    workflows: sampleWorkflows(),
    agents: sampleAgents(),
    health: sampleHealth(),
    settings: sampleSettings(),
    caches: sampleCaches(),
    performance: samplePerformance(),
    logs: {
      "access.log": ['127.0.0.1 - ada 30/Nov/2026:12:00:00 +0000 "GET /content/demo/en.html HTTP/1.1" 200 5120 "-" "Mozilla/5.0"'],
      "request.log": ["30/Nov/2026:12:00:00 +0000 [1] -> GET /content/demo/en.html HTTP/1.1", "30/Nov/2026:12:00:00 +0000 [1] <- 200 text/html 12ms", "30/Nov/2026:12:00:01 +0000 [2] -> GET /login/link?token=*** HTTP/1.1"],
    },
    maintenance: sampleMaintenance(),
    backup: sampleBackup(),
  };
}

function sampleCaches() {
  const farm = {
    name: "site", hit_ratio: 91.4, requests: [["hit", 9000], ["stale", 140], ["miss", 520], ["pass", 340]],
    not_cached: [["QueryString", "request contained a query string", 210], ["SetCookie", "response sets a cookie", 130]],
    prefixes: [["/content/demo", 8200, 95.2], ["/etc.clientlibs", 1800, 99.1]],
    top: [["/content/demo/en.html", 2100], ["/content/demo/en/trieste.html", 900]], refetch_queue: 0,
    renders: [{ name: "r0", address: "127.0.0.1:4503", standing: "in", answered: 860, failed: 2, waiting: 0 }],
  };
  return {
    dispatchers: [
      { name: "edge-1", url: "http://10.0.0.9:8081", canFlush: true, problem: null, status: { uptime: 86_000, in_flight: 3, hit_ratio: 91.4, refused: 12, rate_limited: 0, fetches: 1, is_well: true, farms: [farm] } },
      { name: "edge-2", url: "http://10.0.0.10:8081", canFlush: false, problem: "cannot connect to `10.0.0.10:8081`: connection refused", status: null },
    ],
    fragments: {
      entries: 2140, bytes: 18_400_000, max_bytes: 67_108_864, hits: 40_100, misses: 2900, evicted: 0, fault: null,
      places: [{ place: "/apps/demo/components/teaser/teaser.html", variations: 2, bytes: 900_000, hits: 12_000, misses: 300, saved_us: 38_000_000 }],
    },
  };
}

function sampleMaintenance() {
  const jobs = { queued: 0, active: 0, finished: 12, failed: 0, cancelled: 0, givenUp: 0, averageWaitMs: 4, averageRunMs: 2300, lastEnded: ago(20) };
  const schedule = (name, rule, more) => ({ name, topic: `com/adobe/granite/maintenance/job/${name}`, rule, nextRun: ago(-4), jobs, ...more });
  return {
    schedules: [
      schedule("maintenance/garbage", "every 3600000ms"),
      schedule("maintenance/blobs", "0 30 3 * * ?", { jobs: { ...jobs, givenUp: 1 } }),
      schedule("maintenance/versions", "0 0 2 * * ?", { jobs: null }),
    ],
    indexes: [
      { name: "resourceType", property: "sling:resourceType", state: "ready", detail: { entries: 4210 } },
      { name: "lastModified", property: "cq:lastModified", state: "building", detail: { done: 900, total: 4210 } },
    ],
    slow: { threshold_ms: 100, statements: [{ statement: "SELECT * FROM [nt:base] WHERE title = 'x'", milliseconds: 840 }] },
  };
}

function sampleBackup() {
  const run = (hours, kind, more) => ({
    start: ago(hours), end: ago(hours - 0.001), kind, paths: ["/tympan/srv/author"], snapshot: "5f0e9a31bb", items: 4210, readItems: 31, bytes: 80_000_000, addedBytes: 400_000,
    storedBytes: 120_000, faults: 0, error: null, ...more,
  });
  return {
    runs: [run(10, "incremental"), run(34, "failed", { snapshot: null, error: "cannot reach the vault: connection refused" }), run(58, "full", { storedBytes: 44_000_000 })],
    schedule: { name: "backup", rule: "0 30 2 * * ?", nextRun: ago(-14) },
    isRunning: false,
    canRestore: true,
  };
}

function samplePerformance() {
  const minutes = Array.from({ length: 60 }, (_, at) => {
    const requests = Math.round(240 + 160 * Math.sin(at / 7)) * (at === 20 ? 0 : 1);
    return { start: ago((60 - at) / 60), requests, errors: at === 41 ? 37 : 0, p50Ms: 12, p95Ms: 140 };
  });
  const flame = (name, value, self, children = [], more = {}) => ({ name: `/apps/demo/components/${name}/${name}.html`, path: `/content/demo/en/${name}`, calls: 1, value, self, reads: 4, queries: 0, children, ...more });
  const page = [flame("page", 640_000, 30_000, [flame("header", 90_000, 90_000), flame("list", 430_000, 40_000, [flame("teaser", 390_000, 390_000, [], { calls: 24 })], { queries: 3 }), flame("footer", 60_000, 60_000)])];
  return {
    minutes, requests: minutes.reduce((sum, one) => sum + one.requests, 0), errors: 37,
    percentilesMs: { p50: 12, p90: 96, p95: 140, p99: 620 },
    pageClasses: [[0, 100, 800, 70], [100, 300, 90, 25], [300, 500, 40, 4], [500, 1000, 60, 1], [1000, null, 10, 0]].map(([fromMs, toMs, pages, goalPercent]) => ({ fromMs, toMs, pages, goalPercent })),
    slowest: [{ url: "/content/demo/en/news.html", at_ms: Date.now() - HOUR, total_us: 640_000, flame: page }, { url: "/content/demo/en.html", at_ms: Date.now() - 2 * HOUR, total_us: 210_000, flame: page }],
    components: [{ script: "/apps/demo/components/teaser/teaser.html", calls: 2400, queries: 0, total_us: 9_000_000, self_us: 8_100_000, p50_us: 3200, p90_us: 9000, p99_us: 41_000 }],
  };
}

function sampleQueues() {
  const queue = (name, more) => ({
    name, pid: `org.apache.sling.event.jobs.QueueConfiguration-${name}`, path: null, topics: ["*"], type: "UNORDERED", maxParallel: 2, parallelHere: 2,
    retries: 10, retryDelayMs: 2000, queued: 0, active: 0, finished: 0, failed: 0, cancelled: 0, givenUp: 0, averageWaitMs: 12, averageRunMs: 340,
    lastEnded: ago(0.1), paused: false, runningHere: 0, keepJobs: false, ranking: 0, ...more,
  });
  return [
    queue("<main queue>", { finished: 1204, givenUp: 1 }),
    queue("Assets", { path: "/apps/system/config/assets", topics: ["dam/*", "com/day/cq/dam/*"], queued: 14, active: 2, runningHere: 2, finished: 8021, givenUp: 1, averageRunMs: 2400 }),
    queue("Mail", { topics: ["mail/*"], paused: true, queued: 3 }),
  ];
}

function sampleWorkflows() {
  const instance = (id, state, more) => ({ id, model: "/var/workflow/models/review", title: "Review", payload: "/content/demo/en/trieste", state, data: {}, initiator: "ada", started: ago(id), ended: null, ...more });
  const step = (name, title, type) => ({ name, title, type });
  const way = (from, to, rule = null) => ({ from, to, rule });
  return {
    workflows: [instance(3, "RUNNING"), instance(7, "SUSPENDED"), instance(30, "COMPLETED", { ended: ago(20) })],
    models: [
      {
        path: "/var/workflow/models/review", title: "Review", fault: null,
        steps: [step("s", "Begin", "START"), step("write", "Write the text", "PARTICIPANT"), step("split", "Approved?", "OR_SPLIT"), step("publish", "Activate the page", "PROCESS"), step("tell", "Tell the author", "PROCESS"), step("e", "Done", "END")],
        transitions: [way("s", "write"), way("write", "split"), way("split", "publish", "approved"), way("split", "tell"), way("publish", "e"), way("tell", "write")],
      },
      { path: "/var/workflow/models/broken", title: null, fault: "the model `/var/workflow/models/broken` has no step of type START", steps: [], transitions: [] },
    ],
  };
}

function sampleAgents() {
  const agent = (role, name, more) => ({
    role, name, path: `/etc/replication/agents.${role}/${name}`, title: name, type: "durbo", target: "http://127.0.0.1:4503/bin/receive", enabled: true,
    paths: [], user: null, headers: [], fault: null, isHere: role === "author", paused: false, blocked: null, queued: 0, items: [], ...more,
  });
  const item = { id: 11, action: "Activate", path: "/content/demo/en/hotels", user: "grace", created: ago(1.5), attempt: 3, lastError: "connection refused by `10.0.0.7:4503`", state: "DELAYED" };
  return [
    agent("author", "publish", { title: "Publish" }),
    agent("author", "publish2", { title: "Second publisher", target: "http://10.0.0.7:4503/bin/receive", blocked: "connection refused by `10.0.0.7:4503`; the next attempt is in 20 s", queued: 1, items: [item] }),
    agent("publish", "flush", { title: "Dispatcher", type: "flush_precise", target: "http://10.0.0.9:8080/dispatcher/invalidate.cache", headers: ["Authorization: ***"] }),
  ];
}

function sampleHealth() {
  const check = (name, level = "ok", reason = null) => ({ name, ok: level === "ok", level, reason });
  return {
    status: "warn", role: "author", version: "0.1.0", started: ago(50), uptimeSeconds: 180_000, memoryBytes: 312_000_000, openFiles: 84, diskFreeBytes: 41_000_000_000, diskBytes: 120_000_000_000,
    checks: [check("content"), check("state"), check("disk"), check("replication", "warn", "agent `publish2` is blocked: connection refused by `10.0.0.7:4503`"), check("search"), check("jobs"), check("pools")],
  };
}

function sampleSettings() {
  const setting = (key, value, source, summary) => ({ key, value, source, summary });
  return [
    setting("listen.address", '"0.0.0.0:4502"', "option --listen", "The listen address; `--listen` takes precedence"),
    setting("listen.max_connections", "10,000", null, "The maximum number of open connections"),
    setting("database.url", '"postgres://tympan:***@db/tympan"', "environment TYMPAN_DATABASE", "The database of the repository"),
    setting("dispatcher.admin.token", "***", "tympan.toml:14", "The token that clients on other machines need to read"),
    setting("backup.vault", '"/backup/vault"', "tympan.toml:21", "The vault"),
  ];
}

/** Answers a request to one of these endpoints; nothing if it is none of them. */
export function operationsAnswer(state, verb, path, query, form, refuse) {
  const name = path.slice("/api/v1/".length);
  const found = ENDPOINTS[`${verb} ${name}`];
  if (!found) return null;
  if (!state.isAdministrator) throw refuse(403, "only administrators may do this; join the group `administrators`");
  return found(state.operations, verb === "GET" ? query : form, refuse, query);
}

const queueOf = (state, form, refuse) => {
  const queue = state.queues.find(({ name }) => name === form.get("queue"));
  if (!queue) throw refuse(404, `there is no queue \`${form.get("queue")}\``);
  return queue;
};

function changeState({ workflows }, form, state) {
  workflows.find(({ id }) => String(id) === form.get("id")).state = state;
  return json({ changed: true });
}

const ENDPOINTS = {
  "GET operations/jobs": ({ queues, failed }) => json({ queues, failed, workers: [{ name: "author-3fa2b1", role: "author" }] }),
  "POST jobs/queues/pause": (state, form, refuse) => {
    queueOf(state, form, refuse).paused = true;
    return json({ queue: form.get("queue"), paused: true });
  },
  "POST jobs/queues/resume": (state, form, refuse) => {
    queueOf(state, form, refuse).paused = false;
    return json({ queue: form.get("queue"), paused: false, changed: true });
  },
  "POST jobs/queues/set": (state, form, refuse) => {
    const queue = queueOf(state, form, refuse);
    for (const one of form.getAll("set")) {
      const [name, value] = one.split("=");
      if (!Number.isFinite(Number(value))) throw refuse(422, `\`${name}\` must be a number, not \`${value}\``);
      if (name === "queue.maxparallel") Object.assign(queue, { maxParallel: Number(value), parallelHere: Number(value) });
      if (name === "queue.retries") queue.retries = Number(value);
    }
    return json(queue);
  },
  "POST jobs/retry": (state, form) => {
    const isMeant = (job) => String(job.id) === form.get("id") || job.queue === form.get("queue");
    const meant = state.failed.filter(isMeant);
    state.failed = state.failed.filter((job) => !isMeant(job));
    for (const job of meant) {
      const queue = state.queues.find(({ name }) => name === job.queue);
      Object.assign(queue, { givenUp: queue.givenUp - 1, queued: queue.queued + 1 });
    }
    return json({ changed: meant.length > 0, jobs: meant.length });
  },
  "POST jobs/cancel": (state, form) => {
    state.failed = state.failed.filter((job) => String(job.id) !== form.get("id"));
    return json({ changed: true });
  },

  "GET operations/workflows": ({ workflows }) => json(workflows),
  "POST workflows/suspend": ({ workflows }, form) => changeState(workflows, form, "SUSPENDED"),
  "POST workflows/resume": ({ workflows }, form) => changeState(workflows, form, "RUNNING"),
  "POST workflows/terminate": ({ workflows }, form) => changeState(workflows, form, "ABORTED"),
  "GET operations/replication": ({ agents }) => json({ agents }),
  "POST operations/replication": (state, form, refuse) => {
    const agent = state.agents.find(({ role, name }) => role === form.get("role") && name === form.get("name"));
    const target = form.get("target");
    if (!/^https?:\/\/[^/]/.test(target)) throw refuse(422, `\`${target}\` is not the address of an agent: write \`http://HOST:PORT/…\``);
    Object.assign(agent, {
      title: form.get("title"), target, enabled: form.get("enabled") === "true", type: form.get("type"),
      user: form.get("user") || null, paths: form.getAll("paths").filter(Boolean),
    });
    return json({ path: `${agent.path}/jcr:content` });
  },
  "POST agents": (state, _, refuse, query) => {
    const agent = state.agents.find(({ name }) => name === query.get("name"));
    const command = query.get("command");
    if (command === "test" && agent.blocked) return json({ done: false, reason: agent.blocked, jobs: 0 });
    if (command === "pause" || command === "resume") agent.paused = command === "pause";
    const jobs = command === "clear" || command === "retry" ? agent.items.length : 0;
    if (command === "clear") Object.assign(agent, { items: [], queued: 0 });
    return json({ done: true, reason: null, jobs });
  },

  "GET operations/caches": ({ caches }) => json(caches),
  "GET operations/caches/explain": (_, query, refuse) => {
    const url = query.get("url");
    if (!url.startsWith("/")) throw refuse(422, `\`${url}\` is not an address`);
    const isQuery = url.includes("?");
    const state = url.endsWith("trieste.html") ? "absent: the next request fetches it" : "fresh, fetched Mon, 30 Nov 2026 12:00:00 GMT";
    return json({
      request: `GET ${url} at host \`\` over http`, rules: null, farm: "/site (dispatcher.any:3), by its virtual hosts",
      filter: url.startsWith("/crx") ? "denied by /0001 (dispatcher.any:12)" : "allowed by /0002 (dispatcher.any:13)",
      cache: isQuery ? "not cacheable: request contained a query string" : `cacheable as /var/cache${url}`,
      stat: isQuery ? null : "obeys /var/cache/.stat", state: isQuery ? null : state, is_served: true,
    });
  },
  "POST operations/caches/flush": (_, form, refuse) => {
    const wrong = form.getAll("path").find((path) => !path.startsWith("/"));
    if (wrong) throw refuse(422, `\`${wrong}\` is not a path: it must begin with \`/\``);
    return json({ paths: form.getAll("path").length, farms: 1 });
  },
  "POST operations/caches/fragments": ({ caches }) => {
    const { entries } = caches.fragments;
    caches.fragments.entries = 0;
    return json({ fragments: entries });
  },
  "GET operations/performance": ({ performance }) => json(performance),
  "GET operations/logs": ({ logs }, query, refuse) => {
    const file = query.get("file") ?? "request.log";
    if (!logs[file]) throw refuse(404, `there is no log \`${file}\``);
    const wanted = (query.get("contains") ?? "").toLowerCase();
    const files = Object.entries(logs).map(([name, lines]) => ({ name, bytes: lines.join("\n").length, modified: ago(0.01) }));
    return json({ files, file, lines: logs[file].filter((line) => line.toLowerCase().includes(wanted)), isCut: false });
  },
  "GET operations/maintenance": ({ maintenance }) => json(maintenance),
  "POST schedules/run": ({ maintenance }, _, refuse, query) => {
    const schedule = maintenance.schedules.find(({ name }) => name === query.get("name"));
    if (!schedule) throw refuse(404, `there is no schedule \`${query.get("name")}\``);
    schedule.jobs = { ...maintenance.schedules[0].jobs, active: 1 };
    return json({ job: 7 });
  },
  "POST indexes/rebuild": ({ maintenance }, _, __, query) => {
    Object.assign(maintenance.indexes.find(({ name }) => name === query.get("name")), { state: "waiting", detail: {} });
    return json({ dropped: 1 });
  },
  "GET operations/backup": ({ backup }) => json(backup),
  "POST backup/runs": ({ backup }) => {
    backup.isRunning = true;
    return json({ job: 8 });
  },
  "GET operations/backup/states": () => json({ states: [{ id: "5f0e9a31bb", time: ago(10), isIncomplete: false }, { id: "77aa", time: ago(58), isIncomplete: true }] }),
  "GET operations/backup/pages": (_, query, refuse) => {
    const names = { "/content": ["demo"], "/content/demo": ["en"], "/content/demo/en": ["autumn", "trieste"], "/content/demo/en/autumn": [], "/content/demo/en/trieste": [] }[query.get("path")];
    if (!names) throw refuse(422, `the snapshot has no path \`${query.get("path")}\``);
    return json({ path: query.get("path"), names });
  },
  "POST operations/backup/restore": (state, form, refuse) => {
    if (form.get("path").endsWith("/en")) throw refuse(422, "`/content/demo/en` is not a page whose values are all text; restore it with `tympan backup restore`");
    state.restored = form.get("path");
    return json({ path: form.get("path"), wasMissing: true, root: "ab" });
  },
  "GET operations/health": ({ health }) => json(health),
  "GET operations/configuration": ({ settings }) =>
    json({
      settings,
      content: {
        configurations: [{ pid: "org.apache.sling.event.jobs.QueueConfiguration-assets", path: "/apps/system/config/assets", ignored: false }, { pid: "com.example.Unknown", path: "/apps/site/config/com.example.Unknown", ignored: true }],
        faults: [{ path: "/apps/site/config/broken.cfg.json", message: "line 3 is not JSON" }],
      },
    }),
};
