"use strict";
// The live board: a list of runs, and one run at a time. Text of runs becomes text nodes; the only HTML
// that is taken over is what the server made and escaped itself.
(() => {
  const view = document.getElementById("view");
  const verdict = document.getElementById("verdict");
  const AXES = ["step", "tokens", "FLOPs", "hours"];
  const SMOOTH = [0, 10, 100, 1000];
  const MOST_LIVE_POINTS = 3000; // before a page asks for thinned curves again
  // Figures are asked for while the browser still reads Plotly's script.
  const drawable = new Promise((resolve) => { addEventListener("DOMContentLoaded", resolve, { once: true }); });
  let open = null; // what is shown: { close, key(event) }
  let rows = [];

  // The token stands behind the # of the printed address, which no browser sends anywhere.
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem("token", given);
    history.replaceState(null, "", "#/");
  }
  const token = () => sessionStorage.getItem("token");

  const make = (tag, properties = {}, ...children) => {
    const { dataset, ...own } = properties;
    const element = Object.assign(document.createElement(tag), own);
    Object.assign(element.dataset, dataset);
    element.append(...children.filter((child) => child !== null));
    return element;
  };
  const fromServer = (html) => {
    const template = document.createElement("template");
    template.innerHTML = html; // escaped by the server; the page's policy lets no script of it run
    return template.content;
  };
  const ask = async (path, options) => {
    const answer = await fetch(path, options);
    const body = await answer.json();
    if (!answer.ok) throw new Error([body.message, body.remedy].filter(Boolean).join(" → "));
    return body;
  };

  const figure = (value, digits = 4) => value === null || value === undefined ? "–" : value.toFixed(digits);
  const whole = (value) => value.toLocaleString("en");
  const short = (value) => {
    if (value === null || value === undefined) return "–";
    const units = [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]];
    const [size, unit] = units.find(([least]) => value >= least) ?? [1, ""];
    return `${Number((value / size).toPrecision(3))}${unit}`;
  };
  const duration = (seconds) => {
    if (seconds < 90) return `${Math.round(seconds)} s`;
    if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
    const hours = Math.floor(seconds / 3600);
    if (hours < 48) return `${hours} h ${Math.round((seconds % 3600) / 60)} min`;
    return `${Math.floor(hours / 24)} d ${hours % 24} h`;
  };
  const ahead = (row) => row.ahead
    ? [duration(row.ahead.left_s), `${duration(row.ahead.low_s)} to ${duration(row.ahead.high_s)}`] : ["–", ""];
  const seen = (row) => row.seen === null || row.seen === undefined ? "never"
    : `${duration(Math.max(0, row.now - row.seen))} ago`;

  // One sentence that tells whether the night will be quiet.
  const judge = () => {
    const live = rows.filter((row) => row.state === "live");
    const troubled = live.filter((row) => row.trouble?.is_recent);
    const down = rows.filter((row) => ["dead", "unreadable"].includes(row.state));
    const parts = [live.length ? `${live.length} ${live.length === 1 ? "run trains" : "runs train"}` : "nothing trains"];
    const elsewhere = rows.filter((row) => row.state === "elsewhere");
    if (elsewhere.length && !live.length) parts[0] = `${elsewhere.length} ${elsewhere.length === 1 ? "run trains" : "runs train"} elsewhere, or did`;
    if (down.length) parts.push(`${down.map((row) => row.name).join(", ")}: ${down.length === 1 ? "has" : "have"} fallen silent`);
    if (troubled.length) parts.push(`trouble within the hour: ${troubled.map((row) => row.name).join(", ")}`);
    if (live.length && parts.length === 1) parts.push("all quiet");
    verdict.textContent = parts.join(" · ");
    verdict.className = down.length ? "alarm" : troubled.length ? "warning" : live.length ? "good" : "";
  };

  const terms = (className, pairs) => make("dl", { className }, ...pairs.map(([name, value, unit]) =>
    make("div", {}, make("dt", { textContent: name }), make("dd", { textContent: value }),
      unit ? make("dd", { className: "unit", textContent: unit }) : null)));

  const card = (row) => {
    const link = make("a", { className: `run-card ${row.state}`, href: `#/run/${row.key}`, dataset: { key: row.key } });
    const pill = make("span", { className: `state ${row.state}`, textContent: row.state });
    link.append(make("h2", {}, make("span", { textContent: row.name }), pill));
    if (row.state === "unreadable") {
      link.append(make("p", { className: "trouble alarm", textContent: row.why }));
      return make("li", {}, link);
    }
    if (row.trouble?.is_recent) link.classList.add(row.trouble.tone);
    link.append(spark(row.spark));
    const share = row.total ? Math.min(100, 100 * row.step / row.total) : 0;
    const bar = make("span");
    bar.style.width = `${share}%`;
    link.append(make("div", { className: "progress", title: `${share.toFixed(1)} %` }, bar));
    link.append(terms("figures", [
      ["loss", figure(row.loss)], ["validation", figure(row.validation_loss)],
      ["step", whole(row.step), row.total ? `of ${whole(row.total)}` : ""],
      ["goodput", row.goodput === null ? "–" : `${(100 * row.goodput).toFixed(1)} %`],
      ["tokens/s", short(row.tokens_per_s)],
      row.state === "live" ? ["left", ahead(row)[0]] : ["last seen", seen(row)],
    ]));
    if (row.trouble) {
      const done = row.trouble.done.length ? `: ${row.trouble.done.join(", ")}` : "";
      const tone = row.trouble.is_recent ? row.trouble.tone : "quiet";
      link.append(make("p", { className: `trouble ${tone}`, textContent: `${row.trouble.kind} at step ${whole(row.trouble.step)}${done}` }));
    }
    return make("li", {}, link);
  };

  const showRuns = () => {
    document.title = "board · longhaul";
    const list = make("ul", { className: "runs" });
    view.replaceChildren(list);
    const paint = (found) => {
      rows = found;
      judge();
      const focused = document.activeElement?.dataset?.key;
      list.replaceChildren(...rows.map(card));
      if (focused) list.querySelector(`[data-key="${focused}"]`)?.focus();
      if (!rows.length) list.replaceChildren(make("li", { className: "empty", textContent: "No run here yet; `longhaul train RECIPE` starts one." }));
    };
    const source = new EventSource("/api/events");
    source.addEventListener("runs", (event) => paint(JSON.parse(event.data)));
    source.onerror = () => lost();
    const move = (by) => {
      const cards = [...list.querySelectorAll("a")];
      const at = cards.indexOf(document.activeElement);
      cards[Math.max(0, Math.min(cards.length - 1, at + by))]?.focus();
    };
    return { close: () => source.close(), key: (event) => ({ j: () => move(1), k: () => move(-1) })[event.key]?.() };
  };

  const lost = () => {
    verdict.textContent = "the board's server does not answer; what is shown is old";
    verdict.className = "alarm";
  };

  // Steps to tokens, or hours, between the points that the server gave.
  const between = (from, to) => (x) => {
    if (!from.length) return null;
    let low = 0, high = from.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (from[middle] < x) low = middle + 1; else high = middle;
    }
    const right = Math.max(1, low), left = right - 1;
    if (from.length === 1) return to[0] * x / from[0];
    return to[left] + (to[right] - to[left]) * (x - from[left]) / Math.max(from[right] - from[left], 1e-9);
  };
  const axisOf = (name, run) => {
    if (name === "tokens" || name === "FLOPs") {
      const each = name === "tokens" ? 1 : run.flops_per_token ?? NaN;
      const map = between([0, ...run.tokens.step], [0, ...run.tokens.tokens.map((tokens) => each * tokens)]);
      return { title: name === "tokens" ? "target tokens" : "training FLOPs", of: (x) => x.map(map) };
    }
    if (name === "hours") {
      const course = new Map();
      for (const trace of run.figures.find((each) => each.name === "progress").traces) {
        if (trace.meta.place === undefined) continue;
        const hours = trace.x.map((time) => (time / 1000 - run.began) / 3600);
        course.set(`${trace.name} ${trace.meta.kept}`, between(trace.y, hours));
      }
      const any = [...course.values()].pop();
      return { title: "hours since the run began", of: (x, segment, kept) => x.map(course.get(`${segment} ${kept}`) ?? any ?? ((each) => each)) };
    }
    return null;
  };

  const showRun = (key) => {
    let closed = false, charts = null, source = null, run = null, axis = 0, smooth = 0, added = 0, asking = false;
    const others = new Map();
    const data = { figures: [], gauges: { step: [], segment: [], kept: [], layers: {}, totals: {}, dangers: [], lines: {} }, view: { axis: null, smooth: 0, overlays: [] } };
    const head = make("header", { className: "run-head" });
    const now = make("div"), words = make("p", { className: "short" });
    const place = (name) => make("div", { id: `part-${name}` });
    const parts = Object.fromEntries(["loss", "chronicle", "incidents", "segments", "progress", "gauges", "others", "samples", "attempts", "nodes", "time", "background"].map((name) => [name, place(name)]));

    const choose = (label, options, chosen) => {
      const select = make("select", {}, ...options.map(([value, text]) => make("option", { value, textContent: text })));
      select.addEventListener("change", () => chosen(select.value));
      return [make("label", {}, `${label} `, select), select];
    };
    const redraw = () => {
      if (!charts) return;
      data.view.axis = run ? axisOf(AXES[axis], run) : null;
      data.view.smooth = SMOOTH[smooth];
      data.view.overlays = [...others.values()].map((other, at) => overlay(other, at));
      charts.draw();
    };
    // Another run lies along its own tokens and hours; a reference along this run's, as it has none.
    const overlay = (other, at) => {
      const look = { mode: "lines", name: other.name, showlegend: true, line: { dash: "dot", width: 1.4 }, meta: { ink: `ink-${(at + 3) % 6}` }, hovertemplate: "%{y:.4f}<extra></extra>" };
      if (other.reference) {
        const { axis: along, x, loss } = other.reference;
        const steps = along === "step" ? x : x.map(between([0, ...run.tokens.tokens], [0, ...run.tokens.step]));
        const own = axisOf(AXES[axis], run);
        return { ...look, x: own ? own.of(steps) : steps, y: loss };
      }
      const own = axisOf(AXES[axis], other.run);
      const trace = { x: [], y: [] };
      for (const piece of other.run.figures.find((each) => each.name === "loss").traces) {
        if (piece.meta.place === undefined || !piece.meta.kept) continue;
        trace.x.push(...(own ? own.of(piece.x, piece.name, true) : piece.x), null);
        trace.y.push(...piece.y, null);
      }
      return { ...look, ...trace };
    };
    const [axisLabel, axisMenu] = choose("along", AXES.map((name, at) => [at, name]), (value) => { axis = Number(value); redraw(); });
    const [smoothLabel, smoothMenu] = choose("smooth", SMOOTH.map((steps, at) => [at, steps ? `${steps} steps` : "no"]), (value) => { smooth = Number(value); redraw(); });
    const chosen = make("span", { className: "chosen" });
    const showChosen = () => chosen.replaceChildren(...[...others].map(([value, other]) => {
      const button = make("button", { type: "button", textContent: `${other.name} ×`, title: "compare no longer" });
      button.addEventListener("click", () => { others.delete(value); showChosen(); redraw(); });
      return button;
    }));
    const references = new Map();
    const [compareLabel, compareMenu] = choose("compare with", [["", "–"]], async (value) => {
      const name = compareMenu.selectedOptions[0].textContent;
      compareMenu.value = "";
      if (!value) return;
      others.set(value, references.has(value) ? { name, reference: references.get(value) } : { name, run: await ask(`/api/runs/${value}`) });
      showChosen();
      redraw();
    });
    const toolbar = make("div", { className: "toolbar" }, axisLabel, smoothLabel, compareLabel, chosen);
    view.replaceChildren(head, ...Object.values(parts));
    const asked = steering(key);
    head.append(now, words, toolbar, ...(asked ? [asked] : []));

    // A target's loss by the curve so far, at the present pace; its deadline beside what is expected.
    const aims = (row) => {
      const aim = run?.target;
      if (!aim) return [];
      const pace = row.ahead ? row.ahead.left_s / (row.total - row.step) : null;
      const until = (step) => step === null || pace === null ? "?" : duration(Math.max(0, step - row.step) * pace);
      const by = aim.deadline === null ? "" : `deadline ${aim.deadline > row.now ? `in ${duration(aim.deadline - row.now)}` : "has passed"}`;
      if (aim.loss === null) {
        const late = row.ahead && row.now + row.ahead.left_s > aim.deadline;
        return [["deadline", late ? "will be missed" : row.ahead ? "will be met" : "–", by]];
      }
      const term = `target ${aim.loss}`;
      if (aim.reached !== null) return [[term, "reached", `at step ${whole(aim.reached)}`]];
      if (aim.reach === null) return [[term, "not in sight", by]];
      const span = `step ${whole(aim.reach.low)} to ${aim.reach.high === null ? "never" : whole(aim.reach.high)}`;
      return [[term, `in ${until(aim.reach.step)}`, [span, by].filter(Boolean).join(" · ")]];
    };
    const showNow = (row) => {
      rows = rows.some((each) => each.key === key) ? rows.map((each) => each.key === key ? row : each) : [...rows, row];
      judge();
      const title = make("h1", {}, `${row.name} `, make("span", { className: `state ${row.state}`, textContent: row.state }));
      const left = ahead(row);
      now.replaceChildren(title, terms("now", [
        ["step", whole(row.step), row.total ? `of ${whole(row.total)}` : ""], ["training loss", figure(row.loss), "nats"],
        ["validation loss", figure(row.validation_loss), "nats"], ["tokens/s", short(row.tokens_per_s), row.mfu === null ? "" : `MFU ${(100 * row.mfu).toFixed(1)} %`],
        row.state === "live" ? ["left", left[0], left[1]] : ["last seen", seen(row)],
        ["goodput", row.goodput === null ? "–" : `${(100 * row.goodput).toFixed(1)} %`],
        ...aims(row),
        ["incidents", whole(row.incidents), row.trouble ? `last: ${row.trouble.kind}` : ""],
      ]));
      document.title = `${row.state === "live" ? "" : `${row.state}: `}${row.name} ${figure(row.loss)} · longhaul`;
    };

    let again = false;
    const showWhole = async () => {
      if (asking) { again = true; return; }
      asking = true;
      again = false;
      try {
        run = await ask(`/api/runs/${key}`);
        if (closed) return;
        words.textContent = run.short;
        const opened = [...view.querySelectorAll("details[open] > summary")].map((each) => each.textContent);
        for (const [name, html] of Object.entries(run.words)) parts[name].replaceChildren(fromServer(html));
        for (const summary of view.querySelectorAll("summary")) if (opened.includes(summary.textContent)) summary.parentElement.open = true;
        for (const each of run.figures) {
          const before = document.getElementById(each.name);
          if (before?.querySelector(".chart")) continue;
          before?.remove();
          (parts[each.name] ?? parts.others).append(fromServer(each.section));
        }
        data.figures = run.figures.filter((each) => each.traces.length);
        added = 0;
        const loss = data.figures.find((each) => each.name === "loss");
        if (!charts && loss) sketch(parts.loss.querySelector(".chart"), loss);
        await drawable;
        if (closed) return;
        charts ??= chartsOf(data);
        charts.wire();
        redraw();
        view.dataset.cursor = run.cursor;
        if (source === null) follow(run.cursor);
        const found = await ask(`/api/runs/${key}/gauges`);
        if (closed) return;
        data.gauges = found.gauges;
        const names = (gauges) => Object.keys({ ...gauges.layers, ...gauges.totals }).join();
        if (parts.gauges.dataset.names !== names(found.gauges)) {
          parts.gauges.dataset.names = names(found.gauges);
          parts.gauges.replaceChildren(fromServer(found.section));
        }
        charts.wire();
        charts.draw();
      } catch (error) {
        words.textContent = error.message;
        setTimeout(() => { if (!closed && source === null) showWhole(); }, 3000);
      } finally {
        asking = false;
        if (again && !closed) showWhole();
      }
    };

    const follow = (cursor) => {
      source = new EventSource(`/api/runs/${key}/events?cursor=${cursor}`);
      source.addEventListener("steps", (event) => {
        const { steps, row } = JSON.parse(event.data);
        showNow(row);
        if (steps.cursor < Number(view.dataset.cursor)) { view.dataset.cursor = 0; showWhole(); return; }
        append(steps);
        view.dataset.cursor = steps.cursor;
        if (steps.version !== run.version || added > MOST_LIVE_POINTS) showWhole();
      });
      source.addEventListener("trouble", (event) => { words.textContent = JSON.parse(event.data); });
      // It opens again by itself, but asks from where it began: begin anew instead.
      source.onerror = () => { lost(); source.close(); source = null; setTimeout(() => { if (!closed) showWhole(); }, 3000); };
    };

    const append = (steps) => {
      const columns = { loss: steps.loss, gradient_norm: steps.gradient_norm, learning_rate: steps.learning_rate };
      for (const [name, values] of Object.entries(columns)) {
        const drawn = data.figures.find((each) => each.name === name);
        if (!drawn) continue;
        steps.step.forEach((step, at) => {
          const traces = drawn.traces.filter((trace) => trace.name === steps.segment[at] && trace.meta.place !== undefined && trace.meta.kept);
          const trace = traces[traces.length - 1];
          if (trace === undefined || values[at] === null || step <= trace.x[trace.x.length - 1]) return;
          trace.x.push(step); trace.y.push(values[at]); trace.mode = "lines";
        });
      }
      added += steps.step.length;
      if (steps.step.length) charts?.drawFigures();
    };

    const list = async () => {
      const found = rows.length > 1 ? rows : await ask("/api/runs");
      rows = found;
      judge();
      for (const [at, reference] of (await ask("/api/references")).entries()) {
        references.set(`reference-${at}`, reference);
        compareMenu.append(make("option", { value: `reference-${at}`, textContent: reference.name }));
      }
      compareMenu.append(...found.filter((row) => row.key !== key).map((row) => make("option", { value: row.key, textContent: row.name })));
    };
    // Of a long run the loss is drawn from its roll-ups while the server still reads its steps.
    const firstLook = async () => {
      const look = await ask(`/api/runs/${key}/first-look`).catch(() => null);
      const rest = closed ? null : showWhole();
      if (look && run === null) {
        parts.loss.replaceChildren(fromServer(look.section));
        sketch(parts.loss.querySelector(".chart"), look);
      }
      await rest;
    };
    firstLook().then(list);
    const cycle = (menu) => { menu.selectedIndex = (menu.selectedIndex + 1) % menu.length; menu.dispatchEvent(new Event("change")); };
    return {
      close: () => { closed = true; source?.close(); charts?.leave(); },
      key: (event) => ({
        Escape: () => { location.hash = "#/"; },
        x: () => cycle(axisMenu), s: () => cycle(smoothMenu),
        l: () => document.querySelector('[data-log="loss"]')?.click(),
        n: () => { const panel = document.getElementById("steer"); if (panel) { panel.open = true; panel.querySelector("input").focus(); event.preventDefault(); } },
      })[event.key]?.(),
    };
  };

  // What a person may ask of a run; without the token there is nothing to see here.
  const steering = (key) => {
    if (!token()) return null;
    const answer = make("p", { id: "answer", role: "status" });
    const send = async (request) => {
      answer.className = "";
      answer.textContent = "asking …";
      try {
        const headers = { authorization: `Bearer ${token()}`, "content-type": "application/json" };
        answer.textContent = (await ask(`/api/runs/${key}/requests`, { method: "POST", headers, body: JSON.stringify(request) })).answer;
        answer.className = "good";
      } catch (error) {
        answer.textContent = error.message;
        answer.className = "alarm";
      }
    };
    const form = (kind, fields, request, grave) => {
      const inputs = fields.map(([name, type, hint]) => make("input", { name, type, placeholder: hint, required: name !== "reason", min: 0, className: type === "text" ? "wide-input" : "", ariaLabel: `${kind}: ${hint}` }));
      const own = make("form", { dataset: { kind } }, make("label", { textContent: kind }), ...inputs, make("button", { textContent: kind, className: grave ? "danger" : "" }));
      own.addEventListener("submit", (event) => {
        event.preventDefault();
        if (grave && !confirm(`${kind}?`)) return;
        send({ kind, ...request(Object.fromEntries(inputs.map((input) => [input.name, input.value]))) });
      });
      return own;
    };
    const reason = ["reason", "text", "why; kept in the logbook"];
    return make("details", { id: "steer" }, make("summary", { textContent: "Steer this run" }),
      form("note", [["text", "text", "a note for the logbook"]], ({ text }) => ({ text })),
      form("set", [["change", "text", "optim.lr=3e-4"], reason], (typed) => typed),
      form("rollback", [["to", "number", "to step"], reason], ({ to, reason: why }) => ({ to: Number(to), reason: why }), true),
      form("fork", [["at", "number", "at step"], ["change", "text", "optim.lr=3e-4"], reason], ({ at, change, reason: why }) => ({ at: Number(at), changes: [change], reason: why }), true),
      form("stop", [reason], (typed) => typed, true), answer);
  };

  const route = () => {
    const [, key] = location.hash.match(/^#\/run\/([0-9a-f]{16})$/) ?? [];
    if (!key && !["", "#", "#/"].includes(location.hash)) return; // a place on this page
    open?.close();
    scrollTo(0, 0);
    open = key ? showRun(key) : showRuns();
  };
  addEventListener("hashchange", route);
  // Links within a page are not places of the board.
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.('a[href^="#"]');
    if (!link || link.getAttribute("href").startsWith("#/")) return;
    event.preventDefault();
    const place = document.getElementById(link.getAttribute("href").slice(1));
    place?.scrollIntoView({ block: "center" });
    place?.classList.remove("flash");
    requestAnimationFrame(() => place?.classList.add("flash"));
  });
  // Who goes to a part of the page sees its title: the bar on top lies over what is behind it.
  const bar = document.getElementById("bar");
  new ResizeObserver(() => { document.documentElement.style.scrollPaddingTop = `${bar.offsetHeight + 12}px`; }).observe(bar);
  const help = document.getElementById("help");
  document.getElementById("help-button").addEventListener("click", () => help.showModal());
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || help.open || event.target.matches?.("input, select, textarea")) return;
    if (event.key === "?") help.showModal(); else open?.key(event);
  });
  route();
})();
