/** Drives the built UI in a browser over the mock author. `npm run test:ui -- [part of a test's name]` */
import * as assets from "./browser/assets.mjs";
import * as clicks from "./browser/clicks.mjs";
import * as consoles from "./browser/consoles.mjs";
import * as dialogs from "./browser/dialogs.mjs";
import * as editing from "./browser/editing.mjs";
import * as editor from "./browser/editor.mjs";
import * as journeys from "./browser/journeys.mjs";
import * as keyboard from "./browser/keyboard.mjs";
import * as language from "./browser/language.mjs";
import * as looks from "./browser/looks.mjs";
import * as mounts from "./browser/mounts.mjs";
import * as operations from "./browser/operations.mjs";
import * as pages from "./browser/pages.mjs";
import * as publishing from "./browser/publishing.mjs";
import * as queue from "./browser/queue.mjs";
import * as session from "./browser/session.mjs";
import * as rights from "./browser/rights.mjs";
import * as sites from "./browser/sites.mjs";
import * as together from "./browser/together.mjs";
import * as weight from "./browser/weight.mjs";
import * as workflows from "./browser/workflows.mjs";
import { run } from "./harness.mjs";

await run({ ...session, ...sites, ...assets, ...editor, ...dialogs, ...editing, ...publishing, ...pages, ...weight, ...together, ...queue, ...mounts, ...workflows, ...operations, ...consoles, ...clicks, ...journeys, ...rights, ...keyboard, ...language, ...looks });
