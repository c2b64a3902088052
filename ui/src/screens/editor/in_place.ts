/**
 * Editing of one text on the page itself, in the preview's frame.
 *
 * Invariants
 * * A text that was not changed gets its nodes back. A changed one keeps the new text until its component is drawn again.
 * * Changes go through the form's draft, so that undo, saving and conflicts are the same as in the form.
 */
import { t } from "../../language";
import type { RichEditor } from "../../richtext/editor.svelte";
import type { EditableText } from "./editable";
import type { Direction } from "./history.svelte";

export interface InPlaceOptions {
  path: string;
  text: EditableText;
  value: string;
  label: string;
  onchange: (value: string) => void;
  onlink: () => void;
  onhistory: (direction: Direction) => void;
  /** Called when the user leaves the text: by Escape (`isBack`) or by going elsewhere. */
  onend: (isBack: boolean) => void;
}

export interface InPlace {
  path: string;
  field: string;
  element: HTMLElement;
  /** The editor of rich text; `null` for plain text. */
  rich: RichEditor | null;
  /** Shows a value that was changed elsewhere, for example by an undo. */
  show: (value: string) => void;
  focus: () => void;
  /** Ends the editing. Returns true if the element shows another text than the one that the page was drawn with. */
  end: () => boolean;
}

/** A point in the window of the page. */
export interface FramePoint {
  left: number;
  top: number;
}

/** Makes a text editable and places the caret at a point, or at its end. */
export function beginInPlace(options: InPlaceOptions, point: FramePoint | null): Promise<InPlace> {
  return options.text.kind === "rich" ? beginRich(options, point) : Promise.resolve(beginPlain(options));
}

async function beginRich(options: InPlaceOptions, point: FramePoint | null): Promise<InPlace> {
  const { RichEditor } = await import("../../richtext/editor.svelte");
  const { text } = options;
  const element = text.run ? wrapped(text.run) : text.element;
  const before = [...element.childNodes];
  const attributes = [...element.attributes].map(({ name, value }) => [name, value] as const);
  let isChanged = false;
  element.replaceChildren();
  const rich = new RichEditor(
    element,
    {
      attributes: { ...(element.className ? { class: element.className } : {}), role: "textbox", "aria-multiline": "true", "aria-label": options.label },
      html: options.value,
      onchange: (html) => {
        isChanged = true;
        options.onchange(html);
      },
      onlink: options.onlink,
      onhistory: options.onhistory,
      onescape: () => options.onend(true),
      onblur: () => options.onend(false),
    },
    t,
  );
  element.style.whiteSpace = "break-spaces";
  element.style.outline = "none";
  rich.placeCaret(point);
  rich.focus();
  return {
    path: options.path,
    field: text.field,
    element,
    rich,
    show: (value) => {
      isChanged = true;
      rich.show(value);
    },
    focus: () => rich.focus(),
    end: () => {
      const content = [...element.childNodes].map((node) => node.cloneNode(true));
      rich.destroy();
      restoreAttributes(element, attributes);
      element.replaceChildren(...(isChanged ? content : before));
      if (text.run && !isChanged) element.replaceWith(...element.childNodes);
      return isChanged;
    },
  };
}

function beginPlain(options: InPlaceOptions): InPlace {
  const { element, isMultiline } = options.text;
  const attributes = [...element.attributes].map(({ name, value }) => [name, value] as const);
  let isChanged = false;
  const listeners: [string, (event: Event) => void][] = [
    [
      "input",
      () => {
        isChanged = true;
        options.onchange(readPlain(element, isMultiline));
      },
    ],
    [
      "keydown",
      (event) => {
        const { key } = event as KeyboardEvent;
        if (key !== "Escape" && (key !== "Enter" || isMultiline)) return;
        event.preventDefault();
        event.stopPropagation();
        options.onend(true);
      },
    ],
    [
      "beforeinput",
      (event) => {
        const { inputType } = event as InputEvent;
        if (inputType !== "historyUndo" && inputType !== "historyRedo") return;
        event.preventDefault();
        options.onhistory(inputType === "historyUndo" ? "undo" : "redo");
      },
    ],
    ["blur", () => options.onend(false)],
  ];
  element.contentEditable = "plaintext-only";
  element.setAttribute("role", "textbox");
  element.setAttribute("aria-label", options.label);
  element.style.outline = "none";
  element.style.cursor = "text";
  for (const [name, act] of listeners) element.addEventListener(name, act);
  element.focus();
  const selection = element.ownerDocument.getSelection();
  selection?.selectAllChildren(element);
  selection?.collapseToEnd();
  return {
    path: options.path,
    field: options.text.field,
    element,
    rich: null,
    show: (value) => {
      if (readPlain(element, isMultiline) === value) return;
      isChanged = true;
      element.textContent = value;
    },
    focus: () => element.focus(),
    end: () => {
      for (const [name, act] of listeners) element.removeEventListener(name, act);
      restoreAttributes(element, attributes);
      return isChanged;
    },
  };
}

function readPlain(element: HTMLElement, isMultiline: boolean): string {
  const text = (element.innerText ?? "").replace(/\u00a0/g, " ");
  return isMultiline ? text.replace(/\n$/, "") : text.replace(/\s*\n\s*/g, " ");
}

function restoreAttributes(element: HTMLElement, attributes: (readonly [string, string])[]): void {
  const known = new Map(attributes);
  for (const name of element.getAttributeNames()) if (!known.has(name) && name !== "style") element.removeAttribute(name);
  for (const [name, value] of known) if (name !== "style") element.setAttribute(name, value);
  // The page may forbid style attributes, but not styles that are set by scripts.
  element.style.cssText = known.get("style") ?? "";
  if (!known.has("style")) element.removeAttribute("style");
}

/** Puts nodes into an element of their own, at their place. */
function wrapped(run: ChildNode[]): HTMLElement {
  const [first] = run;
  const holder = first?.ownerDocument?.createElement("div");
  if (!first || !holder) throw new Error("there is no text to edit");
  first.before(holder);
  holder.append(...run);
  return holder;
}
