import { describe, expect, it } from "vitest";
import { byteText, formatName, nextName, nodeNameOf } from "../../src/assets/asset";
import { assetQuery, assetRows, factStatements, NO_QUESTION } from "../../src/assets/find";
import { metadataProperty } from "../../src/assets/metadata";
import { bytesIn, stagingName } from "../../src/assets/received";
import { kindOfField, tagId } from "../../src/parts/picker";
import { parseRoute, assetsUrl, assetUrl } from "../../src/route";
import { allowedOf, templateOf, type Template } from "../../src/screens/sites/templates";
import { queryOf } from "../../src/screens/search/hits";
import { rightsOf } from "../../src/state/rights.svelte";

describe("names of uploaded files", () => {
  it("keep what a node name can have", () => {
    expect(nodeNameOf("Ä photo (1).JPG")).toBe("Ä photo (1).JPG");
    expect(nodeNameOf("a:b[1]*|'.jpg")).toBe("a-b-1-.jpg");
    expect(nodeNameOf("..hidden")).toBe("hidden");
    expect(nodeNameOf(" .. ")).toBe("file");
    expect(nodeNameOf("A\u030a.png")).toBe("\u00c5.png");
  });
  it("are shortened before the extension, never inside a character", () => {
    const name = nodeNameOf(`${"👩‍👩‍👧".repeat(40)}.jpeg`);
    expect(new TextEncoder().encode(name).length).toBeLessThanOrEqual(200);
    expect(name).toMatch(/^(👩‍👩‍👧)+\.jpeg$/u);
  });
  it("get a number if they are taken", () => {
    expect(nextName("photo.jpg", (name) => name === "photo-2.jpg")).toBe("photo-3.jpg");
    expect(nextName("README", () => false)).toBe("README-2");
  });
});

describe("a file that is received in chunks", () => {
  const holder = (mixins: string[], names: string[]) => ({
    path: "/x",
    name: "x",
    type: "nt:resource",
    properties: { "jcr:mixinTypes": { type: "Name", values: mixins } },
    children: Object.fromEntries(names.map((name) => [name, { path: "", name, type: "sling:chunk", properties: {} }])),
  });
  it("continues after its last chunk", () => {
    expect(bytesIn(holder(["sling:chunks"], ["chunk_0_99", "chunk_100_199"]), 500)).toBe(200);
    expect(bytesIn(holder(["sling:chunks"], []), 500)).toBe(0);
    expect(bytesIn(holder([], []), 500)).toBe(500);
  });
  it("has the same node whenever the same user sends it", () => {
    const file = { name: "a.jpg", size: 10, lastModified: 1 };
    expect(stagingName("ada", file)).toBe(stagingName("ada", { ...file }));
    expect(stagingName("ada", file)).not.toBe(stagingName("bea", file));
    expect(stagingName("ada", file)).not.toBe(stagingName("ada", { ...file, size: 11 }));
  });
});

describe("searches for assets", () => {
  it("quote paths and send words and tags as parameters", () => {
    const now = new Date("2026-11-30T00:00:00Z");
    const { statement, parameters } = assetQuery({ ...NO_QUESTION, words: "harbor -boat", tag: "a'b", days: "7", size: "large" }, "/content/dam/o'neil", now);
    expect(statement).toContain("ISDESCENDANTNODE(a, '/content/dam/o''neil')");
    expect(statement).toContain("a.[jcr:content/metadata/dam:size] >= 1000000 AND a.[jcr:content/metadata/dam:size] < 10000000");
    expect(statement).toContain("CAST('2026-11-23T00:00:00.000Z' AS DATE)");
    expect(parameters).toEqual({ text: "harbor* -boat", tag: "a'b" });
  });
  it("tell the state of an asset by what the server has stored", () => {
    const now = new Date("2026-11-30T10:00:00Z");
    const of = (values: Record<string, string>) =>
      assetRows([{ path: "/content/dam/a.jpg", score: 1, values: Object.fromEntries(Object.entries(values).map(([name, value]) => [`a.${name}`, value])) }], now)[0]?.asset;
    expect(of({ "jcr:created": "2026-11-30T09:58:00Z" })).toMatchObject({ state: "processing", thumbnail: null });
    expect(of({ "jcr:created": "2026-11-30T09:00:00Z" })?.state).toBe("processed");
    expect(of({ "jcr:content/dam:processedOriginal": "again" })?.state).toBe("processing");
    expect(of({ "jcr:content/dam:assetState": "failed", "jcr:content/dam:failureReason": "broken" })).toMatchObject({ state: "failed", failure: "broken" });
    const thumbnail = { "jcr:content/renditions/cq5dam.thumbnail.319.319.png/jcr:content/jcr:mimeType": "image/png" };
    expect(of({ "jcr:created": "2026-11-30T09:58:00Z", ...thumbnail })).toMatchObject({
      state: "processed",
      thumbnail: "/content/dam/a.jpg/jcr:content/renditions/cq5dam.thumbnail.319.319.png",
    });
  });
});

describe("the facts of listed assets", () => {
  it("are read in statements that the server takes, each path once", () => {
    const paths = Array.from({ length: 300 }, (_, at) => `/content/dam/ö'neil/${"ä".repeat(60)}-${at}.jpg`);
    const statements = factStatements(paths);
    expect(statements.length).toBeGreaterThan(3);
    for (const statement of statements) expect(new TextEncoder().encode(statement).length).toBeLessThan(64 * 1024);
    expect(statements.join(" ").match(/ISSAMENODE/g)?.length).toBe(300);
    expect(statements[0]).toContain("ISSAMENODE(a, '/content/dam/ö''neil/");
    expect(factStatements([])).toEqual([]);
  });
});

describe("words for assets", () => {
  it("name formats and sizes", () => {
    expect(formatName("image/jpeg", "a")).toBe("JPEG");
    expect(formatName("application/x-tar", "a")).toBe("TAR");
    expect(formatName(null, "a.docx")).toBe("DOCX");
    expect(byteText(0)).toBe("0 bytes");
    expect(byteText(2_340_000)).toBe("2.3 MB");
    expect(byteText(null)).toBe("");
  });
});

describe("metadata", () => {
  it("keeps lists as lists and removes empty texts", () => {
    expect(metadataProperty("dc:creator", "Ada; Bea", undefined)).toEqual({ type: "String", values: ["Ada", "Bea"] });
    expect(metadataProperty("dc:title", "A; B", { type: "String", value: "x" })).toEqual({ type: "String", value: "A; B" });
    expect(metadataProperty("dc:title", "A; B", { type: "String", values: ["x"] })).toEqual({ type: "String", values: ["A", "B"] });
    expect(metadataProperty("dc:rights", "  ", { type: "String", value: "x" })).toBeNull();
  });
});

describe("templates", () => {
  const template = (path: string, more: Partial<Template> = {}): Template => ({
    path,
    title: path,
    description: "",
    ranking: 100,
    content: `${path}/jcr:content`,
    ...more,
  });
  it("are those that the server allows, by their ranking", () => {
    const [a, b, c] = [template("/apps/t/a", { ranking: 20 }), template("/apps/t/b"), template("/apps/t/c", { ranking: 10 })];
    expect(allowedOf([a, b, c], ["/apps/t/c", "/apps/t/a", "/apps/t/unknown"])).toEqual([c, a]);
  });
  it("need content, and must be enabled", () => {
    const of = (values: Record<string, string>) => templateOf("/conf/t", (name) => values[name] ?? null)?.content ?? null;
    expect(of({ "jcr:content/sling:resourceType": "x" })).toBe("/conf/t/jcr:content");
    expect(of({ "initial/jcr:content/sling:resourceType": "x", "jcr:content/status": "enabled" })).toBe("/conf/t/initial/jcr:content");
    expect(of({ "initial/jcr:content/sling:resourceType": "x", status: "draft" })).toBeNull();
    expect(of({})).toBeNull();
  });
});

describe("pickers, rights and addresses", () => {
  it("know what a field chooses", () => {
    expect(kindOfField({ name: "fileReference" })).toBe("asset");
    expect(kindOfField({ name: "slides/heroImage" })).toBe("asset");
    expect(kindOfField({ name: "x", root: "/content/dam/site" })).toBe("asset");
    expect(kindOfField({ name: "link", picks: "page" })).toBe("page");
    expect(kindOfField({ name: "link" })).toBe("any");
    expect(tagId("/content/cq:tags/site/topic/rail")).toBe("site:topic/rail");
    expect(tagId("/content/cq:tags/site")).toBe("site:");
  });
  it("grant what an aggregate contains, and everything to administrators", () => {
    expect(rightsOf({ privileges: ["jcr:read"], isAdministrator: false })).toMatchObject({ add: false, edit: false, publish: false });
    expect(rightsOf({ privileges: ["rep:write"], isAdministrator: false })).toMatchObject({ add: true, edit: true, remove: true, publish: false });
    const properties = ["rep:addProperties", "rep:alterProperties", "rep:removeProperties"];
    expect(rightsOf({ privileges: properties, isAdministrator: false })).toMatchObject({ edit: true, add: false });
    expect(rightsOf({ privileges: properties.slice(1), isAdministrator: false })).toMatchObject({ edit: false });
    expect(rightsOf({ privileges: [], isAdministrator: true })).toMatchObject({ add: true, publish: true });
  });
  it("lead to assets and back", () => {
    const route = (url: string) => parseRoute(new URL(url, "http://author"));
    expect(route(assetsUrl("/content/dam/ä b", { words: "x", kind: "" }))).toEqual({ screen: "assets", path: "/content/dam/ä b", isDetail: false, find: { words: "x" } });
    expect(route(assetUrl("/content/dam/a.jpg"))).toMatchObject({ path: "/content/dam/a.jpg", isDetail: true });
    expect(route("/assets.html")).toMatchObject({ path: "/content/dam" });
  });
  it("search without the nodes of developers unless asked", () => {
    const of = (type: string, facets = {}) => queryOf({ text: "x", path: "", type, facets }, 20) as { statement: string; parameters: object };
    expect(of("").statement).toContain("(a.[jcr:primaryType] = 'cq:Page' OR a.[jcr:primaryType] = 'dam:Asset')");
    expect(of("nt:hierarchyNode").statement).not.toContain("jcr:primaryType] = ");
    expect(of("", { tag: "a:b" }).parameters).toEqual({ text: "x", tag: "a:b" });
  });
});
