// SPDX-License-Identifier: Apache-2.0
//
// The pages of `simulate` (kind "step") and `compare` (kind "comparison").
"use strict";

function factsList(open) {
  if (page.data.facts.length === 0) return;
  const details = page.element(page.main, "details", "facts");
  details.open = open;
  page.element(details, "summary", "", "What was simulated");
  const list = page.element(details, "dl");
  const rows = [...page.data.facts];
  if (page.data.plan) rows.unshift(["Plan", page.data.plan]);
  for (const [what, value] of rows) {
    page.element(list, "dt", "", what);
    page.element(list, "dd", "", value);
  }
}

function heading() {
  page.element(page.header, "h1", "", page.data.heading);
  page.element(page.header, "div", "under", [page.data.cluster, page.data.plan,
    page.data.schedule].filter((text) => text).join(" · "));
  page.element(page.main, "p", "sentence", page.data.sentence);
  if (page.data.full) page.element(page.main, "p", "sentence", page.data.full.sentence);
}

function paintsIn(steps) {
  return d3.range(page.data.paints.length).filter((paint) => steps.some((step) =>
    step.ranks.some((rank) => rank.times[paint] > 0)));
}

const kGestures = "Ctrl + scroll or pinch to zoom, drag to move, hover for what it waited for";

function stepPage() {
  const {step} = page.data;
  heading();
  const tiles = page.element(page.main, "div", "tiles");
  page.data.tiles.forEach((one, i) => {
    const last = i === page.data.tiles.length - 1;
    const tile = page.element(tiles, "div", "tile" + (last ? page.data.fits ? " good" : " bad"
      : ""));
    page.element(tile, "div", "title", one.title);
    page.element(tile, "div", "value", one.value);
    page.element(tile, "div", "note", one.note);
  });
  factsList(false);

  const view = new TimeView(step.length);
  page.redraws.push(() => { view.resize(); view.draw(); });
  const schedule = page.section("Timeline", kGestures);
  view.buttons(schedule.head, true);
  page.legend(schedule, paintsIn([step]));
  const timeline = new Timeline(schedule, view, step, {height: 560, most: 56, least: 13});
  view.note = page.element(schedule, "p", "note");
  timeline.figure = (rank) => [page.percent((rank.times[9] + rank.times[11]) / step.length), false];
  timeline.figureName = "bubble, idle";
  if (page.data.full) {
    page.element(schedule, "p", "note", `GPU ${page.data.full.shown} and those at its place in ` +
      "the other stages, in the first step.");
  }
  for (const note of step.notes) page.element(schedule, "p", "note", note);

  const memory = page.section("Memory over time", "of each rank, against " +
    `${page.gib(page.data.capacity)} (dashed); dark: weights, optimizer state and what else stays`);
  new MemoryChart(memory, view, step, page.data.capacity);

  const times = page.section("Where the step goes", "each rank's compute stream: what it runs " +
    "and what it waits for");
  page.legend(times, paintsIn([step]));
  breakdownChart(times, view, step);

  if (page.data.full) everyRank(page.data.full);
}

function tableOf(parent, titles, rows, className) {
  const made = page.element(page.element(parent, "div", "scroll"), "table");
  const head = page.element(page.element(made, "thead"), "tr");
  for (const title of titles) page.element(head, "th", "", title);
  const body = page.element(made, "tbody");
  rows.forEach((cells, i) => {
    const row = page.element(body, "tr", className ? className(cells, i) : "");
    for (const cell of cells) page.element(row, "td", "", cell);
  });
}

// What a simulation with every rank adds.
function everyRank(full) {
  if (full.steps.length > 1) {
    distributionChart(page.section("Step times", `of ${full.steps.length} steps, and of the ` +
      "folded simulation, in which nothing is shared, slow or random"), full.steps, full.folded);
  }
  if (full.link_kinds.length > 0) {
    const section = page.section("Links", "share of their capacity over the first step: mean " +
      "(dark) and busiest of each kind");
    linkChart(section, full.link_kinds);
    page.element(section, "p", "note", `The ${full.links.length} busiest`);
    linkChart(section, full.links);
  }
  if (full.contention.length > 0) {
    const section = page.section("Contention", "collectives over links that others use too, or " +
      "that are slow; worst: time over its price alone; in all: delays together, most of them " +
      "side by side");
    tableOf(section, ["Collectives of", "number", "held up", "worst", "in all"], full.contention);
  }
}

// The peak of each rank beside its row, on one scale for all plans.
class PeakBars {
  constructor(timeline, row, most) {
    this.timeline = timeline;
    this.row = row;
    this.most = most;
    this.canvas = page.element(timeline.box, "canvas");
    this.canvas.addEventListener("mousemove", (e) => {
      const y = e.clientY - this.canvas.getBoundingClientRect().top;
      const rank = Math.max(0, Math.min(row.step.ranks.length - 1, Math.floor(y /
        (timeline.rowHeight + timeline.gap))));
      const {peak} = row.step.ranks[rank];
      page.tip.show({title: `peak of rank ${rank}: ${page.gib(peak)}`, place: row.name, rows: [
        ["capacity", page.gib(row.capacity)],
        [peak > row.capacity ? "over" : "free", page.gib(Math.abs(row.capacity - peak))]]},
        e.clientX, e.clientY);
    });
    this.canvas.addEventListener("mouseleave", page.tip.hide);
  }
  draw() {
    const {timeline} = this, width = timeline.view.right - 22;
    const context = page.canvas(this.canvas, width, timeline.height);
    this.canvas.style.left = timeline.view.left + timeline.view.width + 18 + "px";
    const x = d3.scaleLinear([0, this.most], [0, width]);
    this.row.step.ranks.forEach((rank, i) => {
      context.fillStyle = page.colour.grid;
      context.fillRect(0, timeline.top(i), width, timeline.rowHeight);
      context.fillStyle = page.colour.held;
      context.fillRect(0, timeline.top(i), x(Math.min(rank.peak, this.row.capacity)),
        timeline.rowHeight);
      context.fillStyle = page.colour.bad;
      const over = x(rank.peak) - x(this.row.capacity);
      if (over > 0) {
        context.fillRect(x(this.row.capacity), timeline.top(i), over, timeline.rowHeight);
      }
    });
    context.fillStyle = page.colour.bad;
    context.fillRect(Math.round(x(this.row.capacity)) - 1, 0, 1, timeline.height);
  }
}

function comparisonPage() {
  const {rows, table, reasons} = page.data;
  heading();
  factsList(false);

  const results = page.section("Results", "");
  const cannot = new Set(reasons.map(([name]) => name));
  tableOf(results, table.titles, table.rows, (cells, i) => i === page.data.best ? "best"
    : cannot.has(cells[0]) ? "no" : "");

  if (rows.length > 0) {
    const view = new TimeView(d3.max(rows, (row) => row.step.length));
    view.right = 172;
    page.redraws.push(() => { view.resize(); view.draw(); });
    const section = page.section("Timelines, on one scale", kGestures);
    view.buttons(section.head, false);
    page.legend(section, paintsIn(rows.map((row) => row.step)));
    const most = 1.04 * d3.max(rows, (row) => Math.max(row.capacity,
      d3.max(row.step.ranks, (rank) => rank.peak)));
    const best = rows.find((row) => row.index === page.data.best);
    const axis = page.element(section, "div", "axis");
    for (const row of rows) {
      const title = page.element(section, "div", "plan");
      page.element(title, "span", "name", row.name);
      const peak = d3.max(row.step.ranks, (rank) => rank.peak);
      const slower = row.step.length / best.step.length - 1;
      page.element(title, "span", "more", [page.seconds(row.step.length) +
        (Math.abs(slower) < 0.0005 ? "" : ` (${d3.format("+.1f")(100 * slower)}%)`),
        `${page.gib(peak)} of ${page.gib(row.capacity)}${row.fits ? "" : ": does not fit"}`,
        row.plan === page.data.plan ? "" : row.plan].filter((text) => text).join(" · "));
      const timeline = new Timeline(section, view, row.step,
        {height: 150, most: 20, least: 6, axisParent: row === rows[0] ? axis : null});
      timeline.figureName = "peak memory of each rank";
      const peaks = new PeakBars(timeline, row, most);
      const draw = timeline.draw.bind(timeline);
      timeline.draw = () => { draw(); peaks.draw(); };
    }
    view.note = page.element(section, "p", "note");
    page.element(section, "p", "note", "Peak memory is against the capacity (red line), all plans " +
      "on one scale.");
    for (const note of new Set([...page.data.notes, ...rows.map((row) => row.step.notes).flat()])) {
      page.element(section, "p", "note", note);
    }
  }

  if (reasons.length > 0) {
    const section = page.section("Not simulated", "");
    const list = page.element(section, "dl");
    for (const [name, why] of reasons) {
      page.element(list, "dt", "", name);
      page.element(list, "dd", "", why);
    }
  }
}

page.start(() => (page.data.kind === "step" ? stepPage : comparisonPage)());
