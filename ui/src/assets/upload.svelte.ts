/**
 * The uploads of this browser tab, for all screens: a queue with a few uploads at the same time.
 *
 * Invariants
 * * A file is sent in chunks. After a failure it continues with the first chunk that the server does not have.
 * * An existing asset is never overwritten unless the user says so.
 * * A file that the server already has somewhere is sent only if the user wants a second copy.
 *
 * On failure: a request that did not reach the server is repeated with growing delays, and at once when the browser is
 * online again; other failures wait for the user.
 */
import { t } from "../language";
import type { Rows } from "../server/answers";
import { messageOf, sendForm, sendTo, ServerError } from "../server/client";
import { childPath } from "../server/post";
import { session } from "../state/session.svelte";
import { uploads as uploading } from "../state/uploading.svelte";
import { byteText, nextName, nodeNameOf } from "./asset";
import { discardReceived, receivedBytes, replaceOriginal, stagingName, storeAsset } from "./received";

/** The bytes of one request. */
const CHUNK = 4 * 1024 * 1024;
const PARALLEL = 3;
/** Larger files are not compared with stored ones, since their hash takes the whole file in memory. */
const MOST_HASHED = 64 * 1024 * 1024;
const MOST_ATTEMPTS = 5;

/** A file, with the folders in which it was dropped or chosen. */
export interface FolderFile {
  file: File;
  folders: string[];
}

export type UploadState = "waiting" | "asking" | "sending" | "paused" | "storing" | "done" | "skipped" | "failed" | "canceled";

/** What the user must decide before a file is sent. */
export interface UploadQuestion {
  kind: "exists" | "duplicate";
  /** The asset with this name, or the assets with the same bytes. */
  paths: string[];
}

export type UploadDecision = "both" | "replace" | "skip";

let last = 0;

/** One file on its way to a folder. */
export class Upload {
  readonly id = (last += 1);
  readonly file: File;
  readonly folder: string;
  /** True if a dialog shows the upload; the list of uploads leaves it out then. */
  isEmbedded = false;
  name = $state("");
  state = $state<UploadState>("waiting");
  sent = $state(0);
  problem = $state("");
  question = $state.raw<UploadQuestion | null>(null);
  /** True if the problem can be solved by trying again. */
  canRetry = $state(true);
  replaces = false;
  mayBeDuplicate = false;
  hasStarted = false;
  control = new AbortController();

  constructor(file: File, folder: string) {
    this.file = file;
    this.folder = folder;
    this.name = nodeNameOf(file.name);
  }

  get path(): string {
    return childPath(this.folder, this.name);
  }

  get isOver(): boolean {
    return ["done", "skipped", "failed", "canceled"].includes(this.state);
  }
}

class Uploads {
  #list = $state<Upload[]>([]);
  /** The uploads that no dialog shows. */
  readonly shown = $derived(this.list.filter(({ isEmbedded }) => !isEmbedded));
  readonly open = $derived(this.shown.filter((upload) => !upload.isOver));
  readonly questions = $derived(this.shown.filter((upload) => upload.state === "asking"));
  readonly bytes = $derived(this.shown.reduce((sum, { file }) => sum + file.size, 0));
  readonly sentBytes = $derived(this.shown.reduce((sum, { file, sent, isOver }) => sum + (isOver ? file.size : sent), 0));
  /** Increases with each stored file; screens reload their list. */
  stored = $state(0);

  get list(): Upload[] {
    return this.#list;
  }

  set list(list: Upload[]) {
    this.#list = list;
    uploading.length = list.filter(({ isEmbedded }) => !isEmbedded).length;
  }

  /** The decisions for all further files until the queue is empty. */
  #rules: Partial<Record<UploadQuestion["kind"], UploadDecision>> = {};
  #folders = new Map<string, Promise<void>>();
  #running = 0;
  #watchers = new Map<Upload, (path: string | null) => void>();

  /** Uploads files to a folder. Folders that the files lie in are created. */
  add(files: FolderFile[], folder: string): Upload[] {
    const added = files.map(({ file, folders }) => new Upload(file, [folder, ...folders.map(nodeNameOf)].join("/")));
    this.list = [...this.list, ...added];
    this.#advance();
    return added;
  }

  /** Uploads one file and resolves with the path of its asset; with an existing one that the user chose, or `null`. */
  addOne(file: File, folder: string): { upload: Upload; path: Promise<string | null> } {
    const upload = new Upload(file, folder);
    upload.isEmbedded = true;
    // An earlier attempt with the same file makes way.
    this.list = [...this.list.filter((one) => !(one.isEmbedded && one.isOver)), upload];
    this.#advance();
    return { upload, path: new Promise((resolve) => this.#watchers.set(upload, resolve)) };
  }

  /** Replaces the file of an asset. */
  replace(file: File, path: string): Upload {
    const end = path.lastIndexOf("/");
    const upload = new Upload(file, path.slice(0, end));
    upload.name = path.slice(end + 1);
    upload.replaces = true;
    this.list = [...this.list, upload];
    this.#advance();
    return upload;
  }

  cancel(upload: Upload): void {
    if (upload.isOver) return;
    const hasStarted = upload.hasStarted;
    upload.state = "canceled";
    upload.control.abort();
    this.#end(upload, null);
    if (hasStarted) void discardReceived(upload.folder, this.#stagingOf(upload)).catch(() => {});
    this.#advance();
  }

  cancelAll(): void {
    for (const upload of this.open) this.cancel(upload);
  }

  retry(upload: Upload): void {
    upload.control = new AbortController();
    upload.problem = "";
    upload.state = "waiting";
    this.#advance();
  }

  /** Applies a decision to a file, and with `isForAll` to all files with the same question. */
  decide(upload: Upload, decision: UploadDecision, isForAll: boolean): void {
    const { question } = upload;
    if (!question) return;
    if (isForAll && !upload.isEmbedded) this.#rules[question.kind] = decision;
    const same = isForAll && !upload.isEmbedded ? this.questions.filter((one) => one.question?.kind === question.kind) : [upload];
    for (const one of same) this.#apply(one, decision);
    this.#advance();
  }

  /** Removes the files that are over from the list. */
  clear(): void {
    this.list = this.list.filter((upload) => !upload.isOver);
  }

  #apply(upload: Upload, decision: UploadDecision): void {
    const { question } = upload;
    upload.question = null;
    if (decision === "skip") {
      upload.state = "skipped";
      this.#end(upload, question?.paths[0] ?? null);
      return;
    }
    if (question?.kind === "duplicate") upload.mayBeDuplicate = true;
    else if (decision === "replace") upload.replaces = true;
    else upload.name = nextName(upload.name, (name) => this.list.some((one) => one !== upload && one.folder === upload.folder && one.name === name));
    upload.state = "waiting";
  }

  #advance(): void {
    while (this.#running < PARALLEL) {
      const next = this.list.find((upload) => upload.state === "waiting");
      if (!next) break;
      next.state = "sending";
      this.#running += 1;
      void this.#run(next).finally(() => {
        this.#running -= 1;
        this.#advance();
      });
    }
    if (this.open.length === 0) this.#rules = {};
  }

  async #run(upload: Upload): Promise<void> {
    for (let attempt = 1; ; attempt += 1) {
      try {
        return await this.#send(upload);
      } catch (error) {
        if (upload.state === "canceled") return;
        if (!isTransient(error) || attempt >= MOST_ATTEMPTS) return this.#fail(upload, error);
        upload.state = "paused";
        upload.problem = messageOf(error);
        await pause(1000 * 2 ** (attempt - 1), upload.control.signal);
        // The state may have changed while it was waiting.
        if ((upload.state as UploadState) === "canceled") return;
        upload.state = "sending";
        upload.problem = "";
      }
    }
  }

  #fail(upload: Upload, error: unknown): void {
    upload.state = "failed";
    const isUnreadable = error instanceof DOMException && error.name === "NotReadableError";
    upload.problem = isUnreadable ? t("The file can no longer be read. It was moved, renamed or changed.") : messageOf(error);
    this.#end(upload, null);
  }

  async #send(upload: Upload): Promise<void> {
    const { file, folder } = upload;
    if (file.size === 0) {
      upload.canRetry = false;
      throw new ServerError(422, t("The file is empty (0 bytes)."));
    }
    if (!(await this.#mayBeSent(upload))) return;
    await this.#ensureFolder(folder);
    const name = this.#stagingOf(upload);
    let offset = upload.hasStarted || file.size > CHUNK ? await receivedBytes(childPath(folder, name), file.size) : 0;
    upload.hasStarted = true;
    upload.sent = offset;
    while (offset < file.size) {
      const begin = offset;
      const end = Math.min(begin + CHUNK, file.size);
      const onprogress = (sent: number) => (upload.sent = Math.min(begin + sent, end));
      await sendForm(folder, chunkForm(name, file, begin, end), { onprogress, signal: upload.control.signal });
      offset = end;
      upload.sent = end;
    }
    await this.#store(upload, childPath(folder, name));
  }

  async #store(upload: Upload, staging: string): Promise<void> {
    upload.state = "storing";
    try {
      const change = { user: session.user ?? "", now: new Date() };
      if (upload.replaces) await replaceOriginal(staging, upload.path, change);
      else await storeAsset(staging, upload.path, { format: upload.file.type, ...change });
    } catch (error) {
      const isTaken = error instanceof ServerError && (error.status === 412 || error.status === 409) && !upload.replaces;
      if (!isTaken || (upload.state as UploadState) === "canceled") throw error;
      // Somebody created it after the check.
      this.#ask(upload, { kind: "exists", paths: [upload.path] });
      return;
    }
    upload.state = "done";
    this.stored += 1;
    this.#end(upload, upload.path);
  }

  /** Looks for assets with the same name or the same bytes. Returns false if the user must decide first. */
  async #mayBeSent(upload: Upload): Promise<boolean> {
    if (upload.replaces) return true;
    if (await exists(upload.path)) {
      if (this.#rules.exists !== "both") return this.#ask(upload, { kind: "exists", paths: [upload.path] });
      await this.#rename(upload);
    }
    if (upload.mayBeDuplicate) return true;
    const paths = await duplicatesOf(upload.file);
    if (paths.length === 0) return true;
    return this.#ask(upload, { kind: "duplicate", paths });
  }

  async #rename(upload: Upload): Promise<void> {
    const taken = new Set<string>();
    while (await exists(upload.path)) {
      taken.add(upload.name);
      upload.name = nextName(nodeNameOf(upload.file.name), (name) => taken.has(name));
    }
  }

  /** Asks the user, or applies the decision for all files. Returns true if the file may be sent at once. */
  #ask(upload: Upload, question: UploadQuestion): boolean {
    const rule = upload.isEmbedded ? undefined : this.#rules[question.kind];
    upload.question = question;
    if (rule) {
      this.#apply(upload, rule);
      return false;
    }
    upload.state = "asking";
    return false;
  }

  #ensureFolder(path: string): Promise<void> {
    const known = this.#folders.get(path);
    if (known) return known;
    const made = makeFolder(path).catch((error) => {
      this.#folders.delete(path);
      throw error;
    });
    this.#folders.set(path, made);
    return made;
  }

  #stagingOf({ file, replaces, name }: Upload): string {
    return stagingName(session.user ?? "", { name: replaces ? name : file.name, size: file.size, lastModified: file.lastModified });
  }

  #end(upload: Upload, path: string | null): void {
    this.#watchers.get(upload)?.(path);
    this.#watchers.delete(upload);
  }
}

function chunkForm(name: string, file: File, begin: number, end: number): FormData {
  const form = new FormData();
  form.set("_charset_", "utf-8");
  form.set(`./${name}@Offset`, String(begin));
  form.set(`./${name}@Length`, String(file.size));
  form.set(`./${name}`, file.slice(begin, end, file.type || "application/octet-stream"), "file");
  return form;
}

/** Creates a folder and those above it that are missing. */
async function makeFolder(path: string): Promise<void> {
  if (await exists(path)) return;
  await makeFolder(path.slice(0, path.lastIndexOf("/")));
  try {
    await sendTo("PUT", "/api/v1/nodes", { type: "sling:OrderedFolder", properties: {} }, { path }, { "If-None-Match": "*" });
  } catch (error) {
    if (!(error instanceof ServerError) || error.status !== 412) throw error;
  }
}

async function exists(path: string): Promise<boolean> {
  const statement = `SELECT [jcr:path] FROM [nt:base] AS a WHERE ISSAMENODE(a, '${path.replace(/'/g, "''")}')`;
  return (await sendTo<Rows>("POST", "/api/v1/query", { statement, limit: 1 })).rows.length > 0;
}

/** Returns the assets with the bytes of a file. */
async function duplicatesOf(file: File): Promise<string[]> {
  // Browsers offer hashes on HTTPS and on this machine only.
  if (file.size > MOST_HASHED || !globalThis.crypto?.subtle) return [];
  const digest = await crypto.subtle.digest("SHA-1", await file.arrayBuffer());
  const hash = [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  const statement = "SELECT [jcr:path] FROM [dam:Asset] AS a WHERE a.[jcr:content/metadata/dam:sha1] = $hash";
  const { rows } = await sendTo<Rows>("POST", "/api/v1/query", { statement, parameters: { hash }, limit: 5 });
  return rows.flatMap(({ path }) => path ?? []);
}

function isTransient(error: unknown): boolean {
  return error instanceof ServerError && [0, 408, 429, 502, 503, 504].includes(error.status);
}

/** Waits, at most until the browser is online again. */
function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      removeEventListener("online", end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    addEventListener("online", end, { once: true });
    signal.addEventListener("abort", end, { once: true });
  });
}

/** Returns the state of an upload in words. */
export function uploadText(upload: Upload): string {
  switch (upload.state) {
    case "waiting":
      return t("Waiting");
    case "asking":
      return upload.question?.kind === "exists" ? t("A file with this name exists here") : t("This file is already stored");
    case "sending":
      return t("{part} of {whole}", { part: byteText(upload.sent), whole: byteText(upload.file.size) });
    case "paused":
      return t("Interrupted, trying again");
    case "storing":
      return t("Storing");
    case "done":
      return upload.replaces ? t("Replaced") : t("Uploaded");
    case "skipped":
      return t("Skipped");
    case "canceled":
      return t("Canceled");
    case "failed":
      return upload.problem;
  }
}

export const uploads = new Uploads();
