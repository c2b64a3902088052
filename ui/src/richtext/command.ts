/**
 * The commands of the rich text editor, by name: for its tools, its menu of blocks, and its keys.
 */
import { setBlockType, toggleMark, wrapIn, lift } from "prosemirror-commands";
import type { MarkType, Node, NodeType } from "prosemirror-model";
import { liftListItem, wrapInList } from "prosemirror-schema-list";
import { Selection, type Command, type EditorState } from "prosemirror-state";
import { addColumnAfter, addRowAfter, deleteColumn, deleteRow, deleteTable, isInTable, toggleHeaderRow } from "prosemirror-tables";
import { emptyTable, schema } from "./schema";

export type MarkName = "strong" | "em" | "underline" | "strike" | "code" | "sub" | "sup";
export type BlockName = "paragraph" | "heading2" | "heading3" | "heading4" | "quote" | "bullets" | "numbers" | "table" | "rule";
export type TableCommand = "rowAfter" | "columnAfter" | "deleteRow" | "deleteColumn" | "headRow" | "deleteTable";

/** What the tools show about the place of the caret. */
export interface RichState {
  marks: Set<MarkName>;
  block: BlockName;
  link: string | null;
  isInTable: boolean;
  isEmptySelection: boolean;
}

const MARKS: MarkName[] = ["strong", "em", "underline", "strike", "code", "sub", "sup"];

export function nodeType(name: string): NodeType {
  const type = schema.nodes[name];
  if (!type) throw new Error(`the schema has no \`${name}\``);
  return type;
}

export function markType(name: string): MarkType {
  const type = schema.marks[name];
  if (!type) throw new Error(`the schema has no \`${name}\``);
  return type;
}

export function markCommand(name: MarkName): Command {
  return toggleMark(markType(name));
}

/** Returns the command that makes the selected blocks a kind of block; a list or quote that they are is taken off. */
export function blockCommand(name: BlockName): Command {
  switch (name) {
    case "paragraph":
      return (state, dispatch, view) => setBlockType(nodeType("paragraph"))(state, dispatch, view) || takeOff(state, dispatch, view);
    case "heading2":
    case "heading3":
    case "heading4": {
      const attrs = { level: Number(name.slice(-1)) };
      return setBlockType(nodeType("heading"), attrs);
    }
    case "quote":
      return (state, dispatch, view) => (isWithin(state, "blockquote") ? lift(state, dispatch, view) : wrapIn(nodeType("blockquote"))(state, dispatch, view));
    case "bullets":
      return listCommand("bullet_list");
    case "numbers":
      return listCommand("ordered_list");
    case "table":
      return insertBlock(() => emptyTable(3, 3));
    case "rule":
      return insertBlock(() => nodeType("horizontal_rule").create());
  }
}

export function tableCommand(name: TableCommand): Command {
  return { rowAfter: addRowAfter, columnAfter: addColumnAfter, deleteRow, deleteColumn, headRow: toggleHeaderRow, deleteTable }[name];
}

/** Returns the command that links the selected words; without a selection, it inserts the target as text. */
export function linkCommand(href: string): Command {
  return (state, dispatch) => {
    const type = markType("link");
    const { from, to, empty } = state.selection;
    const range = empty ? linkRange(state) : { from, to };
    if (!range) {
      dispatch?.(state.tr.replaceSelectionWith(schema.text(href, [type.create({ href })]), false));
      return true;
    }
    dispatch?.(state.tr.removeMark(range.from, range.to, type).addMark(range.from, range.to, type.create({ href })));
    return true;
  };
}

export const unlinkCommand: Command = (state, dispatch) => {
  const { from, to, empty } = state.selection;
  const range = empty ? linkRange(state) : { from, to };
  if (!range) return false;
  dispatch?.(state.tr.removeMark(range.from, range.to, markType("link")));
  return true;
};

/** Returns what the tools show for a state. */
export function richState(state: EditorState): RichState {
  const { from, to, empty, $from } = state.selection;
  const has = (type: MarkType) => (empty ? !!type.isInSet(state.storedMarks ?? $from.marks()) : state.doc.rangeHasMark(from, to, type));
  const link = markType("link").isInSet($from.marks()) ?? ($from.nodeAfter ? markType("link").isInSet($from.nodeAfter.marks) : undefined);
  return {
    marks: new Set(MARKS.filter((name) => has(markType(name)))),
    block: blockOf(state),
    link: link ? String(link.attrs.href) : null,
    isInTable: isInTable(state),
    isEmptySelection: empty,
  };
}

function blockOf(state: EditorState): BlockName {
  const { parent } = state.selection.$from;
  if (parent.type.name === "heading") return `heading${Math.min(4, Math.max(2, parent.attrs.level as number))}` as BlockName;
  if (isWithin(state, "bullet_list")) return "bullets";
  if (isWithin(state, "ordered_list")) return "numbers";
  return isWithin(state, "blockquote") ? "quote" : "paragraph";
}

function isWithin(state: EditorState, name: string): boolean {
  const { $from } = state.selection;
  for (let depth = $from.depth; depth > 0; depth -= 1) if ($from.node(depth).type.name === name) return true;
  return false;
}

const takeOff: Command = (state, dispatch, view) =>
  isWithin(state, "list_item") ? liftListItem(nodeType("list_item"))(state, dispatch) : lift(state, dispatch, view);

/** A list of the other kind changes its kind; one of the same kind is taken off. */
function listCommand(name: "bullet_list" | "ordered_list"): Command {
  return (state, dispatch, view) => {
    const { $from } = state.selection;
    for (let depth = $from.depth; depth > 0; depth -= 1) {
      const type = $from.node(depth).type.name;
      if (type === name) return takeOff(state, dispatch, view);
      if (type === "bullet_list" || type === "ordered_list") {
        dispatch?.(state.tr.setNodeMarkup($from.before(depth), nodeType(name)));
        return true;
      }
    }
    return wrapInList(nodeType(name))(state, dispatch);
  };
}

/** Returns the command that inserts a block and puts the caret into it, or after one without text. */
function insertBlock(make: () => Node): Command {
  return (state, dispatch) => {
    const tr = state.tr.replaceSelectionWith(make());
    const at = tr.mapping.map(state.selection.from, -1);
    dispatch?.(tr.setSelection(Selection.near(tr.doc.resolve(at), 1)).scrollIntoView());
    return true;
  };
}

/** Returns the range of the link at the caret. */
function linkRange(state: EditorState): { from: number; to: number } | null {
  const type = markType("link");
  const { $from } = state.selection;
  const { parent, parentOffset } = $from;
  let found: { from: number; to: number } | null = null;
  parent.forEach((child, offset) => {
    if (!type.isInSet(child.marks)) return;
    const from = $from.start() + offset;
    const to = from + child.nodeSize;
    if (offset <= parentOffset && parentOffset <= offset + child.nodeSize) {
      found = found && found.to === from ? { from: found.from, to } : { from, to };
    }
  });
  return found;
}
