/**
 * The component that was copied or cut last, kept in this browser, so that it can be pasted on another page.
 */

export interface ClippedComponent {
  path: string;
  /** The component's name for messages. */
  name: string;
  resourceType: string | null;
  isCut: boolean;
}

const KEY = "tympan.clipboard";

export const clipboard = {
  read(): ClippedComponent | null {
    try {
      const clip = JSON.parse(localStorage.getItem(KEY) ?? "null") as ClippedComponent | null;
      return typeof clip?.path === "string" ? clip : null;
    } catch {
      return null;
    }
  },

  write(clip: ClippedComponent): void {
    try {
      localStorage.setItem(KEY, JSON.stringify(clip));
    } catch {
      // Without storage, nothing can be pasted.
    }
  },

  clear(): void {
    try {
      localStorage.removeItem(KEY);
    } catch {
      // It could not be stored either.
    }
  },
};
