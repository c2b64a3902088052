/** Every text of every screen is a message: nothing that a user reads is outside the message files. */
import assert from "node:assert/strict";
import { open, openSaving } from "../harness.mjs";
import { SCREENS } from "./screens.mjs";

/** Runs in the page before its scripts: marks dates and times too, which the browser puts into words. */
function markTimes() {
  localStorage.setItem("tympan.language", "marked");
  const mark = (text) => `\u200b${text}\u00ad`;
  const relative = Intl.RelativeTimeFormat.prototype.format;
  Intl.RelativeTimeFormat.prototype.format = function (...given) {
    return mark(relative.apply(this, given));
  };
  const { get } = Object.getOwnPropertyDescriptor(Intl.DateTimeFormat.prototype, "format");
  Object.defineProperty(Intl.DateTimeFormat.prototype, "format", {
    get() {
      const format = get.call(this);
      return (...given) => mark(format(...given));
    },
  });
}

/** Runs in the page: returns the words that are shown, read aloud or given as hints, without those of messages. */
function unmarkedTexts() {
  const found = [];
  const isCode = (element) => element.closest("code, kbd, pre, iframe, script, style, noscript, [contenteditable=true]") !== null;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) if (!isCode(node.parentElement)) found.push(node.data);
  for (const element of document.querySelectorAll("*")) {
    for (const name of ["aria-label", "title", "placeholder", "alt", "aria-description", "aria-valuetext"]) {
      const value = element.getAttribute(name);
      if (value) found.push(value);
    }
  }
  found.push(document.title);
  // Messages may have messages in them.
  const withoutMarked = (text) => {
    for (;;) {
      const shorter = text.replace(/\u200b[^\u200b\u00ad]*\u00ad/g, " ");
      if (shorter === text) return text;
      text = shorter;
    }
  };
  return found.map((text) => withoutMarked(text).replace(/\s+/g, " ").trim()).filter((text) => /\p{L}{2,}/u.test(text));
}

/** The program's name, languages in their own words, units, and keys, which are the same in every language. */
const SAME = /^(tympan|deutsch|english|[mkg]i?b|px|ms|min|html|jpeg|pdf|image|ctrl|esc|alt|shift|tab|home|end|f2|rrggbb)$/;
/** What the tests of the screens type and upload, and the privileges that are offered by their names. */
const TYPED = "Slow days by the sea on the Adriatic Seven ferry and one foot new.zip jcr:modifyProperties removeChildNodes addChildNodes removeNode versionManagement readAccessControl modifyAccessControl rep:userManagement write crx:replicate all";

const wordsOf = (text) => text.toLowerCase().match(/\p{L}{2,}/gu) ?? [];

export async function every_text_of_every_screen_is_a_message(world) {
  const { page } = world;
  await page.addInitScript(markTimes);
  // Whatever the server answers is content.
  let content = "";
  const isData = (url) => url.pathname.startsWith("/api/") && url.pathname !== "/api/v1/changes";
  await page.route(isData, async (route) => {
    const response = await route.fetch();
    const text = await response.text();
    content += text;
    await route.fulfill({ response });
  });
  const left = new Map();
  for (const { name, address, ready, after } of SCREENS) {
    await (name.startsWith("editor") ? openSaving : open)(world, address);
    await ready(page, world);
    const known = new Set(wordsOf(`${content} ${decodeURIComponent(address)} ${TYPED}`));
    const isKnown = (word) => known.has(word) || SAME.test(word);
    // Where content is too long for its place, its last word may be cut.
    const cutOf = (text) => /(\p{L}{2,})…$/u.exec(text.toLowerCase())?.[1];
    const isContent = (text) => wordsOf(text).every((word) => isKnown(word) || (word === cutOf(text) && [...known].some((one) => one.startsWith(word))));
    for (const text of await page.evaluate(unmarkedTexts)) if (!isContent(text)) left.set(text, name);
    await after?.(page);
    if (name === "editor-invalid") await page.getByRole("button", { name: "Discard" }).click();
  }
  assert.deepEqual([...left].map(([text, name]) => `${name}: ${text}`).join("\n"), "");
}
