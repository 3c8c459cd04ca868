"use strict";
// Charts over time: stacked or separate rows, with marks, a cursor, and a legend that hides rows.
page.colors = ["#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#d8a800", "#9d755d", "#ff8fa3", "#7f7f7f", "#5fa2dd"];

page.svg = (tag, attributes = {}, text) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
};

// Round numbers up to `most`: powers of two for bytes, of ten for counts.
page.steps = (most, unit) => {
  const base = unit === "bytes" ? 1024 : 1000;
  let scale = 1;
  while (most / scale >= base) scale *= base;
  const step = [0.25, 0.5, 1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128, 200, 256, 500, 512].find((s) => s * scale * 5 >= most) * scale;
  const whole = unit === "bytes" ? step : Math.max(1, Math.round(step));
  return Array.from({ length: Math.floor(most / whole) + 1 }, (_, i) => i * whole);
};

page.Chart = class {
  constructor(box, charts, moments, label) {
    this.box = box; this.charts = charts; this.moments = moments; this.hidden = new Set(); this.chart = charts[0];
    this.reading = page.make("div", { class: "reading", role: "status", "aria-live": "polite" });
    this.plot = page.make("div", { tabindex: "0", role: "img" });
    this.legend = page.make("ul", { class: "legend", "aria-label": "Rows of the chart" });
    if (charts.length > 1) {
      const option = (chart) => page.make("option", { value: chart.id }, chart.title);
      const select = page.make("select", { onchange: () => this.choose(select.value) }, ...charts.map(option));
      box.append(page.make("div", { class: "bar" }, page.make("label", {}, label + " ", select)));
    }
    box.append(this.plot, this.reading, this.legend);
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", () => this.read(null));
    this.plot.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.plot);
    // Call sites are the most useful chart.
    const first = charts.find((chart) => chart.id === "site") || charts[0];
    const select = box.querySelector("select");
    if (select) select.value = first.id;
    this.choose(first.id);
  }

  choose(id) {
    this.chart = this.charts.find((chart) => chart.id === id);
    this.hidden.clear(); this.at = null;
    this.drawLegend(); this.draw();
  }

  get rows() { return this.chart.rows.map((row, i) => ({ ...row, i })).filter((row) => !this.hidden.has(row.i)); }

  drawLegend() {
    const entry = (row, i) => {
      const swatch = page.make("span", { class: "swatch" });
      swatch.style.background = page.colors[i % page.colors.length];
      const last = page.show(row.values[row.values.length - 1], this.chart.unit);
      const toggle = () => {
        if (!this.hidden.delete(i)) this.hidden.add(i);
        button.setAttribute("aria-pressed", !this.hidden.has(i));
        this.draw();
      };
      const button = page.make("button", { type: "button", "aria-pressed": "true", onclick: toggle }, swatch, `${row.name}: ${last}`);
      return page.make("li", {}, button);
    };
    this.legend.replaceChildren(...this.chart.rows.map(entry));
  }

  draw() {
    const width = this.plot.clientWidth;
    if (!width) return;
    const { times, unit, stacked } = this.chart, rows = this.rows, height = 260;
    const edge = { left: 68, right: 10, top: 18, bottom: 22 };
    const [first, last] = [times[0], times[times.length - 1]];
    const sums = times.map(() => 0);
    const tops = rows.map((row) => row.values.map((value, t) => (stacked ? (sums[t] += value) : value)));
    const most = Math.max(1, ...tops.flatMap((top) => top.reduce((a, b) => Math.max(a, b), 0)));
    const x = (ms) => edge.left + (width - edge.left - edge.right) * (ms - first) / Math.max(1, last - first);
    const y = (value) => height - edge.bottom - (height - edge.top - edge.bottom) * value / most;
    this.x = x;
    const svg = page.svg("svg", { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true" });
    for (const step of page.steps(most, unit)) {
      svg.append(page.svg("line", { class: "grid", x1: edge.left, x2: width - edge.right, y1: y(step), y2: y(step) }));
      svg.append(page.svg("text", { x: edge.left - 6, y: y(step) + 4, "text-anchor": "end" }, page.show(step, unit)));
    }
    const labels = Math.max(2, Math.floor(width / 160));
    for (let i = 0; i < labels; i += 1) {
      const ms = first + (last - first) * i / (labels - 1);
      const anchor = i === 0 ? "start" : i === labels - 1 ? "end" : "middle";
      svg.append(page.svg("text", { x: x(ms), y: height - 6, "text-anchor": anchor }, page.clock(ms)));
    }
    const path = (top) => top.map((value, t) => (t === 0 ? `M${x(times[0]).toFixed(1)},${y(value).toFixed(1)}` : `H${x(times[t]).toFixed(1)}V${y(value).toFixed(1)}`)).join("");
    const color = (row) => page.colors[row.i % page.colors.length];
    if (stacked) {
      // The topmost first: each lies over those beneath it.
      for (let n = rows.length - 1; n >= 0; n -= 1) {
        svg.append(page.svg("path", { d: `${path(tops[n])}V${y(0)}H${x(first)}Z`, fill: color(rows[n]) }));
      }
    } else {
      rows.forEach((row, n) => svg.append(page.svg("path", { d: path(tops[n]), fill: "none", stroke: color(row), "stroke-width": 2 })));
    }
    this.drawMoments(svg, first, last, height, edge);
    this.cursor = page.svg("line", { class: "cursor", x1: 0, x2: 0, y1: edge.top, y2: height - edge.bottom, visibility: "hidden" });
    svg.append(this.cursor);
    this.plot.replaceChildren(svg);
    const of = stacked ? `, ${page.show(sums[sums.length - 1], unit)} at the end, at most ${page.show(most, unit)}` : "";
    this.plot.setAttribute("aria-label", `Chart: ${this.chart.title}, from ${page.clock(first)} to ${page.clock(last)}${of}. Arrow keys read it moment by moment.`);
  }

  drawMoments(svg, first, last, height, edge) {
    let free = -Infinity;
    for (const moment of this.moments) {
      const ms = moment.unix_ns / 1e6;
      if (ms < first || ms > last) continue;
      const at = this.x(ms);
      const line = page.svg("line", { class: moment.out_of_memory ? "mark oom" : "mark", x1: at, x2: at, y1: edge.top, y2: height - edge.bottom });
      const text = moment.out_of_memory ? "out of memory" : moment.kind === "mark" ? moment.text : moment.kind;
      line.append(page.svg("title", {}, `${page.clock(ms)} ${moment.kind}: ${moment.text}`));
      svg.append(line);
      const name = text.length > 18 ? text.slice(0, 17) + "…" : text;
      if (at > free) {
        svg.append(page.svg("text", { class: "mark-name", x: at, y: 12, "text-anchor": at > edge.left + 120 ? "end" : "start" }, name));
        free = at + name.length * 6.5 + 8;
      }
    }
  }

  point(event) {
    const left = this.plot.getBoundingClientRect().left, { times } = this.chart;
    let best = 0;
    times.forEach((ms, t) => { if (Math.abs(this.x(ms) - (event.clientX - left)) < Math.abs(this.x(times[best]) - (event.clientX - left))) best = t; });
    this.read(best);
  }

  key(event) {
    const end = this.chart.times.length - 1, now = this.at === null ? end : this.at;
    const to = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: end, PageUp: now - 20, PageDown: now + 20 }[event.key];
    if (event.key === "Escape") return this.read(null);
    if (to === undefined) return undefined;
    event.preventDefault();
    return this.read(Math.min(end, Math.max(0, to)));
  }

  read(at) {
    this.at = at;
    this.cursor.setAttribute("visibility", at === null ? "hidden" : "visible");
    if (at === null) { this.reading.textContent = ""; return; }
    const ms = this.chart.times[at], rows = this.rows, { unit, stacked } = this.chart;
    this.cursor.setAttribute("x1", this.x(ms)); this.cursor.setAttribute("x2", this.x(ms));
    const sum = rows.reduce((all, row) => all + row.values[at], 0);
    const parts = rows.filter((row) => row.values[at] > 0).map((row) => `${row.name} ${page.show(row.values[at], unit)}`);
    this.reading.textContent = `${page.clock(ms)}  ${stacked ? page.show(sum, unit) + ": " : ""}${parts.join(", ") || "nothing"}`;
  }
};

page.each("memory-chart", (box, { charts, moments }) => { if (charts.length) new page.Chart(box, charts, moments, "Live memory by"); });
page.each("graph-chart", (box, { graph_charts: graphs, moments }) => {
  if (graphs.length) new page.Chart(box, graphs, moments.filter((moment) => ["thrash", "mark"].includes(moment.kind)), "Graphs and execs:");
});
