/** The German texts of the UI, by the English text. */
import assets from "./de_assets";

export default { ...assets } as Record<string, string>;
