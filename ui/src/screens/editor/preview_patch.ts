/**
 * Draws changes of a page into its preview without reloading it.
 *
 * In: the live document, the server's HTML that it shows, and the server's new HTML. Two texts of the server are
 * compared, not the live document, so that what scripts of the page changed in it stays.
 *
 * Invariants
 * * A component whose own markup is equal in both texts keeps its live elements, with focus, scroll position and state.
 * * A component that changed is drawn again as a whole, around the unchanged components inside it. If only the components
 *   inside it were added, removed or moved, it stays.
 * * A component that is edited in place is left alone.
 *
 * A component that was drawn again gets the event `tympan-redraw`, so that scripts of the site can begin anew.
 */

const PATH = "data-tympan-path";

export interface PatchResult {
  /** The paths of the components that were drawn again or added. */
  redrawn: string[];
  /** False if the live document does not correspond to the server's HTML; the preview must be reloaded. */
  isComplete: boolean;
}

/** Draws the difference of two texts of the server into the live document. `isHeld` tells components to leave alone. */
export function patchPreview(live: Document, before: Document, after: Document, isHeld: (path: string) => boolean): PatchResult {
  const patch = new Patch(live, isHeld);
  patch.head(before, after);
  patch.children(live.body, before.body, after.body);
  return { redrawn: patch.redrawn, isComplete: patch.isComplete };
}

class Patch {
  readonly redrawn: string[] = [];
  isComplete = true;

  constructor(
    private readonly live: Document,
    private readonly isHeld: (path: string) => boolean,
  ) {}

  /** Adds the styles and scripts that new components need, and follows the title. */
  head(before: Document, after: Document): void {
    if (before.title !== after.title) this.live.title = after.title;
    const known = new Set([...before.head.children].map((one) => one.outerHTML));
    for (const one of after.head.children) {
      if (one.tagName !== "TITLE" && !known.has(one.outerHTML)) this.live.head.append(this.imported(one));
    }
  }

  /** Brings the children of a live element from one text to the other. */
  children(live: Element, before: Element, after: Element): void {
    if (before.isEqualNode(after)) return;
    attributes(live, before, after);
    const pairs = pairChildren(before, after);
    const liveOf = liveChildren(live, before);
    if (!liveOf) return this.replaceChildren(live, before, after);
    const kept = new Set<Node>();
    const wanted = [...after.childNodes].map((next) => {
      const old = pairs.get(next);
      const present = old ? liveOf.get(old) : undefined;
      if (!old || !present) return this.added(next);
      kept.add(present);
      return this.brought(present, old, next);
    });
    for (const old of before.childNodes) {
      const present = liveOf.get(old);
      if (present && !kept.has(present)) (present as ChildNode).remove();
    }
    this.arrange(live, wanted as ChildNode[]);
  }

  /** Brings nodes into an order. Others, which scripts of the page added, stay where they are. */
  private arrange(live: Element, wanted: ChildNode[]): void {
    const all = new Set(wanted);
    const nextOf = (node: ChildNode | null) => {
      let next = node;
      while (next && !all.has(next)) next = next.nextSibling;
      return next;
    };
    let target = nextOf(live.firstChild);
    let last: ChildNode | null = null;
    for (const node of wanted) {
      if (node === target) target = nextOf(node.nextSibling);
      else live.insertBefore(node, target ?? (last ? last.nextSibling : null));
      last = node;
    }
  }

  private brought(live: Node, before: Node, after: Node): Node {
    if (before.isEqualNode(after)) return live;
    if (!isElement(after) || !isElement(before) || !isElement(live)) {
      live.textContent = after.textContent;
      return live;
    }
    const path = after.getAttribute(PATH);
    if (path === null) {
      this.children(live, before, after);
      return live;
    }
    if (this.isHeld(path)) return live;
    if (shellOf(before) === shellOf(after)) {
      this.parts(live, before, after);
      return live;
    }
    if (frameOf(before) === frameOf(after)) {
      // Components inside were added, removed or moved.
      this.children(live, before, after);
      return live;
    }
    return this.redraw(live, before, after, path);
  }

  /** Brings the components inside of an unchanged component from one text to the other. */
  private parts(live: Element, before: Element, after: Element): void {
    for (const next of partsOf(after)) {
      const path = next.getAttribute(PATH) ?? "";
      const [old, present] = [partAt(before, path), partAt(live, path)];
      if (old && present) {
        const drawn = this.brought(present, old, next);
        if (drawn !== present) present.replaceWith(drawn);
      } else this.isComplete = false;
    }
  }

  private redraw(live: Element, before: Element, after: Element, path: string): Element {
    const drawn = this.imported(after) as Element;
    for (const part of partsOf(drawn)) {
      const at = part.getAttribute(PATH) ?? "";
      const [old, present] = [partAt(before, at), partAt(live, at)];
      const next = partAt(after, at);
      if (old && present && next) part.replaceWith(this.brought(present, old, next));
    }
    this.redrawn.push(path);
    live.replaceWith(drawn);
    announce(drawn);
    return drawn;
  }

  private added(next: Node): Node {
    const node = this.imported(next);
    if (!isElement(node)) return node;
    const drawn = node.hasAttribute(PATH) ? [node] : [...node.querySelectorAll(`[${PATH}]`)];
    this.redrawn.push(...drawn.map((one) => one.getAttribute(PATH) ?? ""));
    queueMicrotask(() => drawn.forEach(announce));
    return node;
  }

  /** Draws all children again, where scripts of the page changed their number. */
  private replaceChildren(live: Element, before: Element, after: Element): void {
    const holdsHeld = [...live.querySelectorAll(`[${PATH}]`)].some((one) => this.isHeld(one.getAttribute(PATH) ?? ""));
    if (holdsHeld || live === this.live.body) {
      // The components inside can still be found by their paths.
      if (shellOf(before) === shellOf(after)) this.parts(live, before, after);
      else this.isComplete = false;
      return;
    }
    live.replaceChildren(...[...after.childNodes].map((next) => this.added(next)));
  }

  /** Returns a copy of a node for the live document. Scripts of parsed documents never run; their copies do. */
  private imported(node: Node): Node {
    const copy = this.live.importNode(node, true);
    if (!isElement(copy)) return copy;
    const scripts = copy.tagName === "SCRIPT" ? [copy] : [...copy.querySelectorAll("script")];
    for (const script of scripts) {
      const fresh = this.live.createElement("script");
      for (const { name, value } of script.attributes) fresh.setAttribute(name, value);
      fresh.textContent = script.textContent;
      if (script === copy) return fresh;
      script.replaceWith(fresh);
    }
    return copy;
  }
}

/** Pairs the children of two states of an element: components by path, others in order of equal tags. */
function pairChildren(before: Element, after: Element): Map<Node, Node> {
  const pairs = new Map<Node, Node>();
  const left = new Set<Node>(before.childNodes);
  const take = (next: Node, old: Node | undefined) => {
    if (!old) return;
    pairs.set(next, old);
    left.delete(old);
  };
  const open = [...after.childNodes];
  for (const next of open) take(next, [...left].find((old) => pathOf(next) !== null && pathOf(old) === pathOf(next)));
  for (const next of open) if (!pairs.has(next) && pathOf(next) === null) take(next, [...left].find((old) => old.isEqualNode(next)));
  for (const next of open) {
    if (!pairs.has(next) && pathOf(next) === null) take(next, [...left].find((old) => pathOf(old) === null && old.nodeName === next.nodeName));
  }
  return pairs;
}

/** Pairs the server's children of an element with the live ones; `null` if they do not correspond. */
function liveChildren(live: Element, before: Element): Map<Node, Node> | null {
  const pairs = new Map<Node, Node>();
  const present = [...live.childNodes];
  let at = 0;
  for (const old of before.childNodes) {
    while (at < present.length && !corresponds(present[at] as Node, old)) at += 1;
    const one = present[at];
    if (!one) return null;
    pairs.set(old, one);
    at += 1;
  }
  return pairs;
}

function corresponds(live: Node, before: Node): boolean {
  if (live.nodeName !== before.nodeName || pathOf(live) !== pathOf(before)) return false;
  return !isElement(live) || !isElement(before) || live.id === before.id;
}

function attributes(live: Element, before: Element, after: Element): void {
  for (const { name, value } of after.attributes) if (before.getAttribute(name) !== value) live.setAttribute(name, value);
  for (const { name } of before.attributes) if (!after.hasAttribute(name)) live.removeAttribute(name);
}

/** Returns the markup of a component without that of the components inside it. */
function shellOf(component: Element): string {
  const copy = component.cloneNode(true) as Element;
  for (const part of partsOf(copy)) part.replaceChildren();
  return copy.outerHTML;
}

/** Returns the markup of a component as if it held no components. */
function frameOf(component: Element): string {
  const copy = component.cloneNode(true) as Element;
  for (const part of partsOf(copy)) part.remove();
  return copy.outerHTML.replace(/\s+/g, " ");
}

/** Returns the outermost components inside an element. */
function partsOf(element: Element): Element[] {
  return [...element.querySelectorAll(`[${PATH}]`)].filter((one) => {
    const around = one.parentElement?.closest(`[${PATH}]`);
    return !around || around === element || !element.contains(around);
  });
}

function partAt(element: Element, path: string): Element | null {
  return element.querySelector(`[${PATH}="${CSS.escape(path)}"]`);
}

function pathOf(node: Node): string | null {
  return isElement(node) ? node.getAttribute(PATH) : null;
}

function isElement(node: Node | null): node is Element {
  return node?.nodeType === 1;
}

function announce(element: Element): void {
  const view = element.ownerDocument.defaultView as (Window & typeof globalThis) | null;
  if (view && element.isConnected) element.dispatchEvent(new view.CustomEvent("tympan-redraw", { bubbles: true }));
}
