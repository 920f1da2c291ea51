// SPDX-License-Identifier: Apache-2.0
//
// The page of `plan`: plans to sort, filter and choose from; of the chosen one, where its time and
// its memory go.
"use strict";

// Paints of times and of memory items, in the order of data.times and data.items.
const kTimePaints = [0, 4, 5, 6, 7, 12, 9, 8, 11, 10];
const kItemPaints = [0, 1, 2, 5, 7, 6, 4, 3, 8, 9, 10, 11, 9];

// One plan at a time is looked at; what shows it is told.
const chosen = {
  plan: null, name: "", watchers: [],
  choose(plan, name) {
    Object.assign(chosen, {plan, name});
    for (const watcher of chosen.watchers) watcher();
  },
};

// Of a plan, ranked by: the simulation's where there is one.
const stepOf = (plan) => plan.simulated_step_time_s || plan.step_time_s;
const peakOf = (plan) => plan.memory.peak_bytes;
const cpOf = ({cp, cp_kind: kind, cp_ulysses: inner}) =>
  cp === 1 || kind === "ring" ? String(cp) : cp + "u" + (kind === "nested" ? inner : "");

// Of each stage: "7,14x8,7".
function runsOf(counts) {
  const runs = [];
  for (const count of counts) {
    const last = runs[runs.length - 1];
    if (last && last.count === count) ++last.times;
    else runs.push({count, times: 1});
  }
  return runs.map(({count, times}) => times > 1 ? `${times}x${count}` : count).join(",") ||
    "even";
}

// title, what it is sorted by, what is shown; a column is left out where all show `nothing`.
const kColumns = [
  ["#", (row) => row.index, (row) => String(row.index + 1)],
  ["tp", (row) => row.plan.plan.tp],
  ["sp", (row) => Number(row.plan.plan.sp), (row) => row.plan.plan.sp ? "on" : "-", "-"],
  ["cp", (row) => row.plan.plan.cp, (row) => cpOf(row.plan.plan), "1"],
  ["pp", (row) => row.plan.plan.pp],
  ["vpp", (row) => row.plan.plan.vpp, null, "1"],
  ["dp", (row) => row.plan.plan.dp],
  ["ep", (row) => row.plan.plan.ep, null, "1"],
  ["etp", (row) => row.plan.plan.etp, null, "1"],
  ["micro-batch", (row) => row.plan.plan.micro_batch],
  ["ZeRO", (row) => row.plan.plan.zero],
  ["schedule", (row) => row.plan.plan.schedule],
  ["recompute", (row) => row.plan.plan.recompute, null, "none"],
  ["order", (row) => row.plan.plan.order, null, "tp-cp-ep-dp-pp"],
  ["layers", (row) => runsOf(row.plan.plan.stage_layers), null, "even"],
  ["simulated", (row) => row.plan.simulated_step_time_s || 0,
    (row) => row.plan.simulated_step_time_s ? seconds(row.plan.simulated_step_time_s) : "-", "-"],
  ["estimate", (row) => row.plan.step_time_s, (row) => seconds(row.plan.step_time_s)],
  ["slower", (row) => row.slower, (row) => row.slower === 0 ? "" : d3.format("+.1%")(row.slower)],
  ["tokens/s/GPU", (row) => row.rate, (row) => d3.format(",.0f")(row.rate)],
  ["MFU", (row) => row.mfu, (row) => page.percent(row.mfu)],
  ["memory", (row) => peakOf(row.plan), (row) => page.gib(peakOf(row.plan))],
];
const kWords = new Set(["schedule", "recompute", "order", "layers", "plan", "best plan", "reason", "change",
  "nearest plan"]);
const seconds = (s) => page.seconds(1e9 * s);
const days = (s) => s < 86400 ? seconds(s) : page.significant(s / 86400) + " days";

function rowsOf(plans, names) {
  const best = stepOf(plans[0]);
  return plans.map((plan, index) => {
    const speed = plan.step_time_s / stepOf(plan);
    return {plan, index, name: names[index], slower: stepOf(plan) / best - 1,
      rate: speed * plan.tokens_per_s_per_gpu, mfu: speed * plan.mfu};
  });
}

// Every word of the filter begins a word of the plan's name: "tp4 pp8 zero1".
function passes(row, words) {
  const parts = row.name.split(/[ ,()]+/);
  return words.every((word) => parts.some((part) => part.startsWith(word)));
}

function planTable(section, rows) {
  const shown = kColumns.filter(([, value, text, nothing]) => nothing === undefined ||
    rows.some((row) => (text ? text(row) : String(value(row))) !== nothing));
  const label = page.element(section.head, "label", "buttons");
  page.element(label, "span", "label", "filter");
  const filter = page.element(label, "input");
  filter.type = "search";
  filter.placeholder = "tp4 pp8";
  const made = page.element(page.element(section, "div", "scroll tall"), "table", "plans");
  const head = page.element(page.element(made, "thead"), "tr");
  const body = page.element(made, "tbody");
  const note = page.element(section, "p", "note");
  let by = 0, down = false;
  const cells = shown.map(([title], i) => {
    const cell = page.element(head, "th", kWords.has(title) ? "words" : "");
    page.button(cell, title, "sort by " + title, () => {
      down = by === i ? !down : false;
      by = i;
      draw();
    });
    return cell;
  });
  function draw() {
    const words = filter.value.toLowerCase().split(/[ ,]+/).filter((word) => word);
    const [, value] = shown[by];
    const left = rows.filter((row) => passes(row, words)).sort((a, b) =>
      (down ? d3.descending : d3.ascending)(value(a), value(b)) || a.index - b.index);
    cells.forEach((cell, i) => cell.setAttribute("aria-sort",
      i === by ? down ? "descending" : "ascending" : "none"));
    body.textContent = "";
    for (const row of left) {
      const line = page.element(body, "tr", row.plan === chosen.plan ? "best" : "");
      const choose = () => chosen.choose(row.plan, row.name);
      line.addEventListener("click", choose);
      shown.forEach(([, of, text], i) => {
        const cell = page.element(line, "td", kWords.has(shown[i][0]) ? "words" : "");
        const what = text ? text(row) : String(of(row));
        // The first cell is for those who use keys.
        if (i === 0) page.button(cell, what, row.name, choose);
        else cell.textContent = what;
      });
    }
    note.textContent = left.length === rows.length ? "" : `${left.length} of ${rows.length} plans`;
  }
  filter.addEventListener("input", draw);
  chosen.watchers.push(draw);
}

// Step against memory: the front, and the plans of the table.
function frontChart(section, front, rows, limit) {
  const svg = d3.select(section).append("svg").attr("class", "front").attr("role", "img")
    .attr("aria-label", "Step time against memory");
  const draw = () => {
    const left = 64, right = 20, top = 10, bottom = 44, height = 300;
    const width = Math.max(200, section.clientWidth - 32 - left - right);
    const all = [...front.map((one) => [peakOf(one.plan), one.plan.step_time_s]),
      ...rows.map((row) => [peakOf(row.plan), row.plan.step_time_s])];
    const x = d3.scaleLinear([0, Math.max(limit, d3.max(all, (at) => at[0])) / 2 ** 30 * 1.02],
      [0, width]);
    const [low, high] = d3.extent(all, (at) => at[1]);
    const y = d3.scaleLinear([low - 0.05 * (high - low || low), high + 0.05 * (high - low || low)],
      [height, 0]);
    svg.attr("width", left + width + right).attr("height", top + height + bottom);
    const plot = svg.selectAll("g.plot").data([0]).join("g").attr("class", "plot")
      .attr("transform", `translate(${left},${top})`);
    const at = (plan) => [x(peakOf(plan) / 2 ** 30), y(plan.step_time_s)];
    plot.selectAll("line.limit").data([limit]).join("line").attr("class", "limit")
      .attr("x1", x(limit / 2 ** 30)).attr("x2", x(limit / 2 ** 30)).attr("y1", 0)
      .attr("y2", height).attr("stroke", page.colour.bad).attr("stroke-dasharray", "4 3");
    plot.selectAll("path").data([front]).join("path").attr("fill", "none")
      .attr("stroke", page.colour.held).attr("stroke-width", 2)
      .attr("d", (points) => "M" + points.map((one) => at(one.plan).join(",")).join("L"));
    const dots = (name, data, radius, colour) => plot.selectAll("circle." + name).data(data)
      .join("circle").attr("class", name).attr("r", radius).attr("fill", colour)
      .attr("cx", (one) => at(one.plan)[0]).attr("cy", (one) => at(one.plan)[1])
      .attr("stroke", (one) => one.plan === chosen.plan ? page.colour.ink : "none")
      .attr("stroke-width", 2)
      .on("mousemove", (one) => page.tip.show({title: one.name, rows: [
        ["step, estimated", seconds(one.plan.step_time_s)],
        ["memory", page.gib(peakOf(one.plan))],
        ["free of the limit", page.gib(limit - peakOf(one.plan))]]},
        d3.event.clientX, d3.event.clientY))
      .on("mouseleave", page.tip.hide).on("click", (one) => chosen.choose(one.plan, one.name));
    dots("front", front, 4, page.colour.held);
    dots("listed", rows, 5, page.colour.accent);
    const axis = (name, move, of) => svg.selectAll("g." + name).data([0]).join("g")
      .attr("class", name).attr("transform", move).call(of);
    axis("across", `translate(${left},${top + height})`, d3.axisBottom(x).ticks(8));
    axis("up", `translate(${left},${top})`, d3.axisLeft(y).ticks(6).tickFormat((s) => seconds(s)));
    svg.selectAll("text.unit").data([0]).join("text").attr("class", "unit")
      .attr("x", left + width / 2).attr("y", top + height + 36).attr("text-anchor", "middle")
      .text("GiB of the fullest GPU; dashed: what the search may use");
  };
  page.redraws.push(draw);
  chosen.watchers.push(() => page.redraws.includes(draw) && section.clientWidth > 0 && draw());
}

// From the time that the model's FLOPs take at the peak to the step: what is lost to what.
function waterfallParts(plan) {
  const ideal = plan.ideal_time_s;
  const parts = [{name: "the model's FLOPs at the peak", from: 0, to: ideal, paint: 1}];
  let at = ideal;
  page.data.times.forEach(([key, label], i) => {
    const time = key === "compute" ? plan.time.compute - ideal : plan.time[key];
    if (Math.abs(time) < 1e-12 * plan.step_time_s) return;
    parts.push({name: key === "compute" ? "kernels below the peak" : label, from: at,
      to: at + time, paint: kTimePaints[i]});
    at += time;
  });
  parts.push({name: "step", from: 0, to: at, paint: 10});
  return parts;
}

function waterfallChart(section) {
  const svg = d3.select(section).append("svg").attr("class", "waterfall").attr("role", "img")
    .attr("aria-label", "Time of the step against a perfect machine");
  const draw = () => {
    const {plan} = chosen;
    const parts = waterfallParts(plan);
    const narrow = section.clientWidth < 560;
    const left = narrow ? 0 : 230, right = narrow ? 118 : 130, height = 20;
    const gap = narrow ? 20 : 6;
    const width = Math.max(80, section.clientWidth - 32 - left - right);
    const x = d3.scaleLinear([0, d3.max(parts, (part) => part.to)], [0, width]);
    svg.attr("width", left + width + right).attr("height", parts.length * (height + gap));
    const row = svg.selectAll("g.part").data(parts).join((enter) => {
      const g = enter.append("g").attr("class", "part");
      g.append("rect");
      g.append("text").attr("class", "name");
      g.append("text").attr("class", "value");
      return g;
    }).attr("transform", (part, i) => `translate(0,${i * (height + gap) + gap})`);
    row.select("rect").attr("x", (part) => left + x(Math.min(part.from, part.to)))
      .attr("width", (part) => Math.max(1, x(Math.abs(part.to - part.from)))).attr("height", height)
      .attr("fill", (part) => page.paint[part.paint]);
    row.select(".name").text((part) => part.name).attr("dy", "0.34em")
      .attr("text-anchor", narrow ? "start" : "end").attr("x", narrow ? 0 : left - 8)
      .attr("y", narrow ? -gap / 2 : height / 2);
    row.select(".value").attr("x", left + width + 8).attr("y", height / 2).attr("dy", "0.34em")
      .text((part) => `${seconds(part.to - part.from)} · ` +
        page.percent((part.to - part.from) / plan.step_time_s));
  };
  page.redraws.push(draw);
  chosen.watchers.push(draw);
}

// A bar a stage, a part an item, against the capacity.
function stagesChart(section, capacity, limit) {
  const legend = page.element(section, "div", "legend");
  const svg = d3.select(section).append("svg").attr("class", "stages").attr("role", "img")
    .attr("aria-label", "Memory of each stage by item");
  const draw = () => {
    const {stages} = chosen.plan.memory;
    const items = page.data.items.map(([key, label], i) => ({key, label, paint: kItemPaints[i]}))
      .filter((item) => stages.some((stage) => stage[item.key] > 0));
    legend.textContent = "";
    for (const item of items) {
      const entry = page.element(legend, "span");
      page.swatch(entry, item.paint);
      entry.appendChild(document.createTextNode(item.label));
    }
    const left = 64, right = 84;
    const height = Math.max(8, Math.min(24, Math.floor(420 / stages.length)));
    const gap = height > 12 ? 4 : 2;
    const width = Math.max(80, section.clientWidth - 32 - left - right);
    const most = Math.max(capacity, d3.max(stages, (stage) => stage.total_bytes)) / 2 ** 30;
    const x = d3.scaleLinear([0, most * 1.02], [0, width]);
    const total = stages.length * (height + gap);
    svg.attr("width", left + width + right).attr("height", total + 26);
    const stacked = d3.stack().keys(items.map((item) => item.key))
      .value((stage, key) => stage[key] / 2 ** 30)(stages);
    svg.selectAll("g.item").data(stacked).join("g").attr("class", "item")
      .attr("transform", `translate(${left},0)`)
      .attr("fill", (layer, i) => page.paint[items[i].paint])
      .each(function (layer, i) {
        d3.select(this).selectAll("rect").data(layer).join("rect")
          .attr("x", (part) => x(part[0])).attr("width", (part) => Math.max(0, x(part[1]) -
            x(part[0]))).attr("y", (part, row) => row * (height + gap)).attr("height", height)
          .on("mousemove", (part) => {
            const stage = part.data;
            page.tip.show({title: `${items[i].label}: ${page.gib(stage[items[i].key])}`,
              place: `stage ${stage.stage}`, rows: [["stage in all", page.gib(stage.total_bytes)],
                ["capacity", page.gib(capacity)]]}, d3.event.clientX, d3.event.clientY);
          }).on("mouseleave", page.tip.hide);
      });
    const each = Math.ceil(14 / (height + gap));
    const text = (name, at, anchor, what) => svg.selectAll("text." + name)
      .data(stages.filter((stage, row) => row % each === 0)).join("text").attr("class", name)
      .attr("x", at).attr("text-anchor", anchor).attr("dy", "0.34em")
      .attr("y", (stage, i) => i * each * (height + gap) + height / 2).text(what);
    text("stage", left - 8, "end", (stage) => `stage ${stage.stage}`);
    text("total", left + width + 8, "start", (stage) => page.gib(stage.total_bytes));
    svg.selectAll("line").data([capacity, limit]).join("line").attr("y1", 0).attr("y2", total)
      .attr("x1", (bytes) => left + x(bytes / 2 ** 30))
      .attr("x2", (bytes) => left + x(bytes / 2 ** 30)).attr("stroke", page.colour.bad)
      .attr("stroke-dasharray", (bytes, i) => i === 0 ? null : "4 3");
    svg.selectAll("g.axis").data([0]).join("g").attr("class", "axis")
      .attr("transform", `translate(${left},${total + 2})`)
      .call(d3.axisBottom(x).ticks(Math.max(3, Math.floor(width / 90))).tickSizeOuter(0)
        .tickFormat((gib) => gib + " GiB"));
  };
  page.redraws.push(draw);
  chosen.watchers.push(draw);
}

function plainTable(section, titles, rows) {
  const made = page.element(page.element(section, "div", "scroll"), "table");
  const head = page.element(page.element(made, "thead"), "tr");
  const words = titles.map((title) => kWords.has(title) ? "words" : "");
  titles.forEach((title, i) => page.element(head, "th", words[i], title));
  const body = page.element(made, "tbody");
  for (const cells of rows) {
    const row = page.element(body, "tr");
    cells.forEach((cell, i) => page.element(row, "td", words[i], typeof cell === "number"
      ? d3.format(",")(cell) : cell));
  }
  return made;
}

// The sizes that were asked about, and what each takes.
function sizesSection({sizes, chosen_nodes: chosen, tokens, usd_per_gpu_hour: price}) {
  const section = page.section("Cluster sizes", page.data.sizes_sentence);
  const integer = d3.format(","), times = tokens !== null, costs = price !== null;
  const columns = [["nodes", (size) => size.nodes], ["GPUs", (size) => size.gpus],
    ["step", (size) => seconds(size.step_time_s)],
    sizes.some((size) => size.high_s) && ["95% and interval", (size) => seconds(size.high_s)],
    ["tokens/s", (size) => integer(Math.round(size.tokens_per_s))],
    ["tokens/s/GPU", (size) => integer(Math.round(size.tokens_per_s / size.gpus))],
    times && ["in all", (size) => days(size.time_s)],
    times && costs && ["USD", (size) => integer(Math.round(size.usd))],
    costs && ["tokens/USD", (size) => integer(Math.round(size.tokens_per_usd))],
    sizes.some((size) => size.options) && ["options", (size) => size.options],
    ["best plan", (size, i) => page.data.size_names[i]]].filter((column) => column);
  const always = new Set(["nodes", "GPUs", "best plan"]);
  const table = plainTable(section, columns.map(([title]) => title), sizes.map((size, i) =>
    columns.map(([title, text]) => size.fits || always.has(title) ? text(size, i) : "-")));
  table.querySelectorAll("tbody tr").forEach((row, i) => {
    row.className = sizes[i].nodes === chosen ? "best" : "";
  });
}

// The choices of options that were asked about, the fastest first.
function optionsSection({choices, chosen}) {
  const section = page.section("Options", page.data.options_sentence);
  const axes = Object.keys(choices[0].options);
  const order = d3.sort(d3.range(choices.length), (i) => choices[i].high_s ?? choices[i].step_time_s ?? Infinity);
  const table = plainTable(section, [...axes, "step", "peak", "best plan"], order.map((i) => {
    const {options, fits, step_time_s: step, peak_bytes: peak} = choices[i];
    return [...axes.map((axis) => options[axis]), fits ? seconds(step) : "-",
      fits ? page.gib(peak) : "-", page.data.option_names[i]];
  }));
  table.querySelectorAll("tbody tr").forEach((row, at) => {
    row.className = order[at] === chosen ? "best" : "";
  });
}

// Where GPUs are not alike: what the best plans were ranked by.
function robustSection(robust, names) {
  const section = page.section("Where GPUs are not alike", `${robust.draws} draws in which GPUs ` +
    `differ by ${page.percent(robust.gpu_jitter)} (sigma, seed ${robust.seed})` +
    [...robust.slow.map((part) => ", " + part)].join("") + "; ranked by the last column");
  const of = (cost, key) => cost ? seconds(cost[key]) : "-";
  plainTable(section, ["#", "median", "95%", "95%, and the 90% interval", "plan"],
    robust.plans.map((cost, i) => [i + 1, of(cost, "median_s"), of(cost, "p95_s"),
      of(cost, "high_s"), names[i]]));
}

function tiles(plan, limit) {
  const box = page.element(page.main, "div", "tiles");
  const add = (title, value, note, className) => {
    const tile = page.element(box, "div", "tile" + (className || ""));
    page.element(tile, "div", "title", title);
    page.element(tile, "div", "value", value);
    page.element(tile, "div", "note", note);
  };
  const speed = plan.step_time_s / stepOf(plan);
  const {interval} = plan;
  add("Step", seconds(stepOf(plan)), plan.simulated_step_time_s
    ? `simulated; estimated ${seconds(plan.step_time_s)}` : "estimated");
  const [least, unit] = seconds(interval.low).split(" "), most = seconds(interval.high);
  add("90% interval", `${most.endsWith(" " + unit) ? least : least + " " + unit} – ${most}`,
    `by published runs: ${interval.of}`);
  add("Speed", `${d3.format(",.0f")(speed * plan.tokens_per_s_per_gpu)}`, "tokens/s/GPU");
  add("MFU", page.percent(speed * plan.mfu),
    `${d3.format(",.0f")(speed * plan.model_tflops_per_gpu)} TFLOP/s of the model`);
  const fits = peakOf(plan) <= limit;
  add(fits ? "Fits" : "Does not fit", page.gib(peakOf(plan)),
    `of ${page.gib(plan.memory.capacity_bytes)}; most on stage ${plan.memory.peak_stage}`,
    fits ? " good" : " bad");
}

function howToReproduce() {
  const {command, facts, answer} = page.data;
  const details = page.element(page.main, "details", "facts");
  page.element(details, "summary", "", "The question, and what the answer assumes");
  const list = page.element(details, "dl");
  const rows = [...facts, ["Command", command],
    ["Efficiencies", `${answer.question.calibration.name}: ${answer.question.calibration.source}`],
    ["MFU counts", answer.question.training.mfu_convention],
    ["Memory margin", page.percent(answer.question.memory_margin)],
    ["Only", answer.question.require.join(" and ")], ["Not", answer.question.forbid.join(" nor ")],
    ...answer.warnings.map((warning) => ["Warning", warning])];
  for (const [what, value] of rows) {
    if (!value) continue;
    page.element(list, "dt", "", what);
    page.element(list, "dd", what === "Command" ? "code" : "", value);
  }
}

page.start(() => {
  const {answer, capacity, timeline} = page.data;
  const limit = answer.memory_limit_bytes;
  page.element(page.header, "h1", "", page.data.heading);
  page.element(page.header, "div", "under", page.data.cluster);
  page.element(page.main, "p", "sentence", page.data.sentence);

  const plans = answer.plans.length > 0 ? answer.plans : answer.nearest_miss
    ? [answer.nearest_miss] : [];
  const names = answer.plans.length > 0 ? page.data.names : [page.data.nearest_name];
  if (plans.length > 0) tiles(plans[0], limit);
  howToReproduce();
  if (answer.sizes) sizesSection(answer.sizes);
  if (answer.options) optionsSection(answer.options);

  if (plans.length > 0) {
    const rows = rowsOf(plans, names);
    chosen.plan = plans[0];
    chosen.name = names[0];
    const table = page.section(answer.plans.length > 0 ? "Plans" : "The nearest miss",
      "each layout with its best schedule, ZeRO stage and recomputation; choose one to see where " +
      "its time and memory go");
    planTable(table, rows);
    const near = rows.filter((row) => row.slower < page.data.told_apart).length;
    if (near > 1) {
      page.element(table, "p", "note", `The first ${near} cannot be told apart: within ` +
        `${page.percent(page.data.told_apart)} of the first, 90% intervals overlap by more than half.`);
    }
    for (const note of answer.framework_notes) page.element(table, "p", "note", note);
    const {simulation} = answer;
    if (simulation.simulated > 1) {
      page.element(table, "p", "note", `Ranked by simulated step, of the ${simulation.simulated} ` +
        `fastest by the estimate, which is ${page.percent(simulation.median_error)} off at the ` +
        `median and ${page.percent(simulation.largest_error)} at most.`);
    }
    const named = (title, hint) => {
      const section = page.section(title, hint);
      const name = page.element(section, "div", "plan");
      chosen.watchers.push(() => { name.textContent = chosen.name; });
      return section;
    };
    waterfallChart(named("From the peak to the step",
      `what the estimate loses to ${page.data.gpu}s at their dense peak, item by item`));
    stagesChart(named("Memory by stage", `against the ${page.gib(capacity)} of a GPU; dashed: what ` +
      "the search may use"), capacity, limit);
    if (answer.robust) robustSection(answer.robust, names);
    if (answer.pareto.length > 0) {
      const front = answer.pareto.map((plan, i) => ({plan, name: page.data.pareto_names[i]}));
      frontChart(page.section("Time against memory",
        "no plan with layers divided evenly is both faster and smaller than the line; the plans of the table beside it"),
      front, rows, limit);
    }
    chosen.choose(plans[0], names[0]);
  }

  if (answer.remedies.length > 0) {
    plainTable(page.section("What would make it fit", ""), ["change", "plan", "step", "memory"],
      answer.remedies.map((one, i) => [one.change, page.data.remedy_names[i],
        seconds(one.step_time_s), page.gib(one.peak_bytes)]));
  }
  if (timeline) {
    const {step} = timeline;
    const view = new TimeView(step.length);
    page.redraws.push(() => { view.resize(); view.draw(); });
    const section = page.section("The best plan's step, simulated",
      "Ctrl + scroll or pinch to zoom, drag to move, hover for what it waited for");
    view.buttons(section.head, true);
    page.legend(section, d3.range(page.data.paints.length).filter((paint) =>
      step.ranks.some((rank) => rank.times[paint] > 0)));
    const drawn = new Timeline(section, view, step, {height: 420, most: 48, least: 10});
    view.note = page.element(section, "p", "note");
    drawn.figure = (rank) => [page.percent((rank.times[9] + rank.times[11]) / step.length), false];
    drawn.figureName = "bubble, idle";
    for (const note of step.notes) page.element(section, "p", "note", note);
  }

  const rejected = page.section("What was rejected",
    `${d3.format(",")(answer.searched)} plans costed; branches of the search count once`);
  plainTable(rejected, ["reason", "plans"], page.data.rejected);
  if (page.data.out_of_memory.length > 0) {
    plainTable(page.section("Out of memory", "by what most of the fullest stage is, and which plan " +
      "came nearest"), ["item", "plans", "over by", "stage", "nearest plan"],
    page.data.out_of_memory);
  }
});
