/** The entry point: mounts the authoring UI. */
import { mount } from "svelte";
import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/controls.css";
import "./state/theme.svelte";
import App from "./App.svelte";

const target = document.getElementById("app");
if (target) mount(App, { target });
