/**
 * What the author's JSON API answers, as types.
 *
 * The names are the server's. Times are ISO 8601 texts; a `null` time means that it never happened.
 */

/** Where a page stands between its author and its readers. */
export type Status = "draft" | "modified" | "live" | "deactivated" | "queued" | "failed";

/** `GET /api/v1/me` */
export interface Me {
  user: string;
  /** Absent where the browser does not send the proof of login by itself. */
  csrf: string | null;
  version: string;
  role: string;
}

/** `POST /login` */
export interface Login {
  user: string;
  csrf: string;
}

export interface Crumb {
  path: string;
  title: string;
}

/** One row of a listing. */
export interface PageItem {
  path: string;
  name: string;
  title: string;
  type: "page" | "folder" | "asset" | "node";
  resourceType: string | null;
  template: string | null;
  modified: string | null;
  modifiedBy: string | null;
  hasChildren: boolean;
  status: Status;
  activated: string | null;
}

/** `GET /api/v1/pages` */
export interface PageList {
  path: string;
  title: string;
  /** What the listed path itself is. */
  type?: PageItem["type"];
  crumbs: Crumb[];
  total: number;
  items: PageItem[];
  /** Where a sorted list goes on; nothing at its end. */
  next?: string | null;
}

/** One component of a page, with the components inside it. */
export interface ComponentItem {
  path: string;
  name: string;
  /** Absent for a node that only groups components. */
  resourceType: string | null;
  /** The component's own name, e.g. "Teaser". */
  title: string;
  /** What tells it from its siblings, e.g. the teaser's headline; may be empty. */
  label: string | null;
  container: boolean;
  /** The types that may lie in it; absent where all may. */
  allowed?: string[] | null;
  children: ComponentItem[];
}

/** A component that may be added to the page. */
export interface Insertable {
  resourceType: string;
  title: string;
  group: string | null;
  /** The path of its picture, if it has one. */
  thumbnail?: string | null;
}

/** `GET /api/v1/page` */
export interface PageDetail {
  path: string;
  title: string;
  url: string;
  status: Status;
  activated: string | null;
  modified: string | null;
  modifiedBy: string | null;
  content: { path: string; resourceType: string | null; title: string | null; allowed?: string[] | null };
  components: ComponentItem[];
  insertable: Insertable[];
}

export type FieldKind =
  "text" | "textarea" | "richtext" | "number" | "checkbox" | "select" | "path" | "date" | "color" | "radio" | "multi" | "group" | "hidden";

export type Scalar = string | number | boolean;

/** An entry of a `multi` field of groups: its properties, and `@name`, the name of its node. */
export interface EntryAnswer {
  [name: string]: Stored | undefined;
}

/** What is stored for a field. */
export type Stored = Scalar | (Scalar | EntryAnswer)[] | null;

export interface FieldOption {
  value: Scalar | null;
  text: string | null;
}

/** One field of a component's dialog. */
export interface Field {
  name: string;
  kind: FieldKind;
  label?: string | null;
  description?: string | null;
  required?: boolean | null;
  /** The default, shown while the property is absent. */
  value?: Scalar | null;
  min?: number | string | null;
  max?: number | string | null;
  step?: number | string | null;
  options?: FieldOption[] | null;
  typeHint?: string | null;
  /** The field that a `multi` field repeats. */
  field?: Field | null;
  /** The fields of each entry, where the repeated field is a `group`: the entries are then nodes below the list's. */
  fields?: Field[] | null;
}

export interface DialogTab {
  title: string;
  fields: Field[];
}

/** `GET /api/v1/dialog` */
export interface Dialog {
  path: string;
  resourceType: string | null;
  title: string;
  tabs: DialogTab[];
  values: Record<string, Stored>;
  /** The types of the stored properties, by path below the resource: `date`, `slides/item0/caption`. */
  types?: Record<string, string>;
  hasDialog: boolean;
}

export interface QueueItem {
  id: string | number;
  action: string | null;
  path: string | null;
  user: string | null;
  created: string | null;
  attempt: number;
  lastError: string | null;
  state: string;
}

export interface Agent {
  name: string;
  title: string;
  target: string;
  enabled: boolean;
  blocked: string | null;
  queued: number;
  items: QueueItem[];
}

/** `GET /api/v1/queue` */
export interface Queue {
  agents: Agent[];
}

/** What a Sling POST answers when it is asked for JSON. */
export interface WriteAnswer {
  "status.code": number;
  "status.message": string;
  path: string;
  changes?: { type?: string; argument?: string | string[] }[];
}

/** A clash of two edits, as a refused write tells it. */
export interface Conflict {
  path: string;
  kind: string;
  property: string | null;
  base: string | null;
  ours: string | null;
  theirs: string | null;
  user?: string | null;
  time?: string | null;
}

/** A rule that a refused write would break. */
export interface Violation {
  path: string;
  code: string;
  item: string;
  message: string;
  referrers?: { path: string; property: string; kind: string }[];
}

/** What a refusal tells beside its message (RFC 9457). */
export interface Problem {
  detail?: string;
  conflicts?: Conflict[];
  violations?: Violation[];
  currentTag?: string;
  operation?: number;
}

/** A property as the API tells it. */
export interface PropertyAnswer {
  type: string;
  value?: Scalar;
  values?: Scalar[];
}

/** A property as it is sent: with its type, or plain where JSON tells the type. */
export type SentProperty = Scalar | PropertyAnswer;

/** A change of a node in the manner of JSON merge patch: what is not named stays, null removes. */
export interface NodePatch {
  type?: string;
  properties?: Record<string, SentProperty | null>;
  children?: Record<string, NodePatch | null>;
}

/** `GET /api/v1/nodes` */
export interface NodeAnswer {
  path: string;
  name: string;
  type: string;
  properties: Record<string, PropertyAnswer>;
  children?: Record<string, NodeAnswer>;
}

/** One operation of `POST /api/v1/batch`. */
export type Operation =
  | { op: "put"; path: string; node: { type: string; properties: Record<string, SentProperty> } }
  | { op: "delete"; path: string }
  | { op: "patch"; path: string; patch: NodePatch; ifMatch?: string }
  | { op: "order"; path: string; place: "first" | "last" | "before" | "after"; sibling?: string };

/** `POST /api/v1/batch` */
export interface BatchResults {
  results: { op: string; path: string; status: number; etag: string | null }[];
}

/** One node that a revision changed. */
export interface Change {
  kind: "added" | "removed" | "changed" | "moved" | "reordered";
  path: string;
  from: string | null;
  type: string;
  properties: { name: string; kind: string }[];
}

/** One revision of the change feed. */
export interface Revision {
  sequence: number;
  time: string;
  user: string;
  message: string | null;
  root: string;
  cursor: string;
  changes: Change[];
}

/** `GET /api/v1/changes` */
export interface Changes {
  revisions: Revision[];
  next: string;
  isEnd: boolean;
}

/** `GET /api/v1/versions` */
export interface Versions {
  path: string;
  versions: Version[];
}

export interface Version {
  name: string;
  path: string;
  time: string;
  user: string;
  comment: string;
  labels: string[];
  isBase: boolean;
}

/** A node that two states have differently; its path is relative to what is compared. */
export interface NodeDifference {
  path: string;
  kind: "added" | "removed" | "changed";
  isReordered: boolean;
  properties: { name: string; before: PropertyAnswer | null; after: PropertyAnswer | null }[];
}

/** `GET /api/v1/versions/diff` */
export interface Differences {
  path: string;
  from: string;
  to: string | null;
  nodes: NodeDifference[];
}

/** `GET /api/v1/versions/deleted` */
export interface DeletedNodes {
  path: string;
  nodes: { path: string; versions: Version[] }[];
}

/** `GET /api/v1/branches` */
export interface Branches {
  branches: Branch[];
}

export interface Branch {
  name: string;
  root: string;
  base: string | null;
}

/** `GET /api/v1/branches/diff` */
export interface BranchChanges {
  name: string;
  changes: BranchChange[];
  isComplete: boolean;
}

export interface BranchChange {
  path: string;
  kind: NodeDifference["kind"];
  nodes?: NodeDifference[];
}

/** `POST /api/v1/branches/merge` */
export interface Merged {
  root: string | null;
  changes: { path: string; kind: NodeDifference["kind"] }[];
  decided: { path: string; kind: string; property: string | null; side: "mine" | "theirs" }[];
  conflicts: Pick<Conflict, "path" | "kind" | "property">[];
}

/** `GET /api/v1/users`, `GET /api/v1/groups` */
export interface Accounts {
  users?: UserItem[];
  groups?: { name: string; path: string }[];
  next: string | null;
}

export interface UserItem {
  name: string;
  path: string;
  /** Why the user cannot log in; nothing if it can. */
  disabled: string | null;
  isService: boolean;
}

/** `GET /api/v1/user` */
export interface User extends UserItem {
  groups: string[];
  allGroups: string[];
}

/** `GET /api/v1/group` */
export interface Group {
  name: string;
  path: string;
  members: { name: string; kind: "user" | "group" }[];
  allUsers: string[];
  groups: string[];
}

/** One entry of a policy. */
export interface AccessEntry {
  name: string;
  allow: boolean;
  principal: string;
  privileges: string[];
  restrictions: Record<string, string[]>;
}

/** `GET /api/v1/permissions` */
export interface Permissions {
  path: string;
  /** Whether all policies above may be read, too. */
  isComplete: boolean;
  policies: {
    path: string;
    node: string;
    kind: "acl" | "cug" | "repository";
    isInherited: boolean;
    entries: AccessEntry[];
    principals: string[];
  }[];
}

/** `GET /api/v1/permissions/why` */
export interface Why {
  user: string;
  path: string;
  groups: string[];
  privileges: { privilege: string; granted: boolean; cause: Cause }[];
}

export interface Cause {
  kind: "administrator" | "entry" | "closedGroup" | "nothing" | "hidden";
  policy?: string;
  number?: number;
  name?: string;
  principal?: string;
  through?: string[];
  restrictions?: string[];
  node?: string | null;
}

/** `GET /api/v1/references` */
export interface References {
  path: string;
  usedBy: { path: string; property: string; kind: string }[];
  uses: { path: string; property: string; kind: string; text: string; target: string | null }[];
}

/** `GET /api/v1/search`, `GET /api/v1/query` */
export interface Rows {
  columns: string[];
  rows: { path: string | null; score: number | null; values: Record<string, Scalar | Scalar[] | null> }[];
  facets: Record<string, { value: string; count: number }[]>;
  cursor: string | null;
  /** What the full-text index had to do with it: with `building`, what it alone finds is missing. */
  full_text?: "none" | "ready" | "behind" | "building";
}

/** `GET /api/v1/packages` */
export interface PackageItem {
  path: string;
  id: { group: string; name: string; version: string };
  size: number;
  dependencies: string[];
  created: string | null;
  created_by: string | null;
  last_unpacked: string | null;
  last_unpacked_by: string | null;
}

/** What a pass over a mount did. */
export interface Pass {
  ended: string;
  failure: string | null;
  added: number;
  changed: number;
  moved: number;
  removed: number;
  unchanged: number;
  /** Files that were just being written; the next pass takes them. */
  settling: number;
  /** Files that are gone at once, and whose assets stay until somebody says that this is right. */
  heldBack: number;
  skipped: number;
  skippedFiles: { path: string; reason: string }[];
}

/** A place whose files are shown as assets. */
export interface Mount {
  name: string;
  source: string;
  target: string;
  /** Seconds between passes. */
  period: number;
  paused: boolean;
  nextRun: string | null;
  files: number;
  job: { state: string; done: number; total: number; message: string } | null;
  last: Pass | null;
}

/** A model of workflows. */
export interface WorkflowModel {
  path: string;
  /** Absent where the model cannot be read. */
  title?: string;
  transient?: boolean;
  topic?: string;
  /** Why it starts nothing. */
  fault?: string;
}

/** `GET /api/v1/workflows/models` */
export interface WorkflowModels {
  models: WorkflowModel[];
}

/** A step of a workflow that waits for somebody. */
export interface WorkItem {
  id: number;
  workflow: number;
  /** The path of the model that its instance began with. */
  model: string;
  step: string;
  title: string;
  type: string;
  assignee: string | null;
  started: string;
  /** What it is about; nothing if whoever asks may not read it. */
  payload: string | null;
  /** The steps that may be chosen next. */
  routes: string[];
}

/** `GET /api/v1/workflows/inbox` */
export interface Inbox {
  items: WorkItem[];
}

/** A step that was given up. */
export interface FailedStep {
  item: number;
  workflow: number;
  title: string;
  payload: string;
  job: number;
  reason: string;
  ended: string | null;
}

/** `GET /api/v1/workflows/failures` */
export interface FailedSteps {
  steps: FailedStep[];
}

/** `GET /api/v1/assets/mounts` */
export interface Mounts {
  mounts: Mount[];
  faults: { path: string; message: string }[];
}
