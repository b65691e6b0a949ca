"use strict";
// Draws the charts of a run: the report's once, from the JSON beside it, the board's again and again.
// Colours come from the style sheet, so that light, dark and print need no second set of figures.
// `data` holds figures and gauges; the board also says in `data.view` along what to draw (`axis`), how
// far to smooth (`smooth`, steps) and what else to draw (`overlays`, traces of the loss).
const chartsOf = (data) => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const INKS = 6;
  const NEAR = 3; // times the highest value of a curve: so far up a line of danger is drawn
  const PRINT_WIDTH = 660; // pixels; a sheet of paper is laid out anew only after scripts ran
  const CONFIG = {
    responsive: true, displaylogo: false, displayModeBar: matchMedia("(hover: hover)").matches ? "hover" : false,
    modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
  };
  const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const chart = (name) => document.getElementById(`chart-${name}`);
  const narrow = () => innerWidth < 640;

  const painted = (trace) => {
    const meta = trace.meta;
    const colour = ink(meta.tone ?? meta.ink ?? `ink-${meta.place % INKS}`);
    const faint = meta.kept === false;
    return {
      ...trace, opacity: faint ? 0.42 : 1,
      line: { width: faint ? 1 : 1.6, ...trace.line, color: colour },
      marker: { size: 5, ...trace.marker, color: colour },
      textfont: { color: colour, size: 11 },
    };
  };

  const axis = (own = {}) => ({
    gridcolor: ink("line"), linecolor: ink("line"), zeroline: false, automargin: true, ...own,
  });

  const layout = (own, x = {}) => ({
    font: { family: "system-ui, 'DejaVu Sans', sans-serif", size: 12, color: ink("quiet") },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: narrow() ? 38 : 58, r: 12, t: 12, b: 40 },
    hovermode: "closest", dragmode: narrow() ? false : "zoom",
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: ink("quiet"), activecolor: ink("ink") },
    hoverlabel: { bgcolor: ink("sheet"), bordercolor: ink("line"), font: { color: ink("ink") } },
    ...(document.documentElement.classList.contains("print") ? { width: PRINT_WIDTH } : {}),
    ...own, xaxis: axis({ ...x, ...own.xaxis }), yaxis: axis(own.yaxis),
  });

  // Zooming one chart along its steps zooms the others, and a double click frees all.
  const alongSteps = () => data.figures.filter((figure) => figure.along_steps);
  let zooming = false;
  const follow = (from) => (change) => {
    if (zooming) return;
    const range = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    const free = change["xaxis.autorange"];
    if (!free && range[0] === undefined) return;
    zooming = true;
    const update = free ? { "xaxis.autorange": true } : { "xaxis.range": range };
    const others = alongSteps().filter((figure) => figure.name !== from);
    Promise.all(others.map((figure) => Plotly.relayout(chart(figure.name), update)))
      .finally(() => { zooming = false; });
  };

  // An exponential mean over about so many steps, begun anew with every stretch.
  const smoothed = (trace, steps) => {
    if (!steps || trace.meta.place === undefined || trace.y.length < 3) return trace;
    let mean = trace.y[0], before = trace.x[0];
    const y = trace.y.map((value, at) => {
      const share = 1 - Math.exp(-(trace.x[at] - before) / steps);
      before = trace.x[at];
      mean += share * (value - mean);
      return mean;
    });
    return { ...trace, y };
  };

  const tracesOf = (figure) => {
    const view = data.view;
    if (!view || !figure.along_steps) return figure.traces;
    const smooth = figure.name === "learning_rate" ? 0 : view.smooth;
    const traces = figure.traces.map((trace) => {
      const own = smoothed(trace, smooth);
      return view.axis ? { ...own, x: view.axis.of(own.x, trace.name, trace.meta.kept) } : own;
    });
    return figure.name === "loss" ? [...traces, ...view.overlays] : traces;
  };

  const drawFigure = (figure) => {
    const place = chart(figure.name);
    if (!place) return;
    const axis = data.view?.axis;
    const steps = { title: { text: "step" }, tickformat: ",d" };
    const x = figure.along_steps ? (axis ? { title: { text: axis.title } } : steps) : {};
    const own = { ...structuredClone(figure.layout), uirevision: axis?.title ?? "step" };
    if (document.querySelector(`[data-log="${figure.name}"]`)?.checked) {
      own.yaxis = { ...own.yaxis, type: "log", range: undefined, autorange: true };
    }
    place.querySelector(".sketch")?.remove();
    Plotly.react(place, tracesOf(figure).map(painted), layout(own, x), CONFIG);
    if (place.dataset.wired) return;
    place.dataset.wired = "yes";
    if (figure.along_steps) place.on("plotly_relayout", follow(figure.name));
    place.on("plotly_click", (event) => {
      const number = event.points[0]?.customdata;
      if (number !== undefined) location.hash = `incident-${number}`;
    });
  };

  let gauges, everyColumn;
  const takeGauges = () => {
    gauges = data.gauges;
    everyColumn = gauges.step.map((_, column) => column);
    const nothingLost = !gauges.kept.includes(false);
    document.querySelectorAll(".only-lost").forEach((label) => { label.hidden = nothingLost; });
  };
  // What a menu and the line below its chart say of dangers; a choice that somebody made stays.
  const dangersOf = (menu, gauge) => (gauges.dangers ?? []).filter((danger) => danger.gauge === gauge && (danger.layer !== null) === (menu === "gauge"));
  const sayForecast = (menu) => {
    const select = document.getElementById(menu), line = document.getElementById(`forecast-${menu}`);
    const words = gauges.words?.[menu];
    if (!words) return [];
    for (const option of select.options) option.textContent = words[option.value]?.[0] ?? option.value;
    if (!select.dataset.chosen && gauges.opens[menu]) select.value = gauges.opens[menu];
    const found = dangersOf(menu, select.value);
    line.textContent = words[select.value]?.[1] ?? "";
    line.classList.toggle("warning", found.length > 0);
    return found;
  };
  const extent = (rows) => {
    let low = Infinity, high = -Infinity;
    for (const row of rows) for (const value of row) {
      if (value === null) continue;
      low = Math.min(low, value); high = Math.max(high, value);
    }
    return [low, high];
  };

  const drawHeat = () => {
    if (!chart("heat")) return;
    const found = sayForecast("gauge");
    const happened = document.getElementById("as-happened").checked && gauges.kept.includes(false);
    const rows = gauges.layers[document.getElementById("gauge").value];
    const columns = happened ? everyColumn : everyColumn.filter((column) => gauges.kept[column]);
    const values = rows.map((row) => columns.map((column) => row[column]));
    const [low, high] = extent(values);
    const logarithmic = low > 0 && high / low > 20;
    const scaled = logarithmic
      ? values.map((row) => row.map((value) => value === null ? null : Math.log10(value))) : values;
    const bar = { thickness: 12, outlinewidth: 0 };
    if (logarithmic) {
      bar.tickvals = []; bar.ticktext = [];
      const wide = Math.log10(high / low) > 3;
      for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
        for (const digit of wide ? [1] : [1, 2, 5]) {
          bar.tickvals.push(power + Math.log10(digit));
          bar.ticktext.push(String(Number((digit * 10 ** power).toPrecision(1))));
        }
      }
    }
    const trace = {
      type: "heatmap", z: scaled, x: happened ? columns : columns.map((column) => gauges.step[column]),
      customdata: values, colorscale: "Cividis", colorbar: bar, hoverongaps: false,
      text: values.map(() => columns.map((column) => `step ${gauges.step[column].toLocaleString("en")}, segment ${gauges.segment[column]}${gauges.kept[column] ? "" : ", rolled back"}`)),
      hovertemplate: "layer %{y}: %{customdata:.4~g}<br>%{text}<extra></extra>",
    };
    const own = { yaxis: { title: { text: "layer" }, tickformat: "d", ...(rows.length < 10 ? { dtick: 1 } : {}) } };
    const x = happened ? asHappened(own) : { title: { text: "step" }, tickformat: ",d" };
    if (found.length) markDangers(own, bar, found, rows.length);
    Plotly.react(chart("heat"), [trace], layout(own, x), CONFIG);
  };

  // A strip right of the rows, so that no mark hides a reading or lies on its colour: a bar at each row in
  // danger, and beside it the step at which it crosses the line, as far as there is room for the words.
  const markDangers = (own, bar, found, rows) => {
    const place = chart("heat"), heat = ink("alarm");
    const width = document.documentElement.classList.contains("print") ? PRINT_WIDTH : place.clientWidth;
    const words = (danger) => danger.line === null ? "grows" : danger.step === null ? "beyond" : danger.step.toLocaleString("en");
    const line = found.find((danger) => danger.line !== null)?.line;
    const title = line === undefined ? "" : found.some((danger) => danger.step !== null) ? `${line.toLocaleString("en")} at step` : `${line.toLocaleString("en")}`;
    const longest = Math.max(title.length - 2, ...found.map((danger) => words(danger).length));
    const plot = Math.max(width - (narrow() ? 38 : 58) - 80, 100); // what margins and the colour bar leave
    const end = Math.max(1 - (10 + 6.5 * longest) / plot, 0.5);
    own.xaxis = { domain: [0, end] };
    bar.x = 1;
    own.shapes = [...own.shapes ?? [], ...found.map((danger) => ({
      type: "rect", xref: "paper", yref: "y", x0: end + 2 / plot, x1: end + 7 / plot,
      y0: danger.layer - 0.5, y1: danger.layer + 0.5, fillcolor: heat, line: { width: 0 },
    }))];
    const beside = { xref: "paper", x: end, xanchor: "left", showarrow: false };
    const row = (place.clientHeight - 66) / rows, named = [];
    const labels = found.filter((danger) => {
      const fits = named.every((layer) => Math.abs(layer - danger.layer) * row >= 14);
      if (fits) named.push(danger.layer);
      return fits;
    }).map((danger) => ({
      ...beside, yref: "y", y: danger.layer, xshift: 7, text: words(danger), font: { size: 11, color: heat },
      hovertext: `layer ${danger.layer}: ${Number(danger.value?.toPrecision(4))} at step ${danger.at.toLocaleString("en")}`,
    }));
    const head = { ...beside, yref: "paper", y: 1.03, yanchor: "bottom", text: title, font: { size: 10, color: heat } };
    own.annotations = [...own.annotations ?? [], ...labels, ...(title ? [head] : [])];
    own.margin = { l: narrow() ? 38 : 58, r: 12, t: 26, b: 40 };
  };

  // Time runs on where steps fall back: borders of segments are lines, and a bar on top marks
  // what was lost; a veil would change the colours that are to be compared.
  const asHappened = (own) => {
    const shapes = [], marks = [];
    let begin = 0;
    for (let column = 1; column <= everyColumn.length; column += 1) {
      const ended = column === everyColumn.length || gauges.segment[column] !== gauges.segment[begin]
        || gauges.kept[column] !== gauges.kept[begin];
      if (!ended) continue;
      if (!gauges.kept[begin]) {
        shapes.push({ type: "rect", xref: "x", yref: "paper", x0: begin - 0.5, x1: column - 0.5, y0: 1.008, y1: 1.03, line: { width: 0 }, fillcolor: ink("alarm") });
      }
      if (begin > 0 && gauges.segment[begin] !== gauges.segment[begin - 1]) {
        shapes.push({ type: "line", xref: "x", yref: "paper", x0: begin - 0.5, x1: begin - 0.5, y0: 0, y1: 1, line: { width: 1.5, color: "#fff" } });
      }
      if (begin === 0 || gauges.segment[begin] !== gauges.segment[begin - 1]) {
        marks.push({ xref: "x", yref: "paper", x: begin - 0.5, y: 1.03, xanchor: "left", yanchor: "bottom", showarrow: false, text: gauges.segment[begin], font: { size: 10 } });
      }
      begin = column;
    }
    own.shapes = shapes;
    // Of segments that begin too close to each other the last one is named.
    const apart = 34 * everyColumn.length / Math.max(chart("heat").clientWidth - 150, 100);
    own.annotations = marks.length > 14 ? [] : marks.filter((each, at) => !(marks[at + 1]?.x - each.x < apart));
    own.margin = { l: narrow() ? 38 : 58, r: 12, t: 26, b: 40 };
    const every = Math.max(1, Math.ceil(everyColumn.length / (narrow() ? 5 : 10)));
    const ticks = everyColumn.filter((column) => column % every === 0);
    return { title: { text: "step, in order of time" }, tickvals: ticks, ticktext: ticks.map((column) => gauges.step[column].toLocaleString("en")) };
  };

  const drawTotal = () => {
    if (!chart("total")) return;
    const found = sayForecast("total");
    const gauge = document.getElementById("total").value, roles = gauges.totals[gauge];
    const traces = Object.entries(roles).flatMap(([role, row], place) => {
      // A new piece wherever segment or fate changes: no line may join what was not joined.
      const pieces = [];
      for (const column of everyColumn) {
        const before = pieces[pieces.length - 1];
        const same = before && before.segment === gauges.segment[column] && before.kept === gauges.kept[column];
        if (same) before.columns.push(column);
        else pieces.push({ segment: gauges.segment[column], kept: gauges.kept[column], columns: [column] });
      }
      let named = false;
      return pieces.map((piece) => {
        const legend = piece.kept && !named && role !== "";
        named = named || piece.kept;
        return painted({
          x: piece.columns.map((column) => gauges.step[column]), y: piece.columns.map((column) => row[column]),
          mode: piece.columns.length > 1 ? "lines" : "markers", name: role, legendgroup: role, showlegend: legend,
          meta: { place, kept: piece.kept }, line: { dash: place < INKS ? "solid" : "dot" },
          hovertemplate: `${role} %{y:.4~g}<br>step %{x:,}<br>segment ${piece.segment}<extra></extra>`.trim(),
        });
      });
    });
    // A line of danger is drawn where it is near, and named in the legend where it would press the curves flat.
    let [low, high] = extent(Object.values(roles));
    const own = Object.entries(gauges.lines ?? {}).filter(([key]) => key === gauge || key.startsWith(`${gauge}.`)).map(([, line]) => line);
    const drawn = [...new Set([...found.map((danger) => danger.line), ...own.filter((line) => line < NEAR * high)])].filter((line) => line);
    const ends = [Math.min(...gauges.step), Math.max(...gauges.step, ...found.map((danger) => danger.step ?? 0))];
    const quietly = { meta: { ink: "alarm" }, hoverinfo: "skip" };
    for (const line of new Set([...drawn, ...own])) {
      const far = !drawn.includes(line);
      if (!far) high = Math.max(high, line);
      const [x, y] = far ? [[null], [null]] : [ends, [line, line]];
      traces.push(painted({ ...quietly, x, y, mode: "lines", name: `danger from ${line.toLocaleString("en")}${far ? " ↑" : ""}`, line: { dash: "dash", width: 1.2 } }));
    }
    for (const danger of found.filter((each) => each.step !== null)) {
      traces.push(painted({ ...quietly, x: [danger.at, danger.step], y: [danger.value, danger.line], mode: "lines+markers", showlegend: false, line: { dash: "dot", width: 1.4 }, marker: { symbol: "x", size: [0, 9] } }));
    }
    const scale = low > 0 && (high / low > 50 || found.length) ? "log" : "linear";
    const look = { showlegend: true, yaxis: { type: scale } };
    Plotly.react(chart("total"), traces, layout(look, { title: { text: "step" }, tickformat: ",d" }), CONFIG);
  };

  // One chart a turn, so that the first is seen, and a key heard, while the others are drawn.
  let waiting = new Map();
  const drawNext = () => {
    const [name, act] = waiting.entries().next().value ?? [];
    if (!act) return;
    waiting.delete(name);
    act();
    if (waiting.size) setTimeout(drawNext);
  };
  const jobs = (withGauges) => [
    ...data.figures.map((figure) => [`figure ${figure.name}`, () => drawFigure(figure)]),
    ...(withGauges ? [["heat", drawHeat], ["total", drawTotal]] : []),
  ];
  const inTurn = (own) => {
    waiting = new Map([...own, ...waiting, ...own]); // in front, and instead of their like
    drawNext();
  };
  const drawFigures = () => inTurn(jobs(false));
  const draw = () => { takeGauges(); inTurn(jobs(true)); };

  // Menus and boxes act on their charts; those that were wired before are left alone.
  const wire = () => {
    const acts = (element, act) => {
      if (!element || element.dataset.acts) return;
      element.dataset.acts = "yes";
      element.addEventListener("change", act);
    };
    document.querySelectorAll("[data-log]").forEach((box) => {
      acts(box, () => drawFigure(data.figures.find((figure) => figure.name === box.dataset.log)));
    });
    const chosen = (act) => (event) => { event.target.dataset.chosen = "yes"; act(); };
    acts(document.getElementById("gauge"), chosen(drawHeat));
    acts(document.getElementById("as-happened"), drawHeat);
    acts(document.getElementById("total"), chosen(drawTotal));
  };
  const printing = (on) => () => {
    document.documentElement.classList.toggle("print", on);
    takeGauges();
    jobs(true).forEach(([, act]) => act()); // paper does not wait
  };
  const shown = new AbortController();
  const whileShown = { signal: shown.signal };
  addEventListener("beforeprint", printing(true), whileShown);
  addEventListener("afterprint", printing(false), whileShown);
  dark.addEventListener("change", draw, whileShown);
  return { draw, drawFigures, wire, leave: () => { waiting = new Map(); shown.abort(); } };
};

const embedded = document.getElementById("data");
if (embedded) {
  const charts = chartsOf(JSON.parse(embedded.textContent));
  charts.wire();
  charts.draw();
}
