// SPDX-License-Identifier: Apache-2.0
//
// What each rank does over time: passes, and where they are wide enough the tasks within them.
"use strict";

// The window of time that all charts of a page show, and the gestures that change it.
class TimeView {
  constructor(length) {
    this.length = length;
    this.left = 56;   // for the names of ranks
    this.right = 72;  // for a figure of each
    this.transform = d3.zoomIdentity;
    this.charts = [];
    this.cursor = null;  // time under the pointer
    this.mode = "Auto";
    this.zoom = d3.zoom()
      // Plain scrolling is the page's.
      .filter(() => d3.event.type === "wheel" ? d3.event.ctrlKey || d3.event.metaKey
        : !d3.event.button)
      .wheelDelta(() => -d3.event.deltaY * (d3.event.deltaMode ? 0.05 : 0.004))
      .on("zoom", () => this.moved(d3.event.transform));
  }
  add(chart) {
    this.charts.push(chart);
    d3.select(chart.over).call(this.zoom)
      .on("wheel.pan", () => {
        const e = d3.event;
        const by = e.shiftKey ? e.deltaX || e.deltaY : e.deltaX;
        if (e.ctrlKey || e.metaKey || Math.abs(by) < Math.abs(e.shiftKey ? 0 : e.deltaY)) return;
        e.preventDefault();
        this.pan(by);
      })
      .on("keydown", () => {
        const action = {ArrowLeft: () => this.pan(-80), ArrowRight: () => this.pan(80),
          "+": () => this.scale(2), "=": () => this.scale(2), "-": () => this.scale(0.5),
          "0": () => this.reset()}[d3.event.key];
        if (!action) return;
        d3.event.preventDefault();
        action();
      });
  }
  // All charts lie below each other, so that they have one width.
  resize() {
    this.width = Math.max(120, page.main.querySelector("section").clientWidth - 32 - this.left -
      this.right);
    this.base = d3.scaleLinear([0, this.length], [0, this.width]);
    const widest = Math.max(1, this.length / 500);  // half a microsecond across at most
    this.zoom.scaleExtent([1, widest]).extent([[0, 0], [this.width, 1]])
      .translateExtent([[0, 0], [this.width, 1]]);
  }
  get scaleX() { return this.transform.rescaleX(this.base); }
  moved(transform) {
    this.transform = transform;
    for (const chart of this.charts) chart.over.__zoom = transform;
    this.draw();
  }
  draw() {
    if (this.asked) return;
    this.asked = requestAnimationFrame(() => {
      this.asked = 0;
      for (const chart of this.charts) chart.draw();
      if (this.note) {
        this.note.textContent = this.charts.some((chart) => chart.crowded)
          ? "Passes are too many to be drawn one by one at this width: each column shows how its " +
            "time divides. Zoom in for the passes." : "";
      }
      const [from, to] = this.scaleX.domain();
      Object.assign(document.body.dataset, {from: Math.round(from), to: Math.round(to)});
    });
  }
  drawCursor(time) {
    this.cursor = time;
    for (const chart of this.charts) chart.drawOver();
  }
  pan(pixels) {
    this.zoom.translateBy(d3.select(this.charts[0].over), -pixels / this.transform.k, 0);
  }
  scale(by) { this.zoom.scaleBy(d3.select(this.charts[0].over), by); }
  reset() { this.zoom.transform(d3.select(this.charts[0].over), d3.zoomIdentity); }

  buttons(parent, withDetail) {
    if (withDetail) {
      page.choice(parent, "Detail",
        [["Auto", "tasks where passes are wide enough"], ["Passes", "passes only"],
          ["Tasks", "tasks on their streams"]], "Auto",
        (name) => { this.mode = name; this.draw(); });
    }
    const group = page.element(parent, "span", "buttons");
    page.button(group, "−", "zoom out (key -)", () => this.scale(0.5)).dataset.zoom = "out";
    page.button(group, "+", "zoom in (key +)", () => this.scale(2)).dataset.zoom = "in";
    page.button(group, "Whole step", "all of it (key 0)", () => this.reset()).dataset.zoom = "all";
  }

  // The axis of the window: moments where they are short to write, else distances from the left.
  axis(svg) {
    const scale = this.scaleX;
    const [from, to] = scale.domain();
    const span = to - from;
    const [unit, size] = span >= 2e9 ? ["s", 1e9] : span >= 2e6 ? ["ms", 1e6]
      : span >= 2e3 ? ["µs", 1e3] : ["ns", 1];
    const count = Math.max(2, Math.floor(this.width / 110));
    const relative = from > 200 * span;
    const origin = relative ? from : 0;
    const shown = d3.scaleLinear([(from - origin) / size, (to - origin) / size], [0, this.width]);
    const format = shown.tickFormat(count, ",f");
    svg.attr("width", this.left + this.width + this.right).attr("height", 26);
    const group = svg.selectAll("g").data([0]).join("g")
      .attr("transform", `translate(${this.left},24)`);
    group.call(d3.axisTop(shown).ticks(count).tickSizeOuter(0).tickFormat((value) =>
      // The origin is written where the first label would be.
      // and nothing runs into the figures at the right.
      (relative && shown(value) < 60) || shown(value) > this.width - 22 ? "" : (relative ? "+" : "") + format(value) + " " + unit));
    svg.selectAll("text.origin").data(relative ? [from] : []).join("text")
      .attr("class", "origin").attr("x", 0).attr("y", 15)
      .text((t) => "from " + d3.format(".4f")(t / 1e9) + " s");
    this.ticks = shown.ticks(count).map((value) => shown(value));
  }
}

// One chart below the axis: rows of a rank each, drawn on a canvas, with a second one over it.
class RankChart {
  // `axisParent`: where its axis goes, null where that of another chart serves.
  constructor(parent, view, ranks, label, axisParent = parent) {
    this.view = view;
    this.ranks = ranks;
    this.axis = axisParent && d3.select(axisParent).append("svg").attr("aria-hidden", "true");
    this.figure = null;  // of a rank: text at the right end of its row, and whether it is too much
    this.figureName = "";
    this.box = page.element(parent, "div", "chart");
    this.canvas = page.element(this.box, "canvas");
    this.over = page.element(this.box, "canvas", "over");
    this.over.tabIndex = 0;
    this.over.setAttribute("role", "img");
    this.over.setAttribute("aria-label", label);
    this.over.addEventListener("mousemove", (e) => this.hover(e));
    this.over.addEventListener("mouseleave", () => {
      this.hovered = null;
      page.tip.hide();
      view.drawCursor(null);
    });
    view.add(this);
  }
  get height() { return this.ranks.length * (this.rowHeight + this.gap) + this.gap; }
  top(row) { return this.gap + row * (this.rowHeight + this.gap); }
  drawAxis() {
    const {view} = this;
    view.axis(this.axis);
    this.axis.selectAll("text.figure").data([this.figureName]).join("text")
      .attr("class", "figure").attr("x", view.left + view.width + view.right - 2).attr("y", 15)
      .attr("text-anchor", "end").text((name) => name);
  }
  begin() {
    const {view} = this;
    if (this.axis) this.drawAxis();
    const height = this.height;
    this.box.style.height = height + "px";
    const context = page.canvas(this.canvas, view.left + view.width + view.right, height);
    page.canvas(this.over, view.width, height);
    this.over.style.left = view.left + "px";
    context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    context.textBaseline = "middle";
    // Names of ranks, as many as have room.
    const each = Math.ceil(14 / (this.rowHeight + this.gap));
    context.fillStyle = page.colour.soft;
    context.textAlign = "right";
    this.ranks.forEach((rank, row) => {
      if (row % each > 0) return;
      const y = this.top(row) + this.rowHeight / 2;
      context.fillText((row === 0 ? "rank " : "") + row, view.left - 8, y);
      if (!this.figure) return;
      const [text, alarming] = this.figure(rank);
      context.fillStyle = alarming ? page.colour.bad : page.colour.soft;
      context.fillText(text, view.left + view.width + view.right - 2, y);
      context.fillStyle = page.colour.soft;
    });
    context.textAlign = "left";
    context.save();
    context.translate(view.left, 0);
    return context;
  }
  clip(context) {
    context.beginPath();
    context.rect(0, 0, this.view.width, this.height);
    context.clip();
  }
  drawGrid(context) {
    context.fillStyle = page.colour.grid;
    for (const x of this.view.ticks) context.fillRect(Math.round(x), 0, 1, this.height);
  }
  drawOver() {
    const context = page.canvas(this.over, this.view.width, this.height);
    if (this.view.cursor !== null) {
      context.fillStyle = page.colour.ink;
      context.globalAlpha = 0.45;
      context.fillRect(Math.round(this.view.scaleX(this.view.cursor)), 0, 1, this.height);
      context.globalAlpha = 1;
    }
    return context;
  }
  // The row under the pointer and the time there.
  place(e) {
    const box = this.over.getBoundingClientRect();
    const y = e.clientY - box.top;
    const row = Math.floor((y - this.gap / 2) / (this.rowHeight + this.gap));
    return {row: Math.max(0, Math.min(this.ranks.length - 1, row)), y,
      time: this.view.scaleX.invert(e.clientX - box.left)};
  }
}

const kWaiting = 9;  // in place of a stream: computation stands still
const kPair = 4, kWait = 5, kTask = 6, kIdle = 7, kMerged = 8;
// How the time of a pass is drawn where its tasks are not: work first, what it waited for last.
const kOrder = [4, 0, 1, 2, 3, 10, 8, 7, 6, 5, 12, 9, 11];

// A rank's bars from one flat array (report/step_page.cc writes it).
function readBars(flat) {
  const bars = [];
  let start = 0;
  for (let i = 0; i < flat.length;) {
    const bar = {start, end: start + flat[i], code: flat[i + 1]};
    i += 2;
    const next = () => flat[i++];
    if (bar.code < kPair) {
      bar.passes = [[bar.code, next(), next()]];
      bar.shape = next();
    } else if (bar.code === kPair) {
      bar.passes = [[next(), next(), next()], [next(), next(), next()]];
      bar.shape = next();
    } else if (bar.code === kWait) {
      [bar.paint, bar.label, bar.rank, bar.stage, bar.micro] = [next(), next(), next(), next(),
        next()];
    } else if (bar.code === kTask) {
      [bar.paint, bar.label] = [next(), next()];
    } else if (bar.code === kMerged) {
      [bar.count, bar.shape] = [next(), next()];
    } else {
      bar.paint = 11;
    }
    bars.push(bar);
    start = bar.end;
  }
  return bars;
}

function readTasks(flat, beside) {
  const size = beside ? 8 : 5, tasks = [];
  for (let i = 0; i < flat.length; i += size) {
    const task = {stream: flat[i], label: flat[i + 1], paint: flat[i + 2], start: flat[i + 3],
      end: flat[i + 3] + flat[i + 4], micro: -1, count: 1};
    if (beside) [task.stage, task.micro, task.count] = flat.slice(i + 5, i + 8);
    tasks.push(task);
  }
  return tasks;
}

const kPassNames = ["Forward", "Backward", "Input gradient", "Weight gradient"];

class Timeline extends RankChart {
  // options: {height, most, least} of all rows, and of one; axisParent as above.
  constructor(parent, view, step, options) {
    const ranks = step.ranks.map((rank) => ({...rank, bars: readBars(rank.bars),
      beside: readTasks(rank.beside, true)}));
    super(parent, view, ranks, `Timeline of ${ranks.length} pipeline ranks`, options.axisParent);
    this.step = step;
    this.options = options;
    this.shapes = step.shapes.map(([times, tasks]) => {
      const shape = {times: [], total: 0, tasks: readTasks(tasks, false)};
      for (let i = 0; i < times.length; i += 2) {
        shape.times.push([times[i], times[i + 1]]);
        shape.total += times[i + 1];
      }
      shape.times.sort((a, b) => kOrder.indexOf(a[0]) - kOrder.indexOf(b[0]));
      shape.main = shape.times.length > 0 ? d3.scan(shape.times, (a, b) => b[1] - a[1]) : 0;
      return shape;
    });
    const streams = new Set();
    for (const shape of this.shapes) for (const task of shape.tasks) streams.add(task.stream);
    for (const rank of ranks) for (const task of rank.beside) streams.add(task.stream);
    streams.delete(0);
    streams.delete(kWaiting);
    this.lanes = [...streams].sort((a, b) => a - b);
    const passes = ranks.map((rank) => rank.bars.filter((bar) => bar.passes));
    this.typical = d3.median(passes.flat().map((bar) => bar.end - bar.start)) || 0;
    this.box.dataset.passes = d3.sum(passes, (of) => of.length);
    this.box.dataset.bars = d3.sum(ranks, (rank) => rank.bars.length);
    this.gap = options.most > 20 ? 4 : 2;
  }

  draw() {
    const {view} = this;
    const scale = view.scaleX;
    const perNs = scale(1) - scale(0);
    this.detail = this.lanes.length > 0 &&
      (view.mode === "Tasks" || (view.mode === "Auto" && this.typical * perNs >= 56));
    const even = this.options.height / this.ranks.length;
    this.rowHeight = Math.max(this.options.least, Math.min(this.options.most, Math.floor(even)));
    if (this.detail) this.rowHeight = Math.max(this.rowHeight, 30);  // room for the lanes
    const h = this.rowHeight;
    this.mainHeight = this.detail ? Math.round(h * 0.6) : h;
    this.laneHeight = this.detail ? (h - this.mainHeight - 1) / this.lanes.length : 0;

    const context = this.begin();
    this.clip(context);
    const [from, to] = scale.domain();
    // Where most passes would be a few pixels wide, columns say more than stripes.
    this.crowded = this.typical * perNs < 6;
    const [narrow, wide] = this.crowded ? [12, 10] : [1, 1];
    this.ranks.forEach((rank, row) => {
      const y = this.top(row);
      const bars = rank.bars;
      let column = null;  // of bars too narrow to be told apart
      const flush = (end) => {
        const left = column && Math.round(column.x);
        if (column) this.drawStack(context, column.times, left, Math.round(end), y);
        column = null;
      };
      for (let i = this.first(bars, from); i < bars.length && bars[i].start < to; ++i) {
        const bar = bars[i];
        const x = scale(bar.start), end = scale(bar.end);
        if (end - x < narrow) {
          column = column || {x, times: new Float64Array(12)};
          for (const [paint, time] of this.timesOf(bar)) column.times[paint] += time;
          if (end - column.x >= wide) flush(end);
          continue;
        }
        flush(x);
        this.drawBar(context, bar, Math.max(x, -2), Math.min(end, view.width + 2), y, x, end);
      }
      flush(scale(Math.min(to, this.step.length)));
      if (this.detail) {
        for (let i = this.first(rank.beside, from); i < rank.beside.length; ++i) {
          const task = rank.beside[i];
          if (task.start < to && task.end > from) this.drawTask(context, task, 0, y, scale);
        }
      }
    });
    this.drawEnd(context, scale);
    context.restore();
    this.drawOver();
  }
  first(bars, from) { return d3.bisector((bar) => bar.end).right(bars, from); }

  timesOf(bar) {
    return bar.shape === undefined ? [[bar.paint, bar.end - bar.start]]
      : this.shapes[bar.shape].times;
  }
  // How the time of what lies between two places divides, from top to bottom.
  drawStack(context, times, x, end, y) {
    const total = d3.sum(times) || 1;
    let at = y;
    for (const paint of kOrder) {
      const next = at + this.mainHeight * times[paint] / total;
      context.fillStyle = page.paint[paint];
      context.fillRect(x, at, end - x, next - at);
      at = next;
    }
  }

  // [x, end] is what is visible of the bar's [whole, wholeEnd].
  drawBar(context, bar, x, end, y, whole, wholeEnd) {
    const width = end - x, h = this.mainHeight;
    if (bar.shape === undefined) {
      context.fillStyle = page.paint[bar.paint];
      context.fillRect(x, y, width, h);
      if (bar.code === kTask && width > 60 && h >= 12) {
        this.write(context, this.step.labels[bar.label], x, width, y + h / 2, bar.paint);
      }
      return;
    }
    const shape = this.shapes[bar.shape];
    if (bar.code === kMerged) {
      const times = new Float64Array(12);
      for (const [paint, time] of shape.times) times[paint] = time;
      this.drawStack(context, times, x, end, y);
      return;
    }
    const gap = bar.passes && wholeEnd - whole > 5 ? 1 : 0;  // tells passes from each other
    if (this.detail && shape.tasks.length > 0 && wholeEnd - whole >= 24) {
      this.drawTasks(context, bar, shape, y);
      return;
    }
    let at = whole;
    for (const [paint, time] of shape.times) {
      const next = at + (wholeEnd - gap - whole) * time / (shape.total || 1);
      if (next > x && at < end) {
        context.fillStyle = page.paint[paint];
        const left = Math.max(at, x), right = Math.min(next, end);
        context.fillRect(left, y, right - left, h);
      }
      at = next;
    }
    if (bar.passes && h >= 11) {
      const name = bar.passes.map((pass) => pass[2]).join("·");
      const main = shape.times[shape.main];
      const room = (Math.min(wholeEnd, end) - x) * (bar.passes.length > 1 ? 0.9 : 0.75);
      if (room > 7 && main) this.write(context, name, x, room, y + h / 2, main[0]);
    }
  }
  write(context, text, x, width, y, paint) {
    const needed = context.measureText(text).width;
    if (needed + 4 > width) return;
    context.fillStyle = page.onPaint[paint];
    context.fillText(text, x + 3, y + 0.5);
  }

  drawTasks(context, bar, shape, y) {
    const scale = this.view.scaleX;
    const [from, to] = scale.domain();
    const visible = shape.tasks.filter((task) => bar.start + task.start < to &&
      bar.start + task.end > from);
    const x = Math.max(scale(bar.start), -1), end = Math.min(scale(bar.end), this.view.width + 1);
    const main = shape.times[shape.main];
    context.fillStyle = page.paint[main ? main[0] : 11];
    context.globalAlpha = 0.25;
    context.fillRect(x, y, end - x, this.mainHeight);
    context.globalAlpha = 1;
    for (const task of visible) this.drawTask(context, task, bar.start, y, scale);
    const name = bar.passes.map((pass) => pass[2]).join("·");
    context.font = context.font.replace(/^(bold )?/, "bold ");
    this.write(context, name, Math.max(0, x), end - Math.max(0, x), y + this.mainHeight / 2,
      main ? main[0] : 11);
    context.font = context.font.replace(/^bold /, "");
    context.fillStyle = page.colour.card;
    context.fillRect(scale(bar.end) - 1, y, 1, this.mainHeight);
  }
  drawTask(context, task, offset, y, scale) {
    const x = Math.max(scale(offset + task.start), -1);
    const end = Math.min(scale(offset + task.end), this.view.width + 1);
    const width = Math.max(end - x, 0.4);
    context.fillStyle = page.paint[task.paint];
    if (task.stream === 0 || task.stream === kWaiting) {
      context.fillRect(x, y, width > 3 ? width - 0.5 : width, this.mainHeight);
      return;
    }
    const lane = this.lanes.indexOf(task.stream);
    context.fillRect(x, y + this.mainHeight + 1 + lane * this.laneHeight, width,
      Math.max(1, this.laneHeight - 1));
    if (this.laneHeight >= 11) {
      this.write(context, this.name(task.label), x, width,
        y + this.mainHeight + 1 + (lane + 0.5) * this.laneHeight, task.paint);
    }
  }
  // Where the step is over, on a scale that goes on.
  drawEnd(context, scale) {
    if (this.step.length >= this.view.length) return;
    const x = Math.round(scale(this.step.length));
    context.fillStyle = page.colour.soft;
    context.fillRect(x, 0, 1, this.height);
    const text = page.seconds(this.step.length);
    const width = context.measureText(text).width;
    if (x + width + 6 < this.view.width) context.fillText(text, x + 5, this.height / 2);
  }

  drawOver() {
    const context = super.drawOver();
    const {hovered} = this;
    if (!hovered || !hovered.bar.passes) return;
    // The same micro-batch everywhere, and this bar.
    const scale = this.view.scaleX;
    const [from, to] = scale.domain();
    const micro = new Set(hovered.bar.passes.map((pass) => this.microBatch(pass)));
    context.strokeStyle = page.colour.ink;
    this.ranks.forEach((rank, row) => {
      for (let i = this.first(rank.bars, from); i < rank.bars.length; ++i) {
        const bar = rank.bars[i];
        if (bar.start > to) break;
        if (!bar.passes || !bar.passes.some((pass) => micro.has(this.microBatch(pass)))) {
          continue;
        }
        const x = scale(bar.start), width = scale(bar.end) - x;
        context.lineWidth = bar === hovered.bar ? 2 : 1;
        context.strokeRect(x, this.top(row) - 0.5, Math.max(1, width - 1), this.mainHeight + 1);
      }
    });
  }

  // Each direction of a pipeline counts its own from 0.
  microBatch([, stage, micro]) {
    return `${Math.floor(stage / this.step.stages_per_direction)}.${micro}`;
  }

  hover(e) {
    const {row, y, time} = this.place(e);
    const rank = this.ranks[row];
    const bar = rank.bars[this.first(rank.bars, time)];
    this.hovered = bar && {row, bar};
    this.view.drawCursor(time);
    if (!bar || time < 0) {
      page.tip.hide();
      return;
    }
    page.tip.show(this.taskTip(row, rank, bar, time, y) || this.barTip(row, rank, bar), e.clientX,
      e.clientY);
  }
  // The task under the pointer, where tasks are drawn.
  taskTip(row, rank, bar, time, y) {
    if (!this.detail) return null;
    const inRow = y - this.top(row) - this.mainHeight - 1;
    const stream = inRow < 0 ? 0
      : this.lanes[Math.min(this.lanes.length - 1, Math.floor(inRow / this.laneHeight))];
    const inPass = bar.passes ? this.shapes[bar.shape].tasks : [];
    let offset = bar.start;
    let task = inPass.find((t) => (t.stream || kWaiting) === (stream || kWaiting) &&
      offset + t.start <= time && time < offset + t.end);
    if (!task) {
      offset = 0;
      task = rank.beside.find((t) => t.stream === stream && t.start <= time && time < t.end);
    }
    if (!task) return null;
    const within = bar.passes && offset ? ", in " + this.passText(bar).toLowerCase() : "";
    const rows = [["start", page.moment(offset + task.start)],
      ["duration", page.seconds(task.end - task.start)],
      ["stream", page.data.streams[task.stream]]];
    if (task.micro >= 0) rows.push(["micro-batch", task.micro]);
    if (task.count > 1) rows.push(["merged", d3.format(",")(task.count) + " tasks"]);
    const title = (task.stream === kWaiting ? "waits for " : "") + this.name(task.label);
    return {title, place: `rank ${row}${within}`, rows};
  }
  name(label) { return label < 0 ? "several tasks" : this.step.labels[label]; }
  passText(bar) {
    const one = ([kind, , micro]) => `${kPassNames[kind]} of micro-batch ${micro}`;
    return bar.passes.length === 1 ? one(bar.passes[0])
      : `${one(bar.passes[0])} with ${one(bar.passes[1]).toLowerCase()}`;
  }
  waitText(wait) {
    const micro = wait.micro >= 0 ? ` of micro-batch ${wait.micro}` : "";
    return `${this.step.labels[wait.label]}${micro}, stage ${wait.stage} on rank ${wait.rank}`;
  }
  barTip(row, rank, bar) {
    const rows = [["start", page.moment(bar.start)],
      ["duration", page.seconds(bar.end - bar.start)]];
    if (bar.code === kWait) {
      rows.push(["waits for", this.waitText(bar)]);
      return {title: page.data.paints[bar.paint] + ": waiting", place: `rank ${row}`, rows};
    }
    if (bar.code === kTask) {
      return {title: this.step.labels[bar.label], place: `rank ${row}`, rows};
    }
    if (bar.code === kIdle) return {title: "idle", place: `rank ${row}`, rows};
    const shape = this.shapes[bar.shape];
    for (const [paint, time] of shape.times) {
      rows.push([page.data.paints[paint], `${page.seconds(time)}  (${
        page.percent(time / shape.total)})`, paint]);
    }
    if (bar.code === kMerged) {
      return {title: `${d3.format(",")(bar.count)} bars, merged`, place: `rank ${row}`, rows};
    }
    const before = rank.bars[rank.bars.indexOf(bar) - 1];
    if (before && before.code === kWait) {
      rows.splice(2, 0, ["waited", page.seconds(before.end - before.start)],
        ["for", this.waitText(before)]);
    } else {
      rows.splice(2, 0, ["waited", "no, the rank was busy"]);
    }
    const stages = bar.passes.map((pass) => pass[1]);
    const chunks = bar.passes.map((pass) => rank.stages.indexOf(pass[1]));
    const chunk = rank.stages.length > 1 ? `, chunk ${[...new Set(chunks)].join(" and ")}` : "";
    return {title: this.passText(bar),
      place: `rank ${row}, stage ${[...new Set(stages)].join(" and ")}${chunk}`, rows};
  }
}
