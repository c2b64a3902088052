/**
 * The history of the screen that is open, for fields that take the keys of undo and redo themselves.
 */
import type { Direction } from "../screens/editor/history.svelte";

class Edits {
  /** Undoes or redoes the last edit of the open screen. */
  walk: (direction: Direction) => void = () => {};
}

export const edits = new Edits();
