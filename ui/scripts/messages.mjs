/**
 * Extracts the messages of the UI and finds texts that are not messages.
 *
 * A message is an English text in the code that `t`, `tn` or `message` of `src/language.ts` takes. `src/language/en.json`
 * lists all of them, and `src/language/de*.ts` hold the German ones. `npm run messages` writes the list. The test
 * `language` fails for a list that is not current, for a message without a German text, and for a literal text that a
 * user would see.
 */
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { parse } from "svelte/compiler";

const SOURCES = fileURLToPath(new URL("../src/", import.meta.url));
const LIST = join(SOURCES, "language/en.json");

/** The attributes of elements and components that users see or hear. Values of other attributes are for the program. */
const SHOWN = /^(title|text|lead|what|label|hint|noun|alt|placeholder|action|reason|done|refused|aria-(label|description|roledescription|placeholder|valuetext))$/;
/** Properties of objects that are shown. */
const SHOWN_PROPERTIES = /^(title|text|label|hint|meaning|action|said|noun|words|done|refused|reason|lead|placeholder)$/;
const LETTERS = /\p{L}{2,}/u;
/** A sentence, or several words: no name of a key, a type or a class looks so. */
const PROSE = /^[\p{Lu}“][\p{L}\p{P}]*\p{L}*\s+\S|\p{Ll}{2,}[.!?]$|\p{L}{2,} .*\p{L}{2,} .*\p{L}{2,}/u;
/** Queries and selectors. */
const CODE = /^(set the times of|\/|SELECT|CAST|ORDER BY|CONTAINS|ISDESCENDANTNODE|ISSAMENODE|a\.\[|cq5dam|translate|scale|repeat|minmax|px|, minmax|#rrggbb|\/content|\w+ > \w+|strong strong)|^(Alt|Ctrl|Shift)\b.*[↑↓→←]$/;
/** Texts that are the same in every language, and what is not shown although it looks like words. */
const SAME = /^(· Tympan|Tympan|English|Deutsch|px|MiB|KiB|GiB|kB|MB|GB|KB|TB|B|HTML|WebP|Ctrl|Esc|Alt|F2|id|https?:.*|YYYY.*|rgba?\(.*)$/;

/** Returns the messages and the untranslated texts of a file. */
export function findMessages(file, source) {
  const isScript = file.endsWith(".ts");
  const [head, tail] = isScript ? ['<script lang="ts">', "</script>"] : ["", ""];
  const messages = new Set();
  const literals = [];
  const add = (node, text) => literals.push({ start: node.start - head.length, end: node.end - head.length, node, text: text.trim() });
  walk(parse(head + source + tail, { modern: true }), []);
  return { messages, literals };

  function walk(node, above) {
    if (Array.isArray(node)) return node.forEach((one) => walk(one, above));
    if (typeof node !== "object" || node === null) return undefined;
    if (typeof node.type === "string" && visit(node, above) === false) return undefined;
    const inside = typeof node.type === "string" ? [...above, node] : above;
    for (const [key, value] of Object.entries(node)) {
      if (key !== "metadata" && key !== "parent" && key !== "css" && key !== "typeAnnotation" && key !== "typeArguments" && key !== "comments" && typeof value === "object") walk(value, inside);
    }
    return undefined;
  }

  function visit(node, above) {
    const parent = above.at(-1);
    switch (node.type) {
      case "CallExpression":
        return visitCall(node, above);
      case "Comment":
      case "ImportDeclaration":
      case "ExportAllDeclaration":
      case "TSTypeAliasDeclaration":
      case "TSInterfaceDeclaration":
      case "TSAsExpression":
        return node.type === "TSAsExpression" ? (walk(node.expression, above), false) : false;
      case "Text": {
        const isOfAttribute = parent?.type === "Attribute";
        if (isOfAttribute ? SHOWN.test(parent.name) : !above.some(({ name }) => name === "code" || name === "kbd")) checkText(node, node.data);
        return false;
      }
      case "Literal":
        if (typeof node.value === "string" && isShown(node, node.value, above)) checkText(node, node.value);
        return false;
      case "TemplateLiteral": {
        const text = node.quasis.map(({ value }) => value.cooked).join("{}");
        if (isShown(node, text, above)) checkText(node, text);
        return undefined;
      }
      default:
        return undefined;
    }
  }

  function checkText(node, text) {
    const plain = text.replace(/\{\}/g, " ").trim();
    if (LETTERS.test(plain) && !SAME.test(plain) && !CODE.test(plain)) add(node, text);
  }

  /** Tells whether a string is shown: it is prose, the result of an expression in the page, or has a shown place. */
  function isShown(node, text, above) {
    const parent = above.at(-1);
    if (parent.type === "BinaryExpression" && /^[!=]==?$/.test(parent.operator)) return false;
    if (parent.type === "SwitchCase" || parent.type === "MemberExpression" || parent.type === "ThrowStatement" || parent.type === "TSLiteralType") return false;
    if (parent.type === "Property" && parent.key === node) return false;
    if (parent.type === "NewExpression" || (parent.type === "CallExpression" && parent.callee.property?.name === "test")) return false;
    if (PROSE.test(text) && !/^[\w-]+(\/[\w-]+)+|^[a-z]+:/.test(text) && !/[{}]{2}.*[=<]/.test(text)) return true;
    const place = placeOf(node, above);
    if (place.type === "ExpressionTag") return isShownTag(place, above);
    if (place.type === "Property") return SHOWN_PROPERTIES.test(place.key.name ?? "") && /^\p{Lu}|\s/u.test(text);
    return place.type === "CallExpression" && /^(good|bad|info)$/.test(place.callee.property?.name ?? "");
  }

  function isShownTag(tag, above) {
    const owner = above[above.indexOf(tag) - 1];
    return owner.type === "Attribute" ? SHOWN.test(owner.name) : true;
  }

  /** Returns what takes the value of a string: through conditions and alternatives. */
  function placeOf(node, above) {
    let value = node;
    for (const one of above.toReversed()) {
      const passes = (one.type === "ConditionalExpression" && one.test !== value) || (one.type === "LogicalExpression" && one.right === value) || one.type === "TSAsExpression";
      if (!passes) return one;
      value = one;
    }
    return node;
  }

  function visitCall(node, above) {
    const name = node.callee.type === "Identifier" ? node.callee.name : "";
    if (name === "t" || name === "message") take(node.arguments[0]);
    else if (name === "tn") node.arguments.slice(1, 3).forEach(take);
    else return undefined;
    walk(node.arguments.slice(name === "tn" ? 3 : 1), [...above, node]);
    return false;
  }

  function take(argument) {
    if (argument?.type === "ConditionalExpression") [argument.consequent, argument.alternate].forEach(take);
    else if (argument?.type === "Literal") messages.add(argument.value);
    else if (argument?.type === "TemplateLiteral") add(argument, "a message that is put together");
  }
}

/** Returns the messages of all files, with the file of each, and the texts that are no messages. */
export function readSources() {
  const messages = new Map();
  const literals = [];
  for (const name of readdirSync(SOURCES, { recursive: true }).sort()) {
    if (!/\.(svelte|ts)$/.test(name) || /^language\b/.test(name)) continue;
    const source = readFileSync(join(SOURCES, name), "utf8");
    const found = findMessages(name, source);
    for (const message of found.messages) if (!messages.has(message)) messages.set(message, name);
    for (const { start, text } of found.literals) literals.push(`${name}:${source.slice(0, start).split("\n").length}: ${text.replace(/\s+/g, " ")}`);
  }
  return { messages, literals };
}

/** Returns the text of the list of messages. */
export function listOf(messages) {
  return `${JSON.stringify([...messages.keys()].sort(), null, 2)}\n`;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { messages, literals } = readSources();
  writeFileSync(LIST, listOf(messages));
  console.log(`${messages.size} messages in ${relative(process.cwd(), LIST)}`);
  for (const one of literals) console.error(`not a message: ${one}`);
  process.exit(literals.length === 0 ? 0 : 1);
}
