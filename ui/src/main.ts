/** Starts the authoring UI in its one page. */
import { mount } from "svelte";
import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/controls.css";
import "./state/theme.svelte";
import App from "./App.svelte";

const target = document.getElementById("app");
if (target) mount(App, { target });
