/**
 * The assets of the mock: pictures with renditions, uploads in chunks, and the queries by which the UI finds assets,
 * tags, templates and free names.
 */
import { createHash } from "node:crypto";
import { node } from "./content.mjs";

/** A gray picture, so that thumbnails can be drawn. */
const PICTURE = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 320 200"><rect width="320" height="200" fill="#8aa6b1"/><circle cx="90" cy="80" r="40" fill="#f2d7b0"/></svg>';
const THUMBNAIL = "cq5dam.thumbnail.319.319.png";

/** Returns an asset as the server stores it. */
export function asset({ format = "image/jpeg", width = 1200, height = 800, size = 240_000, title, state = "processed", failure, hash = "", tags } = {}) {
  const metadata = node({ "dc:format": format, "dam:size": size });
  if (width) Object.assign(metadata.properties, { "tiff:ImageWidth": width, "tiff:ImageLength": height });
  if (title) metadata.properties["dc:title"] = title;
  if (hash) metadata.properties["dam:sha1"] = hash;
  if (tags) metadata.properties["cq:tags"] = tags;
  const file = (type) => node({ "jcr:primaryType": "nt:file" }, { "jcr:content": node({ "jcr:mimeType": type }) });
  const renditions = { original: file(format) };
  if (state === "processed" && format.startsWith("image/")) {
    renditions[THUMBNAIL] = file("image/png");
    renditions["cq5dam.web.1280.1280.jpeg"] = file("image/jpeg");
  }
  const content = node(
    { "jcr:primaryType": "dam:AssetContent", "jcr:lastModified": "2026-11-20T10:00:00.000Z", "jcr:lastModifiedBy": "ada" },
    { metadata, renditions: node({ "jcr:primaryType": "nt:folder" }, renditions) },
  );
  content.properties["dam:assetState"] = state;
  if (failure) content.properties["dam:failureReason"] = failure;
  return { ...node({ "jcr:primaryType": "dam:Asset" }, { "jcr:content": content }), status: "draft" };
}

/** The assets that the tests begin with. */
export function sampleAssets() {
  const folder = (title, children) => node({ "jcr:primaryType": "sling:OrderedFolder", "jcr:title": title }, children);
  return folder("Assets", {
    demo: folder("Tidewater", {
      "harbor.jpg": asset({ title: "The harbor of Muggia", tags: ["travel:coast"] }),
      "morning.jpg": asset({ width: 800, height: 1200 }),
      "noon.jpg": asset({}),
      "night.jpg": asset({ width: 900, height: 900 }),
      "ferry.jpg": asset({ hash: createHash("sha1").update("the same bytes").digest("hex") }),
      "broken.jpg": asset({ width: null, size: 12, state: "failed", failure: "the JPEG ends after 12 bytes" }),
      "timetable.pdf": asset({ format: "application/pdf", width: null, size: 81_000 }),
      boats: folder("Boats", {}),
    }),
    closed: folder("Closed", { "seal.jpg": asset({}) }),
    large: folder(
      "Large",
      Object.fromEntries(Array.from({ length: 3000 }, (_, at) => [`picture-${String(at + 1).padStart(4, "0")}.jpg`, asset({})])),
    ),
  });
}

/** Returns the format, size and state of an asset. */
function assetFacts(one) {
  const content = one.children.get("jcr:content");
  const metadata = content.children.get("metadata").properties;
  return {
    format: metadata["dc:format"] ?? null,
    size: metadata["dam:size"] ?? null,
    width: metadata["tiff:ImageWidth"] ?? null,
    height: metadata["tiff:ImageLength"] ?? null,
    state: content.properties["dam:assetState"] ?? "processing",
    failure: content.properties["dam:failureReason"] ?? null,
  };
}

/** Answers a rendition with a picture. */
export function sendRendition(path, response) {
  if (!path.includes("/renditions/") && !/\.width-\d+\.webp$/.test(path)) return false;
  response.writeHead(200, { "Content-Type": "image/svg+xml" }).end(PICTURE);
  return true;
}

/** Returns the parts of a multipart body by name: `{ text }` or `{ bytes, type }`. */
export function multipart(bytes, type) {
  const boundary = /boundary=("?)([^";]+)\1/.exec(type)[2];
  const parts = {};
  for (const part of bytes.toString("latin1").split(`--${boundary}`).slice(1, -1)) {
    const [head, ...rest] = part.split("\r\n\r\n");
    const body = Buffer.from(rest.join("\r\n\r\n").replace(/\r\n$/, ""), "latin1");
    const name = Buffer.from(/name="([^"]*)"/.exec(head)[1], "latin1").toString();
    parts[name] = /filename=/.test(head) ? { bytes: body, type: /content-type: *([^\r\n]+)/i.exec(head)?.[1] } : { text: body.toString() };
  }
  return parts;
}

/** Receives a chunk of a file into a node beside its target. */
export function receiveChunk(folder, parts, refuse) {
  const [field, file] = Object.entries(parts).find(([, part]) => part.bytes);
  const [offset, length] = ["Offset", "Length"].map((hint) => Number(parts[`${field}@${hint}`].text));
  const name = field.replace(/^\.\//, "");
  if (offset === 0) folder.children.set(name, node({ "jcr:primaryType": "nt:file" }, { "jcr:content": node({ "jcr:mixinTypes": ["sling:chunks"] }) }));
  const holder = folder.children.get(name)?.children.get("jcr:content");
  if (!holder) throw refuse(400, "there is no upload to continue; begin with `@Offset` 0");
  const received = holder.bytes?.length ?? 0;
  if (received !== offset) throw refuse(400, `the part begins at ${offset}, but ${received} bytes were received`);
  holder.bytes = Buffer.concat([holder.bytes ?? Buffer.alloc(0), file.bytes]);
  if (holder.bytes.length === length) {
    holder.children.clear();
    delete holder.properties["jcr:mixinTypes"];
    holder.properties["jcr:mimeType"] = file.type;
  } else holder.children.set(`chunk_${offset}_${holder.bytes.length - 1}`, node({ "jcr:primaryType": "sling:chunk" }));
}

/** Processes the file of an asset, as the server does a moment after it is stored. */
export function processAsset(one) {
  const content = one.children.get("jcr:content");
  const received = content.children.get("renditions").children.get("original")?.children.get("jcr:content")?.bytes;
  if (!received) return;
  const bytes = Buffer.from(received);
  const metadata = content.children.get("metadata");
  const isPicture = bytes.subarray(0, 4).toString("latin1") !== "text";
  Object.assign(metadata.properties, {
    "dam:size": bytes.length,
    "dam:sha1": createHash("sha1").update(bytes).digest("hex"),
    ...(isPicture ? { "tiff:ImageWidth": 640, "tiff:ImageLength": 480 } : {}),
  });
  content.properties["dam:assetState"] = isPicture ? "processed" : "failed";
  if (isPicture) content.children.get("renditions").children.set(THUMBNAIL, node({ "jcr:primaryType": "nt:file" }, { "jcr:content": node({ "jcr:mimeType": "image/png" }) }));
  else content.properties["dam:failureReason"] = "the file is no picture, although its name says so";
}

/** Answers the queries for assets, tags, templates and free names; nothing for other ones. */
export function assetAnswer(root, { statement, parameters = {}, limit = 100, cursor }) {
  const rows = rowsOf(root, statement, parameters);
  if (rows === null) return null;
  const from = Number(cursor ?? 0);
  const next = from + limit < rows.length ? String(from + limit) : null;
  return { columns: [], rows: rows.slice(from, from + limit), words: [], facets: {}, cursor: next, full_text: "ready" };
}

function rowsOf(root, statement, parameters) {
  if (statement.includes("UNION ALL")) return statement.split(" UNION ALL ").flatMap((part) => rowsOf(root, part, parameters));
  const same = /ISSAMENODE\(a, '(.*)'\)/.exec(statement);
  const asset = same && walk(root, same[1].replace(/''/g, "'"));
  if (same && statement.includes("[dam:Asset]")) return asset ? [assetRow(same[1].replace(/''/g, "'"), asset)] : [];
  if (same) return asset ? [{ path: same[1], score: 1, values: {} }] : [];
  const below = /ISDESCENDANTNODE\(a, '([^']*)'\)/.exec(statement)?.[1] ?? "";
  const isOf = (type) => statement.includes(`FROM [${type}]`);
  if (isOf("cq:Template")) return list(root, "/apps", (one) => one.properties["jcr:primaryType"] === "cq:Template").map(({ path, one }) => templateRow(path, one));
  if (isOf("cq:Tag")) {
    return list(root, below, (one) => one.properties["jcr:primaryType"] === "cq:Tag").map(({ path, one }) => ({ path, score: 1, values: { "a.jcr:title": one.properties["jcr:title"] } }));
  }
  if (!isOf("dam:Asset") || statement.includes("rep:excerpt")) return null;
  const words = (parameters.text ?? "").toLowerCase().replace(/\*/g, "").split(/\s+/).filter(Boolean);
  return list(root, below, (one) => one.properties["jcr:primaryType"] === "dam:Asset")
    .map(({ path, one }) => ({ path, one, facts: assetFacts(one), metadata: one.children.get("jcr:content").children.get("metadata").properties }))
    .filter(({ path, facts, metadata }) => {
      if (parameters.hash !== undefined && metadata["dam:sha1"] !== parameters.hash) return false;
      if (parameters.tag !== undefined && !(metadata["cq:tags"] ?? []).includes(parameters.tag)) return false;
      if (statement.includes("LIKE 'image/%'") && !facts.format.startsWith("image/")) return false;
      if (statement.includes("LIKE 'application/%'") && !/^(application|text)\//.test(facts.format)) return false;
      if (statement.includes("= 'failed'") && facts.state !== "failed") return false;
      if (statement.includes("contentFragment")) return false;
      return words.every((word) => `${path} ${metadata["dc:title"] ?? ""}`.toLowerCase().includes(word));
    })
    .map(({ path, one }) => assetRow(path, one));
}

function assetRow(path, one) {
  const content = one.children.get("jcr:content");
  const metadata = content.children.get("metadata").properties;
  const named = ["dc:title", "dc:format", "dam:size", "tiff:ImageWidth", "tiff:ImageLength", "dam:sha1"].map((name) => [`a.jcr:content/metadata/${name}`, metadata[name] ?? null]);
  const own = ["dam:assetState", "dam:failureReason", "jcr:lastModified", "jcr:lastModifiedBy"].map((name) => [`a.jcr:content/${name}`, content.properties[name] ?? null]);
  const thumbnail = content.children.get("renditions").children.has(THUMBNAIL) ? "image/png" : null;
  const rest = [[`a.jcr:content/renditions/${THUMBNAIL}/jcr:content/jcr:mimeType`, thumbnail], ["a.jcr:created", new Date().toISOString()]];
  return { path, score: 1, values: Object.fromEntries([...named, ...own, ...rest]) };
}

function templateRow(path, { properties, children }) {
  const values = Object.fromEntries(Object.entries(properties).map(([name, value]) => [`a.${name}`, value]));
  values["a.jcr:content/sling:resourceType"] = children.get("jcr:content")?.properties["sling:resourceType"] ?? null;
  return { path, score: 1, values };
}

function walk(root, path) {
  return path.split("/").filter(Boolean).reduce((one, name) => one?.children.get(name), root);
}

function list(root, below, isWanted) {
  const found = [];
  const visit = (one, path) => {
    if (isWanted(one)) found.push({ path, one });
    for (const [name, child] of one.children) visit(child, `${path}/${name}`);
  };
  const start = walk(root, below);
  if (start) visit(start, below === "/" ? "" : below);
  return found;
}
