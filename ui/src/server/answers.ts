/**
 * The types of the responses of the author's JSON API.
 *
 * The names are the server's. Times are ISO 8601 texts; a `null` time means that it never happened.
 */

/** The activation status of a page. */
export type Status = "draft" | "modified" | "live" | "deactivated" | "queued" | "failed";

/** `GET /api/v1/me` */
export interface Me {
  user: string;
  /** The CSRF token that writes must repeat; null if the credentials are not a cookie. */
  csrf: string | null;
  version: string;
  role: string;
  isAdministrator: boolean;
}

/** `GET /api/v1/reads` */
export interface CombinedReads {
  answers: { status: number; tag: string | null; value: unknown }[];
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

/** The file of an asset, as listings describe it. */
export interface AssetFacts {
  /** The media type. */
  format: string | null;
  /** The bytes of the original. */
  size: number | null;
  width: number | null;
  height: number | null;
  state: "processing" | "processed" | "failed";
  /** The reason why there are no renditions. */
  failure: string | null;
  /** The path of the rendition for listings, if there is one. */
  thumbnail: string | null;
  /** The beginning of the original's hash; it differs once the file is replaced. */
  hash: string | null;
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
  /** Set for assets only. */
  asset?: AssetFacts | null;
}

/** `GET /api/v1/pages` */
export interface PageList {
  path: string;
  title: string;
  /** The type of the listed path itself. */
  type?: PageItem["type"];
  crumbs: Crumb[];
  total: number;
  items: PageItem[];
  /** The cursor of the next part of a sorted list; absent at its end. */
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
  /** A text that distinguishes it from its siblings, e.g. the teaser's headline; may be empty. */
  label: string | null;
  container: boolean;
  /** The types allowed in it; absent if all are allowed. */
  allowed?: string[] | null;
  children: ComponentItem[];
}

/** A component that may be added to the page. */
export interface Insertable {
  resourceType: string;
  title: string;
  group: string | null;
  /** The path of its thumbnail, if it has one. */
  thumbnail?: string | null;
}

/** `GET /api/v1/page` */
export interface PageDetail {
  path: string;
  title: string;
  url: string;
  status: Status;
  activated: string | null;
  /** The time at which the page appears, or vanishes, if one is set. */
  onTime?: string | null;
  offTime?: string | null;
  /** The privileges that the user lacks on the page, with the reason for the controls that need them. */
  denied?: { edit?: boolean; activate?: boolean };
  modified: string | null;
  modifiedBy: string | null;
  content: { path: string; resourceType: string | null; title: string | null; allowed?: string[] | null };
  components: ComponentItem[];
  insertable: Insertable[];
}

export type FieldKind =
  "text" | "textarea" | "richtext" | "number" | "checkbox" | "select" | "path" | "date" | "color" | "radio" | "multi" | "group" | "styles" | "hidden";

/** A condition on the values of a form; a checkbox has the value `true` or `false`. */
export type Condition =
  | { field: string; in: string[] }
  | { field: string; filled: true }
  | { not: Condition }
  | { all: Condition[] }
  | { any: Condition[] };

/** Styles of which one can be chosen, or several. */
export interface StyleGroup {
  label?: string | null;
  multiple?: boolean;
  options: FieldOption[];
}

export type Scalar = string | number | boolean;

/** An entry of a `multi` field of groups: its properties, and `@name`, the name of its node. */
export interface EntryAnswer {
  [name: string]: Stored | undefined;
}

/** The stored value of a field. */
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
  /** The text that an empty field shows. */
  placeholder?: string | null;
  /** The rule that a text must keep, such as `html-unique-id-validator`. */
  validation?: string | null;
  isReadOnly?: boolean | null;
  /** When the field is shown, can be changed, and must be filled; always, always and by `required` if absent. */
  visible?: Condition | null;
  enabled?: Condition | null;
  requiredWhen?: Condition | null;
  /** What a box stores when it is checked and unchecked; unchecked, nothing if absent. */
  checkedValue?: string | null;
  uncheckedValue?: string | null;
  options?: FieldOption[] | null;
  /** True if several options can be chosen. */
  multiple?: boolean | null;
  /** False if one of the options is always chosen. */
  hasEmptyOption?: boolean | null;
  /** Values that a text offers. */
  suggestions?: FieldOption[] | null;
  /** The groups of a `styles` field. */
  groups?: StyleGroup[] | null;
  /** The features of a rich text, by plugin; all if absent. */
  features?: Record<string, string[]> | null;
  dateType?: "date" | "datetime" | "time" | null;
  /** The format in which a date is stored; ISO 8601 with a time if absent. */
  valueFormat?: string | null;
  /** The child and the property that belong to an uploaded file; a chosen asset replaces them. */
  file?: string | null;
  fileName?: string | null;
  /** True if the component holds an uploaded file. */
  hasFile?: boolean | null;
  /** True if saving removes the property. */
  isRemoved?: boolean | null;
  typeHint?: string | null;
  /** What a `path` field chooses, if its dialog says so. */
  picks?: "asset" | "page" | "tag" | "fragment" | null;
  /** The path to choose below. */
  root?: string | null;
  /** The field that a `multi` field repeats. */
  field?: Field | null;
  /** The fields of each entry if the repeated field is a `group`; the entries are then children of the list's node. */
  fields?: Field[] | null;
}

/** A part of the layout of a tab: a field, a group of parts, or something that only says something. */
export type LayoutItem = { visible?: Condition | null } & (
  | { item: "field"; name: string }
  | { item: "group"; style: "plain" | "well" | "fieldset"; title?: string | null; items: LayoutItem[] }
  | { item: "heading" | "text"; text?: string | null }
  | { item: "alert"; text?: string | null; variant?: string | null }
  | { item: "picture"; path: string }
);

export interface DialogTab {
  title: string;
  fields: Field[];
  /** The layout; the fields one below the other if absent. */
  items?: LayoutItem[] | null;
  visible?: Condition | null;
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
  /** Resource types of the dialog that are not known: their fields are texts, or missing. */
  unknown?: string[];
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

/** The response of a Sling POST that asks for JSON. */
export interface WriteAnswer {
  "status.code": number;
  "status.message": string;
  path: string;
  changes?: { type?: string; argument?: string | string[] }[];
}

/** A conflict of two edits, as reported by a refused write. */
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

/** A rule that a refused write would have violated. */
export interface Violation {
  path: string;
  code: string;
  item: string;
  message: string;
  referrers?: { path: string; property: string; kind: string }[];
}

/** The details of an error response beside its message (RFC 9457). */
export interface Problem {
  detail?: string;
  conflicts?: Conflict[];
  violations?: Violation[];
  currentTag?: string;
  operation?: number;
}

/** A property in a response of the API. */
export interface PropertyAnswer {
  type: string;
  value?: Scalar;
  values?: Scalar[];
}

/** A property in a request: with its type, or a plain value if JSON implies the type. */
export type SentProperty = Scalar | PropertyAnswer;

/** A change of a node, like a JSON merge patch: members that are absent stay unchanged, null removes. */
export interface NodePatch {
  type?: string;
  properties?: Record<string, SentProperty | null>;
  children?: Record<string, NodePatch | null>;
}

/** A node in a request. Without `children`, those of an existing node are kept. */
export interface SentNode {
  type: string;
  properties?: Record<string, SentProperty>;
  children?: Record<string, SentNode>;
}

/** `GET /api/v1/privileges` */
export interface OwnPrivileges {
  path: string;
  user: string;
  isAdministrator: boolean;
  privileges: string[];
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
  | { op: "put"; path: string; node: SentNode }
  | { op: "delete"; path: string }
  | { op: "move"; from: string; to: string; replace?: boolean; rewrite?: boolean }
  | { op: "copy"; from: string; to: string; replace?: boolean }
  | { op: "patch"; path: string; patch: NodePatch; ifMatch?: string }
  | { op: "order"; path: string; place: "first" | "last" | "before" | "after"; sibling?: string };

/** `POST /api/v1/batch` */
export interface BatchResults {
  results: {
    op: string;
    path: string;
    status: number;
    etag: string | null;
    /** Of a move with `rewrite`: the references that were changed, and those that were not. */
    rewritten?: { path: string; property: string }[];
    kept?: { path: string; property: string; reason: string }[];
  }[];
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

/** A node that differs between two states; its path is relative to the compared node. */
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
  /** The reason why the user cannot log in; null if it can. */
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
  /** True if all policies of ancestors are readable, too. */
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

/** A document that an activated page refers to. */
export interface Companion {
  path: string;
  title: string | null;
  status: "never" | "live" | "outdated" | "taken-away";
  kind: "asset" | "tag" | "template" | "fragment" | "page" | "other";
  /** True if visitors lack it, or have an older state of it. */
  ticked: boolean;
  /** The document that refers to it. */
  referrer: string;
  /** False if the user may not activate it. */
  allowed?: boolean;
}

/** `GET /api/v1/replication/companions` */
export interface Companions {
  companions: Companion[];
}

/** `POST /api/v1/replication` */
export interface Replicated {
  paths: string[];
  left: string[];
}

/** `GET /api/v1/search`, `GET /api/v1/query` */
export interface Rows {
  columns: string[];
  rows: { path: string | null; score: number | null; values: Record<string, Scalar | Scalar[] | null> }[];
  facets: Record<string, { value: string; count: number }[]>;
  cursor: string | null;
  /** The state of the full-text index; with `building`, results that only the index can find are missing. */
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

/** The result of one synchronization run of a mount. */
export interface Pass {
  ended: string;
  failure: string | null;
  added: number;
  changed: number;
  moved: number;
  removed: number;
  unchanged: number;
  /** Files that were still being written; the next run imports them. */
  settling: number;
  /** Files that disappeared at once; their assets are kept until a user confirms the removal. */
  heldBack: number;
  skipped: number;
  skippedFiles: { path: string; reason: string }[];
}

/** An external source whose files are shown as assets. */
export interface Mount {
  name: string;
  source: string;
  target: string;
  /** Seconds between two runs. */
  period: number;
  paused: boolean;
  nextRun: string | null;
  files: number;
  job: { state: string; done: number; total: number; message: string } | null;
  last: Pass | null;
}

/** A workflow model. */
export interface WorkflowModel {
  path: string;
  /** Absent if the model cannot be read. */
  title?: string;
  transient?: boolean;
  topic?: string;
  /** The reason why it cannot be started. */
  fault?: string;
}

/** `GET /api/v1/workflows/models` */
export interface WorkflowModels {
  models: WorkflowModel[];
}

/** A workflow step that is assigned to a user or group. */
export interface WorkItem {
  id: number;
  workflow: number;
  /** The path of the model that its instance was started with. */
  model: string;
  step: string;
  title: string;
  type: string;
  assignee: string | null;
  started: string;
  /** The path of the payload; null if the current user cannot read it. */
  payload: string | null;
  /** The possible next steps. */
  routes: string[];
}

/** `GET /api/v1/workflows/inbox` */
export interface Inbox {
  items: WorkItem[];
}

/** A step that failed and is not retried. */
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
