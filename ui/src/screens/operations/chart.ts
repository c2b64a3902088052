/**
 * The geometry of charts and flame graphs, in pixels.
 */
import type { Flame } from "./answers";

export interface Bar {
  x: number;
  y: number;
  width: number;
  height: number;
}

/** Returns the bars of values in a field of a size; the highest value fills it. */
export function bars(values: number[], width: number, height: number): Bar[] {
  const highest = Math.max(1, ...values);
  const step = width / Math.max(values.length, 1);
  return values.map((value, at) => ({ x: at * step + 1, y: height - (value / highest) * height, width: Math.max(step - 2, 1), height: (value / highest) * height }));
}

/** Returns a value for the end of an axis: the next 1, 2 or 5 times a power of ten. */
export function axisEnd(highest: number): number {
  if (highest <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(highest));
  return [1, 2, 5, 10].map((step) => step * power).find((end) => end >= highest) ?? highest;
}

export interface FlameBox extends Bar {
  flame: Flame;
  /** The name, cut to the width; empty if nothing fits. */
  text: string;
  depth: number;
}

/** The average width of a letter of 14 px. */
const LETTER = 7.6;

/** Returns the boxes of a flame graph, the callers above; `height` is the height of a row. */
export function flameBoxes(flames: Flame[], width: number, height: number): FlameBox[] {
  const total = flames.reduce((sum, { value }) => sum + value, 0);
  const boxes: FlameBox[] = [];
  const place = (siblings: Flame[], start: number, depth: number) => {
    let x = start;
    for (const flame of siblings) {
      const size = total === 0 ? 0 : (flame.value / total) * width;
      if (size >= 1) {
        const room = Math.floor((size - 10) / LETTER);
        const name = nameOf(flame.name);
        const text = room < 3 ? "" : name.length <= room ? name : `${name.slice(0, room - 1)}…`;
        boxes.push({ flame, text, depth, x, y: depth * height, width: Math.max(size - 1, 1), height: height - 1 });
        place(flame.children, x, depth + 1);
      }
      x += size;
    }
  };
  place(flames, 0, 0);
  return boxes;
}

/** Returns all components of a flame graph, those with the longest own time first. */
export function flatten(flames: Flame[]): Flame[] {
  const all = flames.flatMap(function below(flame): Flame[] {
    return [flame, ...flame.children.flatMap(below)];
  });
  return all.sort((a, b) => b.self - a.self);
}

/** Returns the last two parts of a script's path: "teaser/teaser.html". */
export function nameOf(script: string): string {
  return script.split("/").slice(-2).join("/");
}
