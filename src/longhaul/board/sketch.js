"use strict";
// Curves without Plotly: the small ones of the list, and a run's loss until Plotly's script is read.
const vector = (name, attributes) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
};
// A path over a box of 100 by 100, from the top left, of points within these limits.
const pathOf = (x, y, [left, right], [low, high]) => x.map((at, n) => {
  const up = Math.min(1, Math.max(0, (y[n] - low) / Math.max(high - low, 1e-9)));
  return `${n ? "L" : "M"}${(100 * (at - left) / Math.max(right - left, 1)).toFixed(2)},${(100 - 100 * up).toFixed(2)}`;
}).join("");

const spark = (points) => {
  const svg = vector("svg", { viewBox: "0 -7 100 114", preserveAspectRatio: "none", class: "spark", "aria-hidden": "true" });
  if (points.length < 2) return svg;
  const [x, y] = [points.map((point) => point[0]), points.map((point) => point[1])];
  const values = [...y].sort((a, b) => a - b);
  const high = Math.max(values[Math.floor(0.97 * (values.length - 1))], values[0] + 1e-9);
  svg.append(vector("path", { d: pathOf(x, y, [x[0], x[x.length - 1]], [values[0], high]) }));
  return svg;
};

// Where Plotly will draw the same, so that nothing jumps.
const sketch = (place, figure) => {
  const curves = figure.traces.filter((trace) => trace.meta.place !== undefined && trace.x.length > 1);
  if (!curves.length) return;
  const ends = (name) => curves.reduce(([least, most], { [name]: values }) => [
    values.reduce((a, b) => Math.min(a, b), least), values.reduce((a, b) => Math.max(a, b), most),
  ], [Infinity, -Infinity]);
  const steps = ends("x"), limits = figure.layout.yaxis?.range ?? ends("y");
  const svg = vector("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none" });
  for (const curve of curves) {
    const path = vector("path", { d: pathOf(curve.x, curve.y, steps, limits), opacity: curve.meta.kept ? 1 : 0.42 });
    path.style.stroke = `var(--ink-${curve.meta.place % 6})`;
    svg.append(path);
  }
  const labels = [["low", limits[0].toPrecision(3)], ["high", limits[1].toPrecision(3)], ["end", `step ${steps[1].toLocaleString("en")}`]];
  const box = document.createElement("div");
  box.className = "sketch";
  box.append(svg, ...labels.map(([className, textContent]) => Object.assign(document.createElement("span"), { className, textContent })));
  place.replaceChildren(box);
};
