/**
 * What is to say about workflows: models that start nothing, steps that wait for somebody, steps that failed.
 */
import type { WorkflowModel, WorkItem } from "../../server/answers";

/** What the screen shows at a time. */
export type Show = "inbox" | "models" | "failed";

/** Returns what people call a model: its title, or where it stands if it cannot be read. */
export function modelName(model: WorkflowModel): string {
  return model.title ?? model.path.split("/").at(-1) ?? model.path;
}

/** Returns the models in the order in which they are looked at: those that start nothing first. */
export function inOrder(models: WorkflowModel[]): WorkflowModel[] {
  const rank = (model: WorkflowModel) => (model.fault === undefined ? 1 : 0);
  return [...models].sort((a, b) => rank(a) - rank(b) || modelName(a).localeCompare(modelName(b)) || a.path.localeCompare(b.path));
}

/** Returns the models that start nothing. */
export function faulty(models: WorkflowModel[]): WorkflowModel[] {
  return inOrder(models).filter((model) => model.fault !== undefined);
}

/** Returns the model that a step's instance began with, as it is now; nothing if it is gone or may not be read. */
export function modelOf(item: WorkItem, models: WorkflowModel[]): WorkflowModel | null {
  return models.find((model) => model.path === item.model) ?? null;
}

/** Tells what a number of faulty models means. */
export function faultText(count: number): string {
  return count === 1 ? "1 workflow model starts nothing" : `${count} workflow models start nothing`;
}
