/**
 * How the UI is built: a single page below `/ui/`, assets with hashed names, nothing inline.
 *
 * The author's Content-Security-Policy allows neither inline scripts nor inline styles nor `data:` code, so no asset
 * is ever inlined. `npm run budget` checks the result.
 */
import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig, type Plugin } from "vite";

const author = process.env.TYMPAN_AUTHOR ?? "http://127.0.0.1:4502";
const screens = /^\/(login|sites|assets|editor|queue|versions|permissions|launches|users|packages|mounts|workflows|operations|search)\.html(\/|\?|$)/;

/** Answers the deep links of the UI with its index page while developing, as the author does. */
function deepLinks(): Plugin {
  return {
    name: "tympan-deep-links",
    configureServer(server) {
      server.middlewares.use((request, _response, next) => {
        if (request.url && screens.test(request.url)) request.url = "/ui/index.html";
        next();
      });
    },
  };
}

/**
 * Names the script of a module, so that a view needs the page, the style sheet, the shell and one script of its own. The
 * shell holds everything that several screens show at once. Other modules go with the screen that loads them, and those of
 * `src/content.ts` together. The editor of rich text is loaded when a text is shown.
 */
function scriptOf(module: string): string | null {
  const isShared = /\/src\/(screens\/sites\/(UsedBy|references|listing|order)|screens\/launches\/NewLaunch|form\/(text|value|html)\.ts|assets\/(asset|find|dropped)\.ts|parts\/(picker\.ts|ViewSwitch)|fields\/TagsField)/;
  if (isShared.test(module)) return "shell";
  const isOfScreen = /\/src\/(screens|richtext|fields|form|language|assets)\/|\/src\/content\.ts|\/src\/parts\/(KeysHelp|Picker|Upload\w+|TransferItems|WindowedGrid|Columns?|Thumb)\.|node_modules\/(prosemirror|orderedmap|rope-sequence|w3c-keyname)/;
  return isOfScreen.test(module) ? null : "shell";
}

export default defineConfig({
  base: "/ui/",
  plugins: [deepLinks(), svelte()],
  build: {
    target: "es2022",
    // The color tokens use `light-dark()`, which these versions understand.
    cssTarget: ["chrome123", "firefox120", "safari17.5"],
    assetsInlineLimit: 0,
    // One style sheet for all screens: it is small, and a screen never appears without its styles.
    cssCodeSplit: false,
    rolldownOptions: { output: { codeSplitting: { includeDependenciesRecursively: false, groups: [{ debugName: "scripts", name: scriptOf }] } } },
  },
  server: {
    proxy: { "^/(?!ui/)": { target: author } },
  },
  test: {
    include: ["tests/unit/**/*.test.ts"],
  },
} as Parameters<typeof defineConfig>[0]);
