/**
 * The client for all requests to the server: reads JSON, writes JSON and Sling POST bodies, and sends the CSRF token.
 *
 * Invariants
 * * A write is sent at most twice, and the second time only if the server refused the first one without processing it
 *   (401: the session has expired, 403: the token belongs to an earlier session).
 * * An error carries the server's own message, never a paraphrase.
 */
import { message, t } from "../language";
import type { CombinedReads, Login, Me, Problem, WriteAnswer } from "./answers";
import { encodeBody, type Pair } from "./post";
import { encodePath } from "../route";

/** The error of a request that the server refused, or that did not reach the server (status 0). */
export class ServerError extends Error {
  constructor(
    readonly status: number,
    message: string,
    /** The details of the error response. */
    readonly problem: Problem = {},
  ) {
    super(message);
    this.name = "ServerError";
  }
}

/** The value of `X-Requested-With`. Without it, a browser answers a 401 with a login dialog of its own. */
const SCRIPT = "XMLHttpRequest";

const HEADERS = { Accept: "application/json", "X-Requested-With": SCRIPT };
const API = "/api/v1/";

const UNREACHABLE = message("The server cannot be reached. Check the connection and try again.");

/** Signs the user in again after a 401. Resolves to true on success. */
export type Renewal = () => Promise<boolean>;

const state: { csrf: string; renew: Renewal; branch: string | null } = { csrf: "", renew: async () => false, branch: null };

/** The endpoints that read and write on the branch of a launch while one is edited. */
const OF_BRANCH = /^\/api\/v1\/(nodes|children|pages|page|dialog|batch|references)\b/;

/** Sets the branch that all later requests read and change; `null` selects the site itself. */
export function useBranch(name: string | null): void {
  state.branch = name;
}

/** The answers to reads that were sent ahead, by address. Each is used once. */
const ahead = new Map<string, Promise<Response | null>>();

/** Sends reads as one request, before what needs them asks for them. A read that is not answered is sent again alone. */
export function readAhead(addresses: string[]): void {
  if (addresses.length === 0) return;
  const reads = addresses.map((one) => one.slice(API.length));
  const combined = fetch(`${API}reads?${new URLSearchParams(reads.map((one) => ["read", one]))}`, { headers: HEADERS, credentials: "same-origin", cache: "no-store" });
  const answers = combined.then(async (response) => (response.ok ? ((await response.json()) as CombinedReads).answers : []));
  addresses.forEach((one, at) => {
    ahead.set(
      one,
      answers.then((all) => toResponse(all[at])).catch(() => null),
    );
  });
}

/** Drops answers that nothing has asked for: what they say may have changed since. */
export function forgetAhead(): void {
  ahead.clear();
}

function toResponse(answer: CombinedReads["answers"][number] | undefined): Response | null {
  if (!answer) return null;
  return new Response(JSON.stringify(answer.value), { status: answer.status, headers: answer.tag === null ? {} : { ETag: answer.tag } });
}

/** Sets the handler for responses with status 401. */
export function onSignedOut(renew: Renewal): void {
  state.renew = renew;
}

/** Returns the message of an error for display. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** The query parameters of a URL. A list repeats its name; undefined values are omitted. */
export type Parameters = Record<string, string | number | boolean | string[] | undefined>;

/** Returns a URL with query parameters. */
export function address(url: string, parameters: Parameters): string {
  const query = new URLSearchParams();
  if (state.branch !== null && OF_BRANCH.test(url)) query.set("branch", state.branch);
  for (const [name, value] of Object.entries(parameters)) {
    if (value === undefined) continue;
    for (const one of Array.isArray(value) ? value : [value]) query.append(name, String(one));
  }
  const text = query.toString();
  return text ? `${url}?${text}` : url;
}

/** Sends a GET request and returns the JSON response. */
export function read<T>(url: string, parameters: Parameters = {}): Promise<T> {
  return withRenewal(() => send<T>(address(url, parameters), { method: "GET" }));
}

/** Posts a Sling body to a resource. */
export function write(path: string, pairs: Pair[]): Promise<WriteAnswer> {
  return post(encodePath(path), encodeBody(pairs));
}

/** Posts a form to the API. */
export function post<T = WriteAnswer>(url: string, body: URLSearchParams): Promise<T> {
  return change<T>("POST", url, body);
}

/** A value with its entity tag. */
export interface Tagged<T> {
  value: T;
  tag: string | null;
}

/** Sends a GET request and returns the JSON response with its entity tag. */
export function readTagged<T>(url: string, parameters: Parameters = {}): Promise<Tagged<T>> {
  return withRenewal(async () => {
    const { value, response } = await answered<T>(address(url, parameters), { method: "GET" });
    return { value, tag: response.headers.get("ETag") };
  });
}

/** Sends JSON or an unmodified file to the API. */
export function sendTo<T>(method: "POST" | "PUT" | "PATCH" | "DELETE", url: string, body?: unknown, parameters: Parameters = {}, conditions: Record<string, string> = {}): Promise<T> {
  const isFile = body instanceof Blob || typeof body === "string";
  const sent = body === undefined ? undefined : isFile ? (body as BodyInit) : JSON.stringify(body);
  const kind = method === "PATCH" ? "application/merge-patch+json" : "application/json";
  const headers: Record<string, string> = body === undefined || isFile ? { ...conditions } : { "Content-Type": kind, ...conditions };
  return change<T>(method, address(url, parameters), sent, headers);
}

/** Sends a POST request that returns a file, e.g. a package that is built. */
export function fetchFile(url: string, body: string, parameters: Parameters = {}): Promise<Blob> {
  return guarded(async () => {
    const init = { method: "POST", body, headers: { "X-CSRF-Token": state.csrf } };
    return (await reach(address(url, parameters), init)).blob();
  });
}

/** How a form with files is sent. */
export interface FormSending {
  /** Called with the number of bytes of the body that were sent. */
  onprogress?: (sent: number) => void;
  signal?: AbortSignal;
}

/** Posts a form with files, with progress. An aborted request rejects with an `AbortError`. */
export function sendForm<T>(path: string, form: FormData, sending: FormSending = {}): Promise<T> {
  return guarded(() => sendFormOnce<T>(encodePath(path), form, sending));
}

/** `fetch` cannot report the progress of an upload. */
function sendFormOnce<T>(url: string, form: FormData, { onprogress, signal }: FormSending): Promise<T> {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    const abort = () => request.abort();
    request.open("POST", url);
    request.setRequestHeader("Accept", "application/json");
    request.setRequestHeader("X-Requested-With", SCRIPT);
    request.setRequestHeader("X-CSRF-Token", state.csrf);
    request.upload.onprogress = ({ loaded }) => onprogress?.(loaded);
    request.onabort = () => reject(new DOMException(t("The upload was canceled."), "AbortError"));
    request.onerror = () => reject(new ServerError(0, t(UNREACHABLE)));
    request.onload = () => {
      if (request.status >= 200 && request.status < 300) return resolve(parseAnswer(request.responseText) as T);
      const message = errorMessage(request.status, request.statusText, request.responseText);
      reject(new ServerError(request.status, message, parseAnswer(request.responseText) as Problem));
    };
    request.onloadend = () => signal?.removeEventListener("abort", abort);
    if (signal?.aborted) return reject(new DOMException(t("The upload was canceled."), "AbortError"));
    signal?.addEventListener("abort", abort);
    request.send(form);
  });
}

function change<T>(method: string, url: string, body: BodyInit | undefined, headers: Record<string, string> = {}): Promise<T> {
  return guarded(() => send<T>(url, { method, ...(body === undefined ? {} : { body }), headers: { ...headers, "X-CSRF-Token": state.csrf } }));
}

/** Runs a write, and once more with a new CSRF token if the first token belongs to an earlier session. */
function guarded<T>(attempt: () => Promise<T>): Promise<T> {
  return withRenewal(async () => {
    const sent = state.csrf;
    try {
      return await attempt();
    } catch (error) {
      if (!(error instanceof ServerError) || error.status !== 403) throw error;
      await whoAmI();
      if (state.csrf === sent) throw error;
      return attempt();
    }
  });
}

/** Returns the current user and stores the CSRF token. */
export async function whoAmI(): Promise<Me> {
  const me = await send<Me>("/api/v1/me", { method: "GET" });
  state.csrf = me.csrf ?? "";
  return me;
}

/** Signs in. The server sets the session cookie. */
export async function signIn(user: string, password: string): Promise<Login> {
  const login = await send<Login>("/login", { method: "POST", body: new URLSearchParams({ user, password }) });
  state.csrf = login.csrf;
  return login;
}

/** Signs out. */
export async function signOut(): Promise<void> {
  await send("/logout", { method: "POST", headers: { "X-CSRF-Token": state.csrf } });
  state.csrf = "";
}

async function withRenewal<T>(attempt: () => Promise<T>): Promise<T> {
  try {
    return await attempt();
  } catch (error) {
    if (!(error instanceof ServerError) || error.status !== 401) throw error;
    if (!(await state.renew())) throw error;
    return attempt();
  }
}

async function send<T>(url: string, init: RequestInit): Promise<T> {
  return (await answered<T>(url, init)).value;
}

async function answered<T>(url: string, init: RequestInit): Promise<{ value: T; response: Response }> {
  const response = await reach(url, init);
  return { value: parseAnswer(await response.text()) as T, response };
}

/** Sends a request. Returns successful responses only; throws a `ServerError` otherwise. */
async function reach(url: string, init: RequestInit): Promise<Response> {
  // A query is a POST request that changes nothing.
  if (init.method !== "GET" && url !== `${API}query`) forgetAhead();
  const early = ahead.get(url);
  ahead.delete(url);
  const headers = { ...HEADERS, ...init.headers };
  let response: Response;
  try {
    response = (await early) ?? (await fetch(url, { ...init, headers, credentials: "same-origin", cache: "no-store" }));
  } catch {
    throw new ServerError(0, t(UNREACHABLE));
  }
  if (response.ok) return response;
  const text = await response.text();
  throw new ServerError(response.status, errorMessage(response.status, response.statusText, text), parseAnswer(text) as Problem);
}

/** Returns the message of an error response: `detail` (API), `error`, `status.message` (Sling), or the status line. */
export function errorMessage(status: number, statusText: string, body: string): string {
  const answer = parseAnswer(body);
  for (const key of ["detail", "error", "status.message"]) {
    const message = answer[key];
    if (typeof message === "string" && message !== "") return message;
  }
  return `${status} ${statusText}`.trim();
}

function parseAnswer(text: string): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
  } catch {
    return {};
  }
}
