/**
 * The content of the mock author: a small travel site, and a section with thousands of pages.
 *
 * A node is `{ properties, children }` with children in order, as the real tree has it.
 */

import { sampleAssets } from "./assets.mjs";

export const PAGE = "demo/components/page";

export function node(properties = {}, children = {}) {
  return { properties, children: new Map(Object.entries(children)) };
}

function component(type, properties = {}, children = {}) {
  return node({ "jcr:primaryType": "nt:unstructured", "sling:resourceType": `demo/components/${type}`, ...properties }, children);
}

function page(title, { status = "live", by = "admin", age = 1, description = "", parts = {} } = {}, children = {}) {
  const modified = new Date(Date.now() - age * 3_600_000).toISOString();
  const content = node(
    {
      "jcr:primaryType": "cq:PageContent",
      "jcr:title": title,
      "jcr:description": description,
      "sling:resourceType": PAGE,
      "cq:lastModified": modified,
      "cq:lastModifiedBy": by,
      "cq:tags": ["travel:coast", "travel:slow"],
    },
    { root: component("container", {}, parts) },
  );
  return { ...node({ "jcr:primaryType": "cq:Page" }, { "jcr:content": content, ...children }), status };
}

const article = {
  title: component("title", { "jcr:title": "Slow days on the Gulf of Trieste", type: "h1" }),
  intro: component("text", {
    text: "<p>A ferry leaves Muggia every hour. Nobody on board is in a hurry, and after ten minutes neither are you.</p><ul><li>Bring cash.</li><li>Sit on the <strong>left</strong>.</li></ul>",
  }),
  image: component("image", { fileReference: "/content/dam/demo/harbor.jpg", alt: "The harbor of Muggia at noon", width: 800, lazy: true }),
  columns: component(
    "container",
    { layout: "2" },
    {
      teaser: component("teaser", {
        "jcr:title": "Where to eat",
        link: "/content/demo/en/food",
        text: "<p>Three kitchens without a menu.</p>",
      }),
      teaser2: component("teaser", {
        "jcr:title": "Where to sleep",
        link: "/content/demo/en/hotels",
        text: "<p>Rooms above the boats.</p>",
      }),
      embed: component("text", { text: '<table class="times"><tbody><tr><td>Muggia</td><td>9:10</td></tr></tbody></table>' }),
    },
  ),
  slideshow: component(
    "slideshow",
    { "jcr:title": "A day in pictures" },
    {
      slides: node(
        { "jcr:primaryType": "nt:unstructured" },
        {
          item0: node({ fileReference: "/content/dam/demo/morning.jpg", caption: "Twenty to seven", "cq:panelTitle": "kept" }),
          item1: node({ fileReference: "/content/dam/demo/noon.jpg", caption: "Noon" }),
          item2: node({ fileReference: "/content/dam/demo/night.jpg", caption: "The last boat" }),
        },
      ),
    },
  ),
  legacy: component("legacy-widget", { apiKey: "none", items: ["a", "b"] }),
};

const many = Object.fromEntries(
  Array.from({ length: 2500 }, (_, at) => {
    const number = String(at + 1).padStart(4, "0");
    return [`story-${number}`, page(`Story ${number}`, { status: at % 9 === 0 ? "draft" : "live", age: at + 2 })];
  }),
);

export function sampleContent() {
  const english = page(
    "English",
    { age: 30 },
    {
      trieste: page("Slow days on the Gulf of Trieste", {
        status: "modified",
        by: "ada",
        age: 2,
        description: "A week by ferry.",
        parts: structuredClone(article),
      }),
      alps: page("The long way over the Alps", { status: "live", by: "grace", age: 50 }),
      food: page("Where to eat", { status: "draft", by: "ada", age: 0.2 }),
      hotels: page("Rooms above the boats", { status: "failed", by: "grace", age: 20 }),
      islands: page("Islands without cars", { status: "queued", by: "ada", age: 0.05 }),
      winter: page("Winter at the lake", { status: "deactivated", by: "admin", age: 4000 }),
      "a-page-with-a-rather-long-name-for-narrow-screens": page(
        "A page with a rather long title, to see what becomes of it where there is little room",
        { age: 700 },
      ),
      archive: page("Archive", { age: 900 }, many),
    },
  );
  const site = page("Tidewater Magazine", { age: 200 }, { en: english, de: page("Deutsch", { status: "draft", age: 210 }) });
  const empty = page("Empty section", { status: "draft", age: 5 });
  const tag = (title, children = {}) => node({ "jcr:primaryType": "cq:Tag", "jcr:title": title }, children);
  const tags = node({ "jcr:primaryType": "sling:Folder", "jcr:title": "Tags" }, { travel: tag("Travel", { coast: tag("Coast"), slow: tag("Slow travel"), rail: tag("By rail") }) });
  const template = (name, title, properties = {}) => {
    const parts = { header: component("title", { "jcr:title": "" }), body: component("text", { text: "<p>Begin here.</p>" }) };
    const content = node({ "jcr:primaryType": "cq:PageContent", "sling:resourceType": PAGE, "cq:template": `/apps/demo/templates/${name}` }, { root: component("container", {}, parts) });
    return node({ "jcr:primaryType": "cq:Template", "jcr:title": title, ...properties }, { "jcr:content": content });
  };
  const templates = node({}, {
    story: template("story", "Story", { "jcr:description": "Title and text.", allowedPaths: ["/content/demo/.*"], ranking: 10 }),
    home: template("home", "Home page", { allowedPaths: ["/content"], ranking: 1 }),
  });
  const apps = node({}, { demo: node({}, { templates }) });
  return node({}, { content: node({ "jcr:primaryType": "sling:OrderedFolder", "jcr:title": "Sites" }, { demo: site, empty, dam: sampleAssets(), "cq:tags": tags }), apps });
}

/** Dialogs by resource type. A type that is not here has none. */
export const DIALOGS = {
  [PAGE]: {
    title: "Page",
    tabs: [
      {
        title: "Basic",
        fields: [
          { name: "jcr:title", kind: "text", label: "Title", required: true },
          { name: "jcr:description", kind: "textarea", label: "Description", description: "Shown by search engines below the title." },
          { name: "cq:tags", kind: "multi", label: "Tags", typeHint: "String[]", field: { name: "cq:tags", kind: "text", label: "Tag" } },
          { name: "hideInNav", kind: "checkbox", label: "Hide in navigation", typeHint: "Boolean" },
        ],
      },
      {
        title: "Publication",
        fields: [
          { name: "onTime", kind: "date", label: "Visible from" },
          { name: "cq:redirectTarget", kind: "path", label: "Redirect to", picks: "page", root: "/content/demo/en" },
          { name: "sling:resourceType", kind: "hidden" },
        ],
      },
    ],
  },
  "demo/components/title": {
    title: "Title",
    tabs: [
      {
        title: "Properties",
        fields: [
          { name: "jcr:title", kind: "text", label: "Title", required: true },
          {
            name: "type",
            kind: "select",
            label: "Level",
            options: ["h1", "h2", "h3"].map((value) => ({ value, text: value.toUpperCase() })),
          },
          {
            name: "align",
            kind: "radio",
            label: "Alignment",
            value: "start",
            options: [
              { value: "start", text: "Start" },
              { value: "center", text: "Center" },
            ],
          },
        ],
      },
    ],
  },
  "demo/components/text": { title: "Text", tabs: [{ title: "Properties", fields: [{ name: "text", kind: "richtext", label: "Text" }] }] },
  "demo/components/image": {
    title: "Image",
    tabs: [
      {
        title: "Image",
        fields: [
          { name: "fileReference", kind: "path", label: "Image", required: true },
          { name: "fileReference@Delete", kind: "hidden", value: "true" },
          { name: "alt", kind: "text", label: "Alternative text", description: "What the image says to those who do not see it." },
        ],
      },
      {
        title: "Layout",
        fields: [
          { name: "width", kind: "number", label: "Width in pixels", typeHint: "Long", min: "100", max: "2000" },
          { name: "frame", kind: "color", label: "Frame color" },
          { name: "lazy", kind: "checkbox", label: "Load when it comes near the window", typeHint: "Boolean" },
        ],
      },
    ],
  },
  "demo/components/teaser": {
    title: "Teaser",
    tabs: [
      {
        title: "Properties",
        fields: [
          { name: "jcr:title", kind: "text", label: "Title", required: true },
          { name: "link", kind: "path", label: "Link" },
          { name: "text", kind: "richtext", label: "Text" },
        ],
      },
    ],
  },
  "demo/components/slideshow": {
    title: "Slideshow",
    tabs: [
      {
        title: "Properties",
        fields: [
          { name: "jcr:title", kind: "text", label: "Heading" },
          {
            name: "slides",
            kind: "multi",
            label: "Slides",
            field: {
              name: "slides",
              kind: "group",
              fields: [
                { name: "caption", kind: "text", label: "Caption" },
                { name: "fileReference", kind: "path", label: "Picture", required: true },
              ],
            },
          },
        ],
      },
    ],
  },
  "demo/components/container": {
    title: "Container",
    tabs: [
      {
        title: "Properties",
        fields: [{ name: "layout", kind: "select", label: "Columns", options: ["1", "2", "3"].map((value) => ({ value, text: value })) }],
      },
    ],
  },
};

export const INSERTABLE = [
  { resourceType: "demo/components/title", title: "Title", group: "Text" },
  { resourceType: "demo/components/text", title: "Text", group: "Text" },
  { resourceType: "demo/components/teaser", title: "Teaser", group: "Text" },
  { resourceType: "demo/components/image", title: "Image", group: "Media" },
  { resourceType: "demo/components/container", title: "Container", group: "Structure" },
];

export function sampleQueue() {
  const hour = (hours) => new Date(Date.now() - hours * 3_600_000).toISOString();
  return [
    {
      name: "publish",
      title: "Publish",
      target: "http://127.0.0.1:4503/receive",
      enabled: true,
      blocked: "connection refused by `127.0.0.1:4503`; the next attempt is in 20 s",
      items: [
        {
          id: 11,
          action: "Activate",
          path: "/content/demo/en/hotels",
          user: "grace",
          created: hour(1.5),
          attempt: 3,
          lastError: "connection refused by `127.0.0.1:4503`",
          state: "retrying",
        },
        {
          id: 12,
          action: "Activate",
          path: "/content/demo/en/islands",
          user: "ada",
          created: hour(0.1),
          attempt: 0,
          lastError: null,
          state: "waiting",
        },
        {
          id: 13,
          action: "Deactivate",
          path: "/content/demo/en/winter",
          user: "admin",
          created: hour(0.05),
          attempt: 0,
          lastError: null,
          state: "waiting",
        },
      ],
    },
    { name: "preview", title: "Preview", target: "http://127.0.0.1:4504/receive", enabled: false, blocked: null, items: [] },
  ];
}
