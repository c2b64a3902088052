/**
 * The features of rich text that a dialog or policy allows, as `rtePlugins` of AEM's editor names them.
 *
 * A plugin has a list of features: `*` for all, `-` for none. A plugin that is not named has the features that AEM's
 * editor has without configuration: bold, italic, lists and links.
 */

const DEFAULT_PLUGINS = ["format", "lists", "links"];

/** Returns true if a feature of a plugin is allowed; every feature is, if nothing is configured. */
export function hasFeature(features: Record<string, string[]> | null, plugin: string, feature: string): boolean {
  if (features === null || Object.keys(features).length === 0) return true;
  const named = features[plugin];
  if (named === undefined) return DEFAULT_PLUGINS.includes(plugin);
  return named.includes("*") || named.includes(feature);
}
