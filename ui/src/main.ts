/** The entry point: mounts the authoring UI in the user's language. */
import { mount } from "svelte";
import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/controls.css";
import "./state/theme.svelte";
import App from "./App.svelte";
import { chooseLanguage } from "./language";
import { readAhead } from "./server/client";
import { firstReads } from "./state/first_reads";
import { router } from "./state/router.svelte";

readAhead(firstReads(router.route));
const target = document.getElementById("app");
if (target) void chooseLanguage().then(() => mount(App, { target }));
