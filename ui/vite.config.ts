/**
 * How the UI is built: a single page below `/ui/`, assets with hashed names, nothing inline.
 *
 * The author's Content-Security-Policy allows neither inline scripts nor inline styles nor `data:` code, so no asset
 * is ever inlined. `npm run budget` checks the result.
 */
import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig, type Plugin } from "vite";

const author = process.env.TYMPAN_AUTHOR ?? "http://127.0.0.1:4502";
const screens = /^\/(login|sites|assets|editor|queue|versions|permissions|launches|users|packages|mounts|workflows|search)\.html(\/|\?|$)/;

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

export default defineConfig({
  base: "/ui/",
  plugins: [deepLinks(), svelte()],
  build: {
    target: "es2022",
    // The color tokens use `light-dark()`, which these versions understand.
    cssTarget: ["chrome123", "firefox120", "safari17.5"],
    assetsInlineLimit: 0,
  },
  server: {
    proxy: { "^/(?!ui/)": { target: author } },
  },
  test: {
    include: ["tests/unit/**/*.test.ts"],
  },
} as Parameters<typeof defineConfig>[0]);
