import { describe, expect, it } from "vitest";
import { parseRoute, workflowsUrl } from "../../src/route";
import { faulty, faultText, inOrder, modelName, modelOf } from "../../src/screens/workflows/workflow";
import type { WorkItem, WorkflowModel } from "../../src/server/answers";

const models: WorkflowModel[] = [
  { path: "/var/workflow/models/b", title: "Review" },
  { path: "/var/workflow/models/a", title: "Archive" },
  { path: "/var/workflow/models/old", title: "Stamp", fault: "names the unknown process `Stamp`" },
  { path: "/var/workflow/models/cut", fault: "has no step of type START" },
];
const paths = (list: WorkflowModel[]) => list.map(({ path }) => path.split("/").at(-1));

describe("models of workflows", () => {
  it("are called by title, or by where they stand", () => expect(models.map(modelName)).toEqual(["Review", "Archive", "Stamp", "cut"]));
  it("stand with those first that start nothing", () => expect(paths(inOrder(models))).toEqual(["cut", "old", "a", "b"]));
  it("that are faulty are counted in words", () => {
    expect(paths(faulty(models))).toEqual(["cut", "old"]);
    expect([1, 2].map(faultText)).toEqual(["1 workflow model cannot be started", "2 workflow models cannot be started"]);
  });
  it("belong to the steps of their instances", () => {
    const item = (model: string) => ({ model }) as WorkItem;
    expect(modelOf(item("/var/workflow/models/old"), models)?.fault).toContain("unknown process");
    expect(modelOf(item("/var/workflow/models/gone"), models)).toBeNull();
  });
});

describe("addresses of workflows", () => {
  for (const show of ["inbox", "models", "failed"] as const) {
    it(`lead to \`${show}\``, () => expect(parseRoute(new URL(workflowsUrl(show), "http://author"))).toEqual({ screen: "workflows", show }));
  }
});
