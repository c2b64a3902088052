import { describe, expect, it } from "vitest";
import { isSafeLink } from "../../src/form/html";

describe("links of rich text", () => {
  it("are paths, anchors and URLs with the usual schemes", () => {
    for (const href of ["/a/b.html", "#top", "?q=1", "page.html", "a/b:c", "//host/x", "http://host", "HTTPS://host", "mailto:a@b.example", "tel:1"]) {
      expect(isSafeLink(href), href).toBe(true);
    }
  });

  it("never run a script, however the scheme is spelled", () => {
    const schemes = ["javascript:x", "JavaScript:x", " javascript:x", "java\tscript:x", "java\nscript:x", "\u0001javascript:x", "\u0000 \tj\ra\nvascript:x", "javascript\t:x", "data:text/html,x", "vbscript:x"];
    for (const href of schemes) expect(isSafeLink(href), JSON.stringify(href)).toBe(false);
  });
});
