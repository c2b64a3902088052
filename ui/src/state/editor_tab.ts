/**
 * The identity of this tab as an editor. Two tabs of one user are two editors: each has its own drafts and history.
 *
 * The identity is kept in the session storage, so that it survives a reload. A duplicated tab copies that storage; the
 * lock that the first tab holds tells the copy that the identity is taken. Without locks (the page is neither on HTTPS
 * nor on this machine) a duplicated tab shares the identity of its original.
 */

const KEY = "tympan.editor";
const LOCK = "tympan.editor ";
/** A reloaded tab gets its lock back when the browser has ended the previous document. */
const PATIENCE_MS = 1000;
const PAUSE_MS = 50;

let claimed: Promise<string> | null = null;

/** Returns the identity of this tab. */
export function editorTab(): Promise<string> {
  return (claimed ??= claim());
}

/** Returns the identities of all open tabs; `null` if the browser does not tell. */
export async function openTabs(): Promise<Set<string> | null> {
  if (!("locks" in navigator)) return null;
  const { held = [] } = await navigator.locks.query();
  return new Set(held.flatMap(({ name }) => (name?.startsWith(LOCK) ? [name.slice(LOCK.length)] : [])));
}

async function claim(): Promise<string> {
  const stored = read();
  if (stored === null) return begin();
  if (!("locks" in navigator)) return stored;
  for (let waited = 0; waited <= PATIENCE_MS; waited += PAUSE_MS) {
    if (await hold(stored)) return stored;
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  }
  return begin();
}

async function begin(): Promise<string> {
  const id = [...crypto.getRandomValues(new Uint8Array(5))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  try {
    sessionStorage.setItem(KEY, id);
  } catch {
    // Without storage, the identity ends with the document.
  }
  if ("locks" in navigator) await hold(id);
  return id;
}

/** Takes the lock of an identity until the tab is closed. Resolves to false if another tab holds it. */
function hold(id: string): Promise<boolean> {
  return new Promise((resolve) => {
    void navigator.locks.request(LOCK + id, { ifAvailable: true }, (lock) => {
      resolve(lock !== null);
      return lock === null ? undefined : new Promise<void>(() => {});
    });
  });
}

function read(): string | null {
  try {
    const id = sessionStorage.getItem(KEY);
    return id !== null && /^[0-9a-f]{10}$/.test(id) ? id : null;
  } catch {
    return null;
  }
}
