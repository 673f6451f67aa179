// Pictures: a plan as a graph, money over time. Drawn from data in the page or the API; nothing in it is ever run.
"use strict";
const Pictures = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const made = (name, attributes = {}, text) => {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const TONES = {
    SUCCESS: "good", REUSED: "good", SKIPPED: "good", running: "busy", queued: "wait", waiting: "calm",
    FAILED: "bad", BLOCKED: "bad", CANCELLED: "bad", IN_DOUBT: "wait",
  };
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function graph(place) {
    if (place.drawn === place.dataset.graph) return;
    place.drawn = place.dataset.graph;
    const { nodes, edges } = JSON.parse(place.dataset.graph);
    const plan = new dagre.graphlib.Graph();
    plan.setGraph({ rankdir: "LR", nodesep: 10, ranksep: 36, marginx: 6, marginy: 6 });
    plan.setDefaultEdgeLabel(() => ({}));
    for (const one of nodes) plan.setNode(one.id, { ...one, width: Math.min(46 + 7 * one.label.length, 230), height: 30 });
    const known = new Set(nodes.map((one) => one.id));
    for (const [from, to] of edges) if (known.has(from) && known.has(to)) plan.setEdge(from, to);
    dagre.layout(plan);
    const { width = 0, height = 0 } = plan.graph();
    const drawing = made("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img" });
    for (const edge of plan.edges()) {
      const points = plan.edge(edge).points;
      const path = points.map((p, n) => `${n ? "L" : "M"}${p.x.toFixed(1)} ${p.y.toFixed(1)}`).join("");
      drawing.append(made("path", { d: path, class: "edge" }));
    }
    for (const id of plan.nodes()) {
      const one = plan.node(id);
      const group = made("g", { class: "node", "data-tone": TONES[one.status] || "calm" });
      group.append(made("title", {}, `${one.label}: ${one.status}`));
      group.append(made("rect", { x: one.x - one.width / 2, y: one.y - 15, width: one.width, height: 30, rx: 7 }));
      group.append(made("circle", { cx: one.x - one.width / 2 + 14, cy: one.y, r: 5 }));
      const most = Math.floor((one.width - 40) / 6.6);
      const label = one.label.length > most ? `${one.label.slice(0, most - 1)}…` : one.label;
      group.append(made("text", { x: one.x - one.width / 2 + 26, y: one.y + 4 }, label));
      drawing.append(group);
    }
    place.replaceChildren(drawing);
  }

  function plot(place, data, series, money) {
    const wide = Math.max(place.clientWidth, 240);
    const key = JSON.stringify([data, wide, document.documentElement.dataset.theme]);
    if (place.key === key) return;
    place.key = key;
    place.plot?.destroy();
    place.replaceChildren();
    const axis = { stroke: colour("--faint"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    const places = (most) => (most >= 10 ? 0 : most >= 0.1 ? 2 : 4);
    const written = (values) => values.map((value) => (money ? `$${value.toFixed(places(Math.max(...values)))}` : value.toLocaleString()));
    place.plot = new uPlot({
      width: wide,
      height: 180,
      series: [{}, ...series],
      axes: [axis, { ...axis, size: 64, values: (_, values) => written(values) }],
      cursor: { y: false },
      legend: { show: true, live: true },
      scales: { y: { range: (_, least, most) => [0, Math.max(most * 1.1, 1e-6)] } },
    }, data, place);
  }

  function days(place) {
    const { at, usd } = JSON.parse(place.dataset.days);
    const bars = uPlot.paths.bars({ size: [0.7, 40] });
    plot(place, [at, usd], [{ label: "spent", stroke: colour("--busy"), fill: colour("--busy-soft"), paths: bars, points: { show: false }, value: (_, v) => (v == null ? "–" : `$${v.toFixed(2)}`) }], true);
  }

  async function costs(place) {
    if (place.seen === place.dataset.total && place.plot) return;
    place.seen = place.dataset.total;
    const answer = await fetch(place.dataset.from);
    if (!answer.ok) return;
    const lanes = await answer.json();
    const lane = ["usd_micros", "tokens", "solver_calls", "duration_secs"].map((name) => lanes.find((one) => one.lane === name && one.at.length)).find(Boolean);
    if (!lane) {
      place.textContent = "Nothing was spent yet.";
      return;
    }
    const money = lane.lane === "usd_micros";
    const by = money ? 1e6 : 1;
    const at = [...lane.at], totals = lane.totals.map((total) => total / by);
    if (at.length === 1) { at.unshift(at[0] - 1); totals.unshift(0); }
    const limit = lane.limit === null ? null : lane.limit / by;
    const shown = (_, v) => (v == null ? "–" : money ? `$${v.toFixed(2)}` : v.toLocaleString());
    const series = [{ label: money ? "spent" : lane.lane, stroke: colour("--busy"), fill: colour("--busy-soft"), width: 2, paths: uPlot.paths.stepped({ align: 1 }), points: { show: false }, value: shown }];
    const data = [at, totals];
    if (limit !== null) {
      series.push({ label: "may be spent", stroke: colour("--bad"), dash: [6, 4], width: 1.5, points: { show: false }, value: shown });
      data.push(at.map(() => limit));
    }
    plot(place, data, series, money);
  }

  function draw() {
    for (const place of document.querySelectorAll("[data-graph]")) graph(place);
    for (const place of document.querySelectorAll('[data-chart="days"]')) days(place);
    for (const place of document.querySelectorAll('[data-chart="costs"]')) costs(place);
    for (const log of document.querySelectorAll("[data-tail]")) {
      if (log.scrolled !== log.textContent.length) log.scrollTop = log.scrollHeight;
      log.scrolled = log.textContent.length;
    }
  }

  let waiting;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(draw, 150);
  });
  return { draw };
})();
