/**
 * Helpers of the workflow screens: names, order and faults of models.
 */
import { tn } from "../../language";
import type { WorkflowModel, WorkItem } from "../../server/answers";

/** The selected tab of the screen. */
export type Show = "inbox" | "models" | "failed";

/** Returns the display name of a model: its title, or the last segment of its path if it cannot be read. */
export function modelName(model: WorkflowModel): string {
  return model.title ?? model.path.split("/").at(-1) ?? model.path;
}

/** Returns the models in display order: those that cannot be started first. */
export function inOrder(models: WorkflowModel[]): WorkflowModel[] {
  const rank = (model: WorkflowModel) => (model.fault === undefined ? 1 : 0);
  return [...models].sort((a, b) => rank(a) - rank(b) || modelName(a).localeCompare(modelName(b)) || a.path.localeCompare(b.path));
}

/** Returns the models that cannot be started. */
export function faulty(models: WorkflowModel[]): WorkflowModel[] {
  return inOrder(models).filter((model) => model.fault !== undefined);
}

/** Returns the model of a step's instance in its current state; null if it does not exist or is not readable. */
export function modelOf(item: WorkItem, models: WorkflowModel[]): WorkflowModel | null {
  return models.find((model) => model.path === item.model) ?? null;
}

/** Returns a heading for a number of faulty models. */
export function faultText(count: number): string {
  return tn(count, "{count} workflow model cannot be started", "{count} workflow models cannot be started");
}
