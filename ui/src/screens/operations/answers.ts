/**
 * The types of the responses for administrators. The names are the server's; times are ISO 8601 texts.
 */
import type { QueueItem } from "../../server/answers";

/** A queue of jobs. */
export interface JobQueue {
  name: string;
  pid: string;
  /** The node or file that configures it; null if it is built in. */
  path: string | null;
  topics: string[];
  type: string;
  maxParallel: number;
  /** The number of jobs that this process runs at once. */
  parallelHere: number;
  /** -1 for no limit. */
  retries: number;
  retryDelayMs: number;
  queued: number;
  active: number;
  finished: number;
  failed: number;
  givenUp: number;
  averageWaitMs: number;
  averageRunMs: number;
  lastEnded: string | null;
  paused: boolean;
  runningHere: number;
}

export interface Job {
  id: number;
  topic: string;
  queue: string;
  state: string;
  properties: unknown;
  attempt: number;
  created: string;
  ended: string | null;
  user: string;
  lastError: string | null;
}

/** `GET /api/v1/operations/jobs` */
export interface JobsAnswer {
  queues: JobQueue[];
  workers: { name: string; role: string }[];
  failed: Job[];
}

/** One agent of `GET /api/v1/operations/replication` */
export interface AgentSettings {
  role: "author" | "publish";
  name: string;
  path: string;
  title: string;
  type: string;
  target: string;
  enabled: boolean;
  paths: string[];
  user: string | null;
  headers: string[];
  /** The error in its settings. */
  fault: string | null;
  /** True if its queue is at this instance. */
  isHere: boolean;
  paused: boolean;
  blocked: string | null;
  queued: number;
  items: QueueItem[];
}

/** `GET /api/v1/operations/health` */
export interface HealthAnswer {
  status: "ok" | "warn" | "fail";
  role: string;
  version: string;
  started: string;
  uptimeSeconds: number;
  /** 0 if the system does not tell. */
  memoryBytes: number;
  openFiles: number;
  diskFreeBytes: number;
  diskBytes: number;
  checks: { name: string; ok: boolean; level: "ok" | "warn" | "fail"; reason: string | null }[];
}

/** `GET /api/v1/operations/configuration` */
export interface ConfigurationAnswer {
  settings: { key: string; value: string; source: string | null; summary: string }[];
  content: {
    configurations: { pid: string; path: string; ignored: boolean }[];
    faults: { path: string; message: string }[];
  };
}

/** The status of a farm of a dispatcher. */
export interface FarmStatus {
  name: string;
  hit_ratio: number;
  /** The number of requests by outcome: hit, stale, miss, pass. */
  requests: [string, number][];
  /** Why responses were not stored: name, text, count. */
  not_cached: [string, string, number][];
  /** Folders with their requests and the percentage from the cache. */
  prefixes: [string, number, number][];
  top: [string, number][];
  refetch_queue: number;
  renders: { name: string; address: string; standing: string; answered: number; failed: number; waiting: number }[];
}

export interface DispatcherState {
  name: string;
  url: string;
  canFlush: boolean;
  status: { uptime: number; in_flight: number; hit_ratio: number; refused: number; rate_limited: number; fetches: number; is_well: boolean; farms: FarmStatus[] } | null;
  /** Why there is no status. */
  problem: string | null;
}

export interface Fragments {
  entries: number;
  bytes: number;
  max_bytes: number;
  hits: number;
  misses: number;
  evicted: number;
  fault: string | null;
  places: { place: string; variations: number; bytes: number; hits: number; misses: number; saved_us: number }[];
}

/** `GET /api/v1/operations/caches` */
export interface CachesAnswer {
  fragments: Fragments | null;
  dispatchers: DispatcherState[];
}

/** `GET /api/v1/operations/caches/explain` */
export interface Explanation {
  request: string;
  rules: string | null;
  farm: string;
  filter: string;
  cache: string;
  stat: string | null;
  state: string | null;
  is_served: boolean;
}

/** A component in the flame graph of a request; times are in microseconds. */
export interface Flame {
  name: string;
  path: string;
  calls: number;
  value: number;
  self: number;
  reads: number;
  queries: number;
  children: Flame[];
}

export interface SlowRequest {
  url: string;
  at_ms: number;
  total_us: number;
  flame: Flame[];
}

export interface PageClass {
  fromMs: number;
  /** Null for all that are slower. */
  toMs: number | null;
  pages: number;
  goalPercent: number;
}

/** `GET /api/v1/operations/performance` */
export interface PerformanceAnswer {
  minutes: { start: string; requests: number; errors: number; p50Ms: number; p95Ms: number }[];
  requests: number;
  errors: number;
  percentilesMs: { p50: number; p90: number; p95: number; p99: number };
  pageClasses: PageClass[];
  slowest: SlowRequest[];
  components: { script: string; calls: number; queries: number; total_us: number; self_us: number; p50_us: number; p90_us: number; p99_us: number }[];
}

/** `GET /api/v1/operations/logs` */
export interface LogsAnswer {
  files: { name: string; bytes: number; modified: string | null }[];
  file: string;
  /** The newest last. */
  lines: string[];
  /** True if there are more lines than these. */
  isCut: boolean;
}

/** The statistics of the jobs of a topic. */
export interface TopicFigures {
  queued: number;
  active: number;
  finished: number;
  givenUp: number;
  averageRunMs: number;
  lastEnded: string | null;
}

/** A job that is started again and again. */
export interface Schedule {
  name: string;
  topic: string;
  /** As in the configuration: a Quartz expression, or `every` and a duration. */
  rule: string;
  nextRun: string | null;
  /** Null if it never ran. */
  jobs: TopicFigures | null;
}

/** `GET /api/v1/operations/maintenance` */
export interface MaintenanceAnswer {
  schedules: Schedule[];
  indexes: { name: string; property: string | null; state: "ready" | "waiting" | "building" | "failed"; detail: { entries?: number; done?: number; total?: number; reason?: string } }[];
  slow: { threshold_ms: number; statements: Record<string, unknown>[] };
}

/** `GET /api/v1/backup/runs` */
export interface BackupRun {
  start: string;
  end: string;
  kind: "full" | "incremental" | "unchanged" | "copy" | "failed";
  paths: string[];
  snapshot: string | null;
  items: number;
  readItems: number;
  bytes: number;
  addedBytes: number;
  storedBytes: number;
  faults: number;
  error: string | null;
}

/** `GET /api/v1/operations/backup` */
export interface BackupAnswer {
  /** The newest first. */
  runs: BackupRun[];
  schedule: { name: string; rule: string; nextRun: string | null } | null;
  isRunning: boolean;
  /** True if there is a vault to restore from. */
  canRestore: boolean;
}

/** A state of the instance in its vault. */
export interface SavedState {
  id: string;
  time: string;
  isIncomplete: boolean;
}

export interface WorkflowInstance {
  id: number;
  model: string;
  title: string;
  payload: string | null;
  state: "RUNNING" | "SUSPENDED" | "COMPLETED" | "ABORTED" | "STALE";
  initiator: string;
  started: string;
  ended: string | null;
}

export interface ModelStep {
  name: string;
  title: string;
  /** AEM's name of the kind: START, PROCESS, PARTICIPANT, OR_SPLIT, END … */
  type: string;
}

/** A workflow model with its steps; without any if it cannot be read. */
export interface ModelDiagram {
  path: string;
  title: string | null;
  fault: string | null;
  steps: ModelStep[];
  transitions: { from: string; to: string; rule: string | null }[];
}

/** `GET /api/v1/operations/workflows` */
export interface WorkflowsAnswer {
  workflows: WorkflowInstance[];
  models: ModelDiagram[];
}
