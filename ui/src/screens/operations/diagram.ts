/**
 * The layout of a workflow model: steps in rows by their distance from the start, and lines between them.
 */
import type { ModelDiagram, ModelStep } from "./answers";

export interface StepBox {
  step: ModelStep;
  x: number;
  y: number;
}

export interface DiagramLine {
  /** The path of the line in SVG. */
  path: string;
  /** True if it leads back to an earlier row. */
  isBack: boolean;
  label: string;
}

export interface DiagramLayout {
  boxes: StepBox[];
  lines: DiagramLine[];
  width: number;
  height: number;
}

export const BOX = { width: 190, height: 46 };
const GAP = { x: 28, y: 34 };
/** The room for lines that lead back, at the right. */
const SIDE = 44;

/** Returns the layout of a model. */
export function layOut(model: Pick<ModelDiagram, "steps" | "transitions">): DiagramLayout {
  const rows = rowsOf(model);
  const inRows: ModelStep[][] = [];
  for (const step of model.steps) (inRows[rows.get(step.name) ?? 0] ??= []).push(step);
  const widest = Math.max(1, ...inRows.map((row) => row?.length ?? 0));
  const inner = widest * (BOX.width + GAP.x) - GAP.x;
  const boxes = inRows.flatMap((row, y) => {
    const size = row.length * (BOX.width + GAP.x) - GAP.x;
    return row.map((step, x) => ({ step, x: (inner - size) / 2 + x * (BOX.width + GAP.x) + 1, y: y * (BOX.height + GAP.y) + 1 }));
  });
  const boxOf = new Map(boxes.map((box) => [box.step.name, box]));
  const lines = model.transitions.flatMap(({ from, to, rule }): DiagramLine[] => {
    const [start, end] = [boxOf.get(from), boxOf.get(to)];
    if (!start || !end) return [];
    const label = rule ?? "";
    const [x1, x2] = [start.x + BOX.width / 2, end.x + BOX.width / 2];
    if (end.y > start.y) {
      const [y1, y2] = [start.y + BOX.height, end.y];
      return [{ path: `M ${x1} ${y1} C ${x1} ${y1 + GAP.y}, ${x2} ${y2 - GAP.y}, ${x2} ${y2}`, isBack: false, label }];
    }
    const [y1, y2, side] = [start.y + BOX.height / 2, end.y + BOX.height / 2, inner + SIDE];
    return [{ path: `M ${start.x + BOX.width} ${y1} C ${side} ${y1}, ${side} ${y2}, ${end.x + BOX.width} ${y2}`, isBack: true, label }];
  });
  const height = inRows.length * (BOX.height + GAP.y) - GAP.y + 2;
  return { boxes, lines, width: inner + (lines.some(({ isBack }) => isBack) ? SIDE : 2), height: Math.max(height, 2) };
}

/** Returns the row of each step: one more than the farthest step before it, over transitions that do not lead back. */
function rowsOf({ steps, transitions }: Pick<ModelDiagram, "steps" | "transitions">): Map<string, number> {
  const rows = new Map<string, number>();
  const visit = (name: string, row: number, above: Set<string>) => {
    if (above.has(name) || (rows.get(name) ?? -1) >= row) return;
    rows.set(name, row);
    for (const { from, to } of transitions) if (from === name) visit(to, row + 1, new Set([...above, name]));
  };
  for (const { name, type } of steps) if (type === "START") visit(name, 0, new Set());
  // What nothing leads to stands below.
  const last = Math.max(-1, ...rows.values());
  for (const { name } of steps) if (!rows.has(name)) rows.set(name, last + 1);
  return rows;
}
