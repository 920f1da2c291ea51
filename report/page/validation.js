// SPDX-License-Identifier: Apache-2.0
//
// The page of `validate --runs`: predicted against measured steps, and errors by source.
"use strict";

const kBands = [[0.10, "held"], [0.05, "fixed"]];

function runTip(run) {
  page.tip.show({title: run.id, place: `${run.model}, ${run.gpus} ${run.gpu}`, rows: [
    ["measured", page.seconds(1e9 * run.measured)],
    ["predicted", page.seconds(1e9 * run.predicted)],
    ["error", d3.format("+.1%")(run.error)],
    ["plan", run.plan]]}, d3.event.clientX, d3.event.clientY);
}

// On log axes a band of a share is a stripe of one width everywhere.
function scatterChart(section, runs, look) {
  const svg = d3.select(section).append("svg").attr("class", "scatter").attr("role", "img")
    .attr("aria-label", "Predicted against measured step time");
  page.redraws.push(() => {
    const left = 64, right = 16, top = 8, bottom = 44;
    const width = Math.max(240, section.clientWidth - 32 - left - right);
    const height = Math.min(width, 560);
    const [low, high] = d3.extent(runs.flatMap((run) => [run.measured, run.predicted]));
    const x = d3.scaleLog([low / 1.3, high * 1.3], [0, width]);
    const y = d3.scaleLog([low / 1.3, high * 1.3], [height, 0]);
    svg.attr("width", left + width + right).attr("height", top + height + bottom);
    const plot = svg.selectAll("g.plot").data([0]).join("g").attr("class", "plot")
      .attr("transform", `translate(${left},${top})`);
    const [a, b] = x.domain();
    const corner = (at, factor) => `${x(at)},${Math.max(0, Math.min(height, y(at * factor)))}`;
    plot.selectAll("polygon").data(kBands).join("polygon")
      .attr("fill", (band) => page.colour[band[1]]).attr("opacity", 0.45)
      .attr("points", (band) => [corner(a, 1 + band[0]), corner(b, 1 + band[0]),
        corner(b, 1 / (1 + band[0])), corner(a, 1 / (1 + band[0]))].join(" "));
    plot.selectAll("line").data([0]).join("line").attr("x1", x(a)).attr("y1", y(a))
      .attr("x2", x(b)).attr("y2", y(b)).attr("stroke", page.colour.soft);
    plot.selectAll("path.run").data(runs).join("path").attr("class", "run")
      .attr("fill-opacity", 0.75).attr("fill", (run) => look(run.group).colour)
      .attr("d", (run) => d3.symbol().type(look(run.group).symbol).size(40)())
      .attr("transform", (run) => `translate(${x(run.measured)},${y(run.predicted)})`)
      .on("mousemove", runTip).on("mouseleave", page.tip.hide);
    const ticks = (axis) => axis.ticks(6, "~g").tickSizeOuter(0);
    const place = (name, move, axis) => svg.selectAll("g." + name).data([0]).join("g")
      .attr("class", name).attr("transform", move).call(ticks(axis));
    place("across", `translate(${left},${top + height})`, d3.axisBottom(x));
    place("up", `translate(${left},${top})`, d3.axisLeft(y));
    const unit = (name, text) => svg.selectAll("text." + name).data([0]).join("text")
      .attr("class", "unit " + name).attr("fill", page.colour.soft).text(text);
    unit("measured", "measured, seconds a step").attr("x", left + width / 2)
      .attr("y", top + height + 36).attr("text-anchor", "middle");
    unit("predicted", "predicted").attr("text-anchor", "middle")
      .attr("transform", `translate(14,${top + height / 2}) rotate(-90)`);
  });
}

// A row a source: each run at its error, the median error as a line.
function errorChart(section, groups, runs, look) {
  const svg = d3.select(section).append("svg").attr("class", "errors").attr("role", "img")
    .attr("aria-label", "Error by source");
  page.redraws.push(() => {
    const left = 100, right = 130, height = 26, most = 0.6;
    const width = Math.max(160, section.clientWidth - 32 - left - right);
    const total = groups.length * height;
    const x = d3.scaleLinear([-most, most], [0, width]).clamp(true);
    svg.attr("width", left + width + right).attr("height", total + 40);
    const back = svg.selectAll("g.back").data([0]).join("g").attr("class", "back")
      .attr("transform", `translate(${left},0)`);
    back.selectAll("rect").data(kBands).join("rect").attr("y", 0).attr("height", total)
      .attr("fill", (band) => page.colour[band[1]]).attr("opacity", 0.45)
      .attr("x", (band) => x(-band[0])).attr("width", (band) => x(band[0]) - x(-band[0]));
    const row = new Map(groups.map((group, i) => [group.name, (i + 0.5) * height]));
    const points = svg.selectAll("g.points").data([0]).join("g").attr("class", "points")
      .attr("transform", `translate(${left},0)`);
    points.selectAll("path").data(runs).join("path").attr("fill-opacity", 0.6)
      .attr("fill", (run) => look(run.group).colour)
      .attr("d", (run) => d3.symbol().type(look(run.group).symbol).size(30)())
      .attr("transform", (run, i) => `translate(${x(run.error)},${row.get(run.group) +
        (i * 7 % 11 - 5) * 1.4})`)
      .on("mousemove", runTip).on("mouseleave", page.tip.hide);
    points.selectAll("line").data(groups).join("line").attr("stroke", page.colour.ink)
      .attr("stroke-width", 2).attr("x1", (group) => x(group.bias))
      .attr("x2", (group) => x(group.bias)).attr("y1", (group) => row.get(group.name) - 10)
      .attr("y2", (group) => row.get(group.name) + 10);
    const text = (name, at, anchor, what) => svg.selectAll("text." + name).data(groups).join("text")
      .attr("class", name).attr("x", at).attr("dy", "0.34em").attr("text-anchor", anchor)
      .attr("fill", page.colour.ink).attr("y", (group) => row.get(group.name)).text(what);
    text("name", left - 8, "end", (group) => `${group.name} (${group.n})`);
    text("value", left + width + 10, "start",
      (group) => `${page.percent(group.median)} / ${page.percent(group.p90)}`);
    svg.selectAll("g.axis").data([0]).join("g").attr("class", "axis")
      .attr("transform", `translate(${left},${total})`)
      .call(d3.axisBottom(x).ticks(7, "+.0%").tickSizeOuter(0));
  });
}

function table(section, titles, rows) {
  const made = page.element(section, "table");
  const head = page.element(page.element(made, "thead"), "tr");
  for (const title of titles) page.element(head, "th", "", title);
  const body = page.element(made, "tbody");
  for (const cells of rows) {
    const row = page.element(body, "tr");
    for (const cell of cells) page.element(row, "td", "", cell);
  }
}

page.start(() => {
  const {groups, runs} = page.data;
  const index = new Map(groups.map((group, i) => [group.name, i]));
  // More groups than colours: the same ones in another shape.
  const paints = page.paint.length;
  const symbols = [d3.symbolCircle, d3.symbolDiamond, d3.symbolTriangle, d3.symbolSquare];
  const look = (group) => {
    const i = index.get(group);
    return {colour: page.paint[i % paints], symbol: symbols[Math.floor(i / paints) % symbols.length]};
  };
  page.element(page.header, "h1", "", page.data.heading);
  page.element(page.main, "p", "sentence", page.data.sentence);
  if (runs.length > 0) {
    const scatter = page.section("Predicted against measured",
      "each point a run; bands of 5% and 10%; hover names it");
    const legend = page.element(scatter, "div", "legend");
    groups.forEach((group, i) => {
      const entry = page.element(legend, "span");
      d3.select(entry).append("svg").attr("width", 12).attr("height", 12).append("path")
        .style("fill", `var(--p${i % paints})`).attr("transform", "translate(6,6)")
        .attr("d", d3.symbol().type(look(group.name).symbol).size(50)());
      entry.appendChild(document.createTextNode(group.name));
    });
    scatterChart(scatter, runs, look);
    errorChart(page.section("Error by source",
      "line: median error; right: median and 90th percentile of the absolute error"), groups, runs,
    look);
  }
  for (const one of page.data.tables) table(page.section(one.title), one.titles, one.rows);
});
