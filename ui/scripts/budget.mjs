/**
 * Checks the built UI against its budgets and against what the Content-Security-Policy allows.
 *
 * Builds in memory, then counts gzipped bytes: the shell (what every screen loads), each screen (what it
 * adds to the shell), and the script that chooses and uploads content, which several screens load when it is first used.
 * Fails on a broken budget, on anything inline, and on an asset without a hashed name.
 */
import { gzipSync } from "node:zlib";
import { build } from "vite";

const KIB = 1024;
const SHELL_LIMIT = 60 * KIB;
/** What a screen adds to the shell. */
const SCREEN_LIMIT = 150 * KIB;
const CONTENT_LIMIT = 60 * KIB;
const CONTENT = /src\/content\.ts$/;
const SCREEN = /src\/screens\/(\w+)\/(?:Login|Sites|Assets|Editor|Queue|Versions|Permissions|Launches|Users|Packages|Mounts|Workflows|Operations|Search)\.svelte$/;

const { output } = await build({ logLevel: "warn", build: { write: false } });
const files = new Map(output.map((file) => [file.fileName, file]));
const problems = [...inlined(), ...unhashed()];

const entry = output.find((file) => file.isEntry);
const shell = closure(entry.fileName);
report("shell", shell, SHELL_LIMIT);
const content = output.find((file) => CONTENT.test(file.facadeModuleId ?? ""));
report("content", added(content), CONTENT_LIMIT);
for (const file of output) {
  const screen = SCREEN.exec(file.facadeModuleId ?? "");
  if (screen) report(screen[1], added(file), SCREEN_LIMIT);
}

for (const problem of problems) console.error(problem);
process.exit(problems.length === 0 ? 0 : 1);

/** Returns what a screen adds to the shell, with the scripts of its own that it loads as soon as they are needed. */
function added(file) {
  const all = closure(file.fileName);
  for (const next of file.dynamicImports) if (next !== content.fileName) closure(next, all);
  return new Set([...all].filter((name) => !shell.has(name)));
}

/** Returns a chunk with everything it imports at once: chunks and style sheets. */
function closure(name, seen = new Set()) {
  if (seen.has(name)) return seen;
  seen.add(name);
  const file = files.get(name);
  for (const next of [...(file.imports ?? []), ...(file.viteMetadata?.importedCss ?? [])]) closure(next, seen);
  return seen;
}

function report(label, names, limit) {
  const bytes = [...names].reduce((sum, name) => sum + gzipSync(sourceOf(files.get(name)), { level: 9 }).length, 0);
  console.log(`${label.padEnd(8)} ${(bytes / KIB).toFixed(1).padStart(6)} KiB gzip of ${limit / KIB}`);
  if (bytes > limit) problems.push(`${label} is over its budget: ${bytes} of ${limit} bytes`);
}

function sourceOf(file) {
  return file.type === "chunk" ? file.code : file.source;
}

/** Finds what a policy without `unsafe-inline` and `data:` would block. */
function inlined() {
  const html = String(sourceOf(files.get("index.html")));
  const found = [];
  if (/<script(?![^>]*\ssrc=)/i.test(html)) found.push("index.html: an inline script");
  if (/<style/i.test(html) || /\sstyle=/i.test(html)) found.push("index.html: an inline style");
  if (/\son\w+=/i.test(html)) found.push("index.html: an inline event handler");
  for (const file of output) {
    const text = String(sourceOf(file));
    if (/url\(["']?data:/i.test(text)) found.push(`${file.fileName}: a data: address`);
    if (/\bnew Function\(|\beval\(/.test(text)) found.push(`${file.fileName}: code made from text`);
    // Svelte sets styles through the DOM; a style attribute in a template would reach the page as text.
    if (file.type === "chunk" && /<[a-z]+[^<>]*\sstyle="/i.test(text)) found.push(`${file.fileName}: a style attribute in a template`);
  }
  return found;
}

function unhashed() {
  return output
    .filter((file) => file.fileName !== "index.html" && !/^assets\/[\w.-]+-[\w-]{8}\.\w+$/.test(file.fileName))
    .map((file) => `${file.fileName}: no hashed name below assets/`);
}
