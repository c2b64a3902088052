/**
 * The code that chooses, uploads, copies and shows content: one script, loaded when it is first used, and with the assets.
 */
export { uploads, uploadText } from "./assets/upload.svelte";
export { default as Columns } from "./parts/Columns.svelte";
export { default as Picker } from "./parts/Picker.svelte";
export { default as TransferItems } from "./parts/TransferItems.svelte";
export { default as UploadDecision } from "./parts/UploadDecision.svelte";
export { default as UploadPanel } from "./parts/UploadPanel.svelte";
export { default as AssetDetail } from "./screens/assets/AssetDetail.svelte";
export { default as Assets } from "./screens/assets/Assets.svelte";
export { default as AssetActions } from "./screens/assets/AssetActions.svelte";
export { default as BulkEdit } from "./screens/assets/BulkEdit.svelte";
export { default as BulkProperties } from "./screens/sites/BulkProperties.svelte";
export { default as Cards } from "./screens/sites/Cards.svelte";
export { default as PagePreview } from "./screens/sites/PagePreview.svelte";
export { default as TransferPage } from "./screens/sites/TransferPage.svelte";
