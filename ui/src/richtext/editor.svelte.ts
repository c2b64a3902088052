/**
 * A rich text editor on an element: in the form beside the page, or on the page itself.
 *
 * In: clean HTML, and changes of it from outside. Out: clean HTML after each change of the user.
 *
 * Invariants
 * * A text that is opened and not changed is not reported.
 * * A change from outside (an undo, another user) replaces only the part that differs; the caret stays elsewhere.
 * * The editor has no history of its own: the page's history covers it.
 */
import { message } from "../language";
import { baseKeymap, chainCommands, exitCode } from "prosemirror-commands";
import { InputRule, inputRules, textblockTypeInputRule, wrappingInputRule } from "prosemirror-inputrules";
import { keymap } from "prosemirror-keymap";
import type { MarkType } from "prosemirror-model";
import { liftListItem, sinkListItem, splitListItem } from "prosemirror-schema-list";
import { EditorState, Plugin, Selection, TextSelection, type Command, type Transaction } from "prosemirror-state";
import { goToNextCell, tableEditing } from "prosemirror-tables";
import { EditorView } from "prosemirror-view";
import {
  blockCommand,
  linkCommand,
  markCommand,
  markType,
  nodeType,
  richState,
  tableCommand,
  unlinkCommand,
  type BlockName,
  type MarkName,
  type RichState,
  type TableCommand,
} from "./command";
import { cleanPasted } from "./paste";
import { parseHtml, writeHtml } from "./schema";

export { isKept } from "./schema";

export interface RichOptions {
  /** Attributes of the editable element, such as its label. */
  attributes: Record<string, string>;
  html: string;
  onchange: (html: string) => void;
  /** Opens the dialog for a link. */
  onlink: () => void;
  /** Undoes and redoes steps of the page. */
  onhistory: (direction: "undo" | "redo") => void;
  /** Called for Escape when no menu is open. */
  onescape?: () => void;
  onblur?: (event: FocusEvent) => void;
}

/** The menu of blocks that `/` opens at the start of a paragraph. */
export interface SlashMenu {
  query: string;
  at: number;
  /** The place of the slash in the window of the editor's document. */
  box: { left: number; top: number; bottom: number };
}

export interface SlashChoice {
  name: BlockName;
  words: string;
}

export const SLASH_CHOICES: SlashChoice[] = [
  { name: "paragraph", words: message("Paragraph") },
  { name: "heading2", words: message("Heading 2") },
  { name: "heading3", words: message("Heading 3") },
  { name: "heading4", words: message("Heading 4") },
  { name: "bullets", words: message("Bulleted list") },
  { name: "numbers", words: message("Numbered list") },
  { name: "quote", words: message("Quote") },
  { name: "table", words: message("Table") },
  { name: "rule", words: message("Dividing line") },
];

export class RichEditor {
  state = $state.raw<RichState | null>(null);
  slash = $state.raw<SlashMenu | null>(null);

  readonly #view: EditorView;
  readonly #options: RichOptions;
  #written: string;

  constructor(mount: HTMLElement, options: RichOptions, private readonly translate: (words: string) => string) {
    this.#options = options;
    this.#written = options.html;
    this.#view = new EditorView(
      { mount },
      {
        state: EditorState.create({ doc: parseHtml(options.html), plugins: this.#plugins() }),
        attributes: options.attributes,
        transformPastedHTML: (html) => cleanPasted(html),
        dispatchTransaction: (tr) => this.#dispatch(tr),
        handleDOMEvents: {
          blur: (_view, event) => {
            options.onblur?.(event);
            return false;
          },
          beforeinput: (_view, event) => {
            if (event.inputType !== "historyUndo" && event.inputType !== "historyRedo") return false;
            event.preventDefault();
            options.onhistory(event.inputType === "historyUndo" ? "undo" : "redo");
            return true;
          },
        },
      },
    );
    this.state = richState(this.#view.state);
  }

  /** Returns the choices of the menu of blocks that match what was typed after the slash. */
  get slashChoices(): SlashChoice[] {
    const query = this.slash?.query.toLowerCase() ?? "";
    return SLASH_CHOICES.filter(({ words }) => `${words} ${this.translate(words)}`.toLowerCase().includes(query));
  }

  focus(): void {
    this.#view.focus();
  }

  get hasFocus(): boolean {
    return this.#view.hasFocus();
  }

  /** Places the caret at a point of the window, or at the end. */
  placeCaret(point: { left: number; top: number } | null): void {
    const { state } = this.#view;
    const at = point && this.#view.posAtCoords(point);
    const selection = at ? TextSelection.near(state.doc.resolve(at.pos)) : Selection.atEnd(state.doc);
    this.#view.dispatch(state.tr.setSelection(selection));
  }

  /** Shows a text that was changed elsewhere. */
  show(html: string): void {
    if (html === this.#written) return;
    this.#written = html;
    const { state } = this.#view;
    const next = parseHtml(html);
    const start = state.doc.content.findDiffStart(next.content);
    const end = state.doc.content.findDiffEnd(next.content);
    if (start === null || end === null) return;
    const overlap = Math.max(0, start - Math.min(end.a, end.b));
    const tr = state.tr.replace(start, end.a + overlap, next.slice(start, end.b + overlap));
    this.#view.dispatch(tr.setMeta(OUTSIDE, true));
  }

  mark(name: MarkName): void {
    this.#run(markCommand(name));
  }

  block(name: BlockName): void {
    this.#run(blockCommand(name));
  }

  table(name: TableCommand): void {
    this.#run(tableCommand(name));
  }

  link(href: string): void {
    this.#run(linkCommand(href));
  }

  unlink(): void {
    this.#run(unlinkCommand);
  }

  /** Inserts the chosen block of the menu in place of what was typed. */
  chooseSlash(at: number): void {
    const choice = this.slashChoices[at];
    const { slash } = this;
    if (!choice || !slash) return;
    const { $from: caret } = this.#view.state.selection;
    this.slash = null;
    this.#view.dispatch(this.#view.state.tr.delete(caret.start(), caret.pos));
    this.block(choice.name);
  }

  destroy(): void {
    this.#view.destroy();
  }

  #run(command: Command): void {
    command(this.#view.state, (tr) => this.#view.dispatch(tr), this.#view);
    this.#view.focus();
  }

  #dispatch(tr: Transaction): void {
    const state = this.#view.state.apply(tr);
    this.#view.updateState(state);
    this.state = richState(state);
    this.#findSlash(state);
    if (!tr.docChanged || tr.getMeta(OUTSIDE) === true) return;
    const html = writeHtml(state.doc);
    if (html === this.#written) return;
    this.#written = html;
    this.#options.onchange(html);
  }

  #findSlash(state: EditorState): void {
    const { $from: caret, empty } = state.selection;
    const typed = empty && caret.parent.type.name === "paragraph" ? caret.parent.textBetween(0, caret.parentOffset, " ", " ") : "";
    const query = /^\/(\S{0,12}( \d?)?)$/.exec(typed)?.[1];
    if (query === undefined || caret.parentOffset !== caret.parent.content.size || !this.#view.hasFocus()) {
      this.slash = null;
      return;
    }
    const { left, top, bottom } = this.#view.coordsAtPos(caret.start());
    this.slash = { query, at: 0, box: { left, top, bottom } };
    if (this.slashChoices.length === 0) this.slash = null;
  }

  #plugins(): Plugin[] {
    const item = nodeType("list_item");
    const breakLine: Command = (state, dispatch) => {
      dispatch?.(state.tr.replaceSelectionWith(nodeType("hard_break").create()).scrollIntoView());
      return true;
    };
    const history = (direction: "undo" | "redo"): Command => () => {
      this.#options.onhistory(direction);
      return true;
    };
    return [
      new Plugin({ props: { handleKeyDown: (_view, event) => this.#slashKey(event) } }),
      inputRules({ rules: markdownRules() }),
      keymap({
        "Mod-b": markCommand("strong"),
        "Mod-i": markCommand("em"),
        "Mod-u": markCommand("underline"),
        "Mod-k": () => {
          this.#options.onlink();
          return true;
        },
        "Mod-z": history("undo"),
        "Mod-y": history("redo"),
        "Shift-Mod-z": history("redo"),
        "Shift-Mod-7": blockCommand("numbers"),
        "Shift-Mod-8": blockCommand("bullets"),
        "Mod-Alt-0": blockCommand("paragraph"),
        "Mod-Alt-2": blockCommand("heading2"),
        "Mod-Alt-3": blockCommand("heading3"),
        "Mod-Alt-4": blockCommand("heading4"),
        Enter: splitListItem(item),
        "Shift-Enter": chainCommands(exitCode, breakLine),
        Tab: chainCommands(goToNextCell(1), sinkListItem(item)),
        "Shift-Tab": chainCommands(goToNextCell(-1), liftListItem(item)),
        Escape: () => {
          if (!this.#options.onescape) return false;
          this.#options.onescape();
          return true;
        },
      }),
      keymap(baseKeymap),
      tableEditing(),
    ];
  }

  #slashKey(event: KeyboardEvent): boolean {
    const { slash } = this;
    if (!slash) return false;
    const { length } = this.slashChoices;
    const acts: Record<string, () => void> = {
      ArrowDown: () => (this.slash = { ...slash, at: (slash.at + 1) % length }),
      ArrowUp: () => (this.slash = { ...slash, at: (slash.at + length - 1) % length }),
      Enter: () => this.chooseSlash(slash.at),
      Tab: () => this.chooseSlash(slash.at),
      Escape: () => (this.slash = null),
    };
    const act = acts[event.key];
    if (!act) return false;
    event.preventDefault();
    act();
    return true;
  }
}

const OUTSIDE = "outside";

/** The shortcuts of Markdown: `## `, `- `, `1. `, `> `, `**bold**`, `*italic*`, `` `code` ``, `~~struck~~`. */
function markdownRules(): InputRule[] {
  return [
    textblockTypeInputRule(/^(#{1,4})\s$/, nodeType("heading"), (match) => ({ level: Math.max(2, match[1]?.length ?? 2) })),
    wrappingInputRule(/^\s*>\s$/, nodeType("blockquote")),
    wrappingInputRule(/^\s*([-+*])\s$/, nodeType("bullet_list")),
    wrappingInputRule(/^(\d+)[.)]\s$/, nodeType("ordered_list")),
    markRule(/(?:^|[\s(])(\*\*([^*\s](?:[^*]*[^*\s])?)\*\*)$/, markType("strong")),
    markRule(/(?:^|[\s(])(\*([^*\s](?:[^*]*[^*\s])?)\*)$/, markType("em")),
    markRule(/(?:^|[\s(])(`([^`]+)`)$/, markType("code")),
    markRule(/(?:^|[\s(])(~~([^~\s](?:[^~]*[^~\s])?)~~)$/, markType("strike")),
    new InputRule(/^---$/, (state, _match, from, to) => state.tr.delete(from, to).replaceSelectionWith(nodeType("horizontal_rule").create())),
  ];
}

/** A rule that replaces words between signs by the words in a format. The first group is all, the second the words. */
function markRule(pattern: RegExp, type: MarkType): InputRule {
  return new InputRule(pattern, (state, match, from, to) => {
    const [all = "", signed = "", words = ""] = match;
    const begin = from + all.indexOf(signed);
    const inner = begin + signed.indexOf(words);
    const tr = state.tr;
    // The last sign is not in the document yet: the rule runs before it is typed.
    tr.delete(inner + words.length, to).delete(begin, inner);
    return tr.addMark(begin, begin + words.length, type.create()).removeStoredMark(type);
  });
}
