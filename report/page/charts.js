// SPDX-License-Identifier: Apache-2.0
//
// Charts beside the timeline: memory over time, the breakdown by rank, links, step times.
"use strict";

// What each rank holds over time; a row goes from nothing to the capacity and what lies above it.
class MemoryChart extends RankChart {
  constructor(parent, view, step, capacity) {
    super(parent, view, step.ranks, `Memory of ${step.ranks.length} pipeline ranks over time`);
    this.step = step;
    this.capacity = capacity;
    this.top_ = Math.max(capacity, d3.max(step.ranks, (rank) => rank.peak)) * 1.04;
    this.gap = 4;
    this.figure = (rank) => [page.gib(rank.peak), rank.peak > capacity];
    this.figureName = "peak";
  }
  draw() {
    const {view} = this;
    this.rowHeight = Math.max(16, Math.min(48, Math.floor(420 / this.ranks.length)));
    const context = this.begin();
    const scale = view.scaleX;
    const [from, to] = scale.domain();
    this.clip(context);
    this.ranks.forEach((rank, row) => {
      const bottom = this.top(row) + this.rowHeight;
      const y = (bytes) => bottom - this.rowHeight * bytes / this.top_;
      context.fillStyle = page.colour.grid;
      context.fillRect(0, this.top(row), view.width, this.rowHeight);
      const {moments, held_mib: held} = rank;
      let i = Math.max(0, d3.bisectRight(moments, from) - 1);
      context.beginPath();
      context.moveTo(Math.max(0, scale(moments[i])), bottom);
      for (; i < moments.length && moments[i] <= to; ++i) {
        const level = y(held[i] * 2 ** 20);
        context.lineTo(Math.max(0, scale(moments[i])), level);
        context.lineTo(Math.min(view.width, scale(i + 1 < moments.length ? moments[i + 1]
          : this.step.length)), level);
      }
      context.lineTo(Math.min(view.width, scale(Math.min(to, this.step.length))), bottom);
      context.closePath();
      context.fillStyle = page.colour.held;
      context.fill();
      const end = Math.min(view.width, scale(this.step.length));
      // What is more than there is.
      context.save();
      context.clip();
      context.fillStyle = page.colour.bad;
      context.fillRect(0, this.top(row), end, y(this.capacity) - this.top(row));
      context.restore();
      context.fillStyle = page.colour.fixed;
      context.fillRect(0, y(rank.fixed), end, bottom - y(rank.fixed));
      context.strokeStyle = page.colour.bad;
      context.lineWidth = 1;
      context.setLineDash([4, 3]);
      const line = Math.round(y(this.capacity)) + 0.5;
      context.beginPath();
      context.moveTo(0, line);
      context.lineTo(view.width, line);
      context.stroke();
      context.setLineDash([]);
    });
    context.restore();
    this.drawOver();
  }
  hover(e) {
    const {row, time} = this.place(e);
    const rank = this.ranks[row];
    const i = Math.max(0, d3.bisectRight(rank.moments, time) - 1);
    this.view.drawCursor(time);
    const held = rank.held_mib[i] * 2 ** 20;
    page.tip.show({title: `rank ${row}: ${page.gib(held)} in use`, place: page.moment(time), rows: [
      ["all the time", page.gib(rank.fixed)],
      ["activations and buffers", page.gib(held - rank.fixed)],
      ["peak, with the allocator's slack", page.gib(rank.peak)],
      ["capacity", page.gib(this.capacity)]]}, e.clientX, e.clientY);
  }
}

// Where the step goes on each rank: a bar a rank, a part for each paint.
function breakdownChart(section, view, step) {
  const svg = d3.select(section).append("svg").attr("class", "breakdown").attr("role", "img")
    .attr("aria-label", "Time of the step by rank and cause");
  const paints = kOrder.filter((paint) => step.ranks.some((rank) => rank.times[paint] > 0));
  const rows = d3.stack().keys(paints).value((rank, paint) => rank.times[paint])(step.ranks);
  page.redraws.push(() => {
    const {left, right, width} = view, count = step.ranks.length;
    const height = Math.max(7, Math.min(24, Math.floor(420 / count)));
    const gap = height > 12 ? 4 : 2;
    const x = d3.scaleLinear([0, step.length / 1e9], [0, width]);
    const total = count * (height + gap);
    svg.attr("width", left + width + right).attr("height", total + 26);
    const y = (row) => row * (height + gap);
    svg.selectAll("g.part").data(rows).join("g").attr("class", "part")
      .attr("transform", `translate(${left},0)`).attr("fill", (row) => page.paint[row.key])
      .each(function (row) {
        const shown = row.map((part, rank) => ({rank, from: part[0] / 1e9, to: part[1] / 1e9}))
          .filter((part) => part.to > part.from);
        d3.select(this).selectAll("rect").data(shown).join("rect")
          .attr("x", (part) => x(part.from)).attr("y", (part) => y(part.rank))
          .attr("width", (part) => x(part.to) - x(part.from)).attr("height", height)
          .on("mousemove", (part) => {
            page.tip.show({title: page.data.paints[row.key], place: `rank ${part.rank}`, rows: [
              ["time", page.seconds(1e9 * (part.to - part.from))],
              ["share of the step", page.percent(1e9 * (part.to - part.from) / step.length)]]},
              d3.event.clientX, d3.event.clientY);
          }).on("mouseleave", page.tip.hide);
        d3.select(this).selectAll("text")
          .data(height < 14 ? [] : shown.filter((part) => x(part.to) - x(part.from) > 46))
          .join("text").attr("class", "inside").style("fill", page.onPaint[row.key])
          .attr("x", (part) => (x(part.from) + x(part.to)) / 2).attr("text-anchor", "middle")
          .attr("y", (part) => y(part.rank) + height / 2).attr("dy", "0.34em")
          .text((part) => page.percent(1e9 * (part.to - part.from) / step.length));
      });
    const each = Math.ceil(14 / (height + gap));
    svg.selectAll("text.rank").data(d3.range(0, count, each)).join("text").attr("class", "rank")
      .attr("x", left - 8).attr("text-anchor", "end").attr("dy", "0.34em")
      .attr("y", (rank) => y(rank) + height / 2).text((rank) => (rank ? "" : "rank ") + rank);
    const ticks = Math.max(2, Math.floor(width / 110));
    const [unit, size] = step.length >= 2e9 ? ["s", 1] : step.length >= 2e6 ? ["ms", 1e-3]
      : ["µs", 1e-6];
    const shown = d3.scaleLinear([0, step.length / 1e9 / size], [0, width]);
    svg.selectAll("g.axis").data([0]).join("g").attr("class", "axis")
      .attr("transform", `translate(${left},${total + 2})`)
      .call(d3.axisBottom(shown).ticks(ticks).tickSizeOuter(0)
        .tickFormat((value) => shown.tickFormat(ticks, ",f")(value) + " " + unit));
  });
}

// How busy links are: [{name, utilisation, mean, links, bytes}]; where a row stands for several
// links, their mean and the busiest of them.
function linkChart(section, links) {
  const svg = d3.select(section).append("svg").attr("class", "links").attr("role", "img")
    .attr("aria-label", "Utilisation of links");
  page.redraws.push(() => {
    const left = Math.min(300, Math.floor(section.clientWidth / 3)), right = 72;
    const height = 18, gap = 4;
    const width = Math.max(100, section.clientWidth - 32 - left - right);
    const x = d3.scaleLinear([0, 1], [0, width]);
    svg.attr("width", left + width + right).attr("height", links.length * (height + gap) + 24);
    const row = svg.selectAll("g.link").data(links).join((enter) => {
      const g = enter.append("g").attr("class", "link");
      g.append("text").attr("class", "name");
      for (const part of ["room", "busiest", "used"]) g.append("rect").attr("class", part);
      g.append("text").attr("class", "value");
      return g;
    }).attr("transform", (link, i) => `translate(0,${i * (height + gap)})`);
    const most = Math.floor((left - 10) / 6.2);
    row.select(".name").attr("x", left - 8).attr("y", height / 2).attr("dy", "0.34em")
      .attr("text-anchor", "end").text((link) => link.name.length > most
        ? link.name.slice(0, most - 1) + "…" : link.name);
    const bar = (part, share, colour) => row.select("." + part).attr("x", left)
      .attr("height", height).attr("fill", colour)
      .attr("width", (link) => x(Math.max(0, Math.min(1, share(link)))));
    bar("room", () => 1, page.colour.grid);
    bar("busiest", (link) => link.utilisation, page.colour.held);
    bar("used", (link) => link.mean, page.colour.accent);
    row.select(".value").attr("x", left + width + 6).attr("y", height / 2).attr("dy", "0.34em")
      .text((link) => page.percent(link.utilisation));
    row.on("mousemove", (link) => page.tip.show({title: link.name, rows: [
      [link.links > 1 ? "busiest" : "utilisation", page.percent(link.utilisation)],
      ...(link.links > 1 ? [["mean", page.percent(link.mean)],
        ["links in use", d3.format(",")(link.links)]] : []),
      [link.links > 1 ? "busiest carries" : "carries", page.bytes(link.bytes)]]},
      d3.event.clientX, d3.event.clientY)).on("mouseleave", page.tip.hide);
    svg.selectAll("g.axis").data([0]).join("g").attr("class", "axis")
      .attr("transform", `translate(${left},${links.length * (height + gap)})`)
      .call(d3.axisBottom(x).ticks(5, "%").tickSizeOuter(0));
  });
}

// How long repeated steps take, in seconds; `folded` is one with nothing shared, slow or drawn.
function distributionChart(section, steps, folded) {
  const sorted = [...steps].sort(d3.ascending);
  // As the program counts them: the least that this share of steps does not exceed.
  const percentile = (p) => sorted[Math.max(0, Math.ceil(p * sorted.length) - 1)];
  const at = [["folded", folded], ...[0.05, 0.5, 0.95].map((p) =>
    [p === 0.5 ? "median" : `${100 * p}%`, percentile(p)])].sort((a, b) => a[1] - b[1]);
  const svg = d3.select(section).append("svg").attr("class", "distribution");
  page.redraws.push(() => {
    const left = 64, right = 72, top = 46, height = 180;
    const width = Math.max(120, section.clientWidth - 32 - left - right);
    let [low, high] = d3.extent([...sorted, folded]);
    if (low === high) [low, high] = [0.99 * low, 1.01 * high];
    const x = d3.scaleLinear([low, high], [0, width]).nice();
    const bins = d3.histogram().domain(x.domain()).thresholds(x.ticks(40))(sorted);
    const y = d3.scaleLinear([0, d3.max(bins, (bin) => bin.length)], [height, 0]).nice();
    svg.attr("width", left + width + right).attr("height", top + height + 40);
    const plot = svg.selectAll("g.plot").data([0]).join("g").attr("class", "plot")
      .attr("transform", `translate(${left},${top})`);
    plot.selectAll("rect").data(bins).join("rect").attr("fill", page.colour.accent)
      .attr("x", (bin) => x(bin.x0) + 0.5).attr("y", (bin) => y(bin.length))
      .attr("width", (bin) => Math.max(0, x(bin.x1) - x(bin.x0) - 1))
      .attr("height", (bin) => height - y(bin.length));
    plot.selectAll("line.mark").data(at).join("line").attr("class", "mark")
      .attr("x1", (mark) => x(mark[1])).attr("x2", (mark) => x(mark[1])).attr("y1", -4)
      .attr("y2", height).attr("stroke", page.colour.ink).attr("stroke-dasharray", "3 3");
    // Labels that would lie on one another are raised in turn.
    let before = -Infinity, level = 0;
    plot.selectAll("text.mark").data(at).join("text").attr("class", "mark")
      .attr("x", (mark) => x(mark[1]))
      .attr("text-anchor", (mark) => x(mark[1]) < 40 ? "start" : "middle")
      .text((mark) => `${mark[0]} ${d3.format(",.4~r")(mark[1])} s`)
      .attr("y", (mark) => {
        level = x(mark[1]) - before < 96 ? (level + 1) % 3 : 0;
        before = x(mark[1]);
        return -8 - 13 * level;
      });
    const axis = (name, move, draw) => svg.selectAll("g." + name).data([0]).join("g")
      .attr("class", name).attr("transform", move).call(draw);
    axis("across", `translate(${left},${top + height})`,
      d3.axisBottom(x).ticks(8).tickFormat((value) => x.tickFormat(8)(value) + " s"));
    axis("up", `translate(${left},${top})`, d3.axisLeft(y).ticks(4));
    svg.selectAll("text.unit").data([0]).join("text").attr("class", "unit").attr("x", left)
      .attr("y", top + height + 34).text(`${steps.length} steps, counted by how long they take`);
  });
}
