// SPDX-License-Identifier: Apache-2.0
//
// node pages.mjs MILLWRIGHT FOLDER: opens the program's pages in headless Chromium, of small and
// large jobs, and fails where the console says anything, a bar is missing, or zooming and
// hovering do not do what they should.  FOLDER has node_modules/playwright-core, and gets the
// pages and their pictures, light and dark, wide and narrow.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { createRequire } from "node:module";
import { mkdirSync, statSync, writeFileSync } from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [program, folder] = process.argv.slice(2).map((name) => path.resolve(name));
const { chromium } = createRequire(path.join(folder, "package.json"))("playwright-core");
const pictures = path.join(folder, "pictures");
mkdirSync(pictures, { recursive: true });

const kSmall = "--model llama-3.1-8b --cluster dgx-h100 --global-batch 16 --seq 8192 --tp 2 --pp 4";
const kLarge = "--model llama-3.1-405b --cluster dgx-h100 --nodes 2048 --tp 8 --pp 16 " +
  "--global-batch 16384 --seq 8192 --zero 2";  // 128 micro-batches

// The answer of a command that also writes a page; exit code 1 says that the plan does not fit.
function run(line, file) {
  const args = [...line.split(" "), "--html", path.join(folder, file), "--json"];
  try {
    return JSON.parse(execFileSync(program, args, { stdio: ["ignore", "pipe", "ignore"] }));
  } catch (error) {
    if (error.status !== 1) throw error;
    return JSON.parse(error.stdout);
  }
}

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM || "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu"],
});

async function open(file, { width = 1400, scheme = "light" } = {}) {
  const context = await browser.newContext({
    viewport: { width, height: 1000 }, colorScheme: scheme, offline: true,
  });
  const page = await context.newPage();
  const said = [];
  page.on("console", (message) => said.push(message.text()));
  page.on("pageerror", (error) => said.push(String(error)));
  page.on("dialog", (dialog) => { said.push("dialog " + dialog.message()); dialog.dismiss(); });
  page.on("request", (request) => {
    if (!/^(file|data):/.test(request.url())) said.push("asks for " + request.url());
  });
  await page.goto(pathToFileURL(path.join(folder, file)).href);
  await page.waitForFunction(() => document.body.dataset.to !== undefined);
  return { page, said, close: () => context.close() };
}

const visible = (page) => page.evaluate(() =>
  [Number(document.body.dataset.from), Number(document.body.dataset.to)]);
const tip = (page) => page.evaluate(() => {
  const box = document.getElementById("tip");
  return getComputedStyle(box).display === "none" ? "" : box.innerText;
});

async function picture(file, name) {
  for (const scheme of ["light", "dark"]) {
    for (const width of [1400, 900, 420]) {
      const { page, close } = await open(file, { width, scheme });
      // Nothing is wider than the window.
      assert.ok(await page.evaluate(() => document.documentElement.scrollWidth) <= width, name);
      await page.screenshot({
        path: path.join(pictures, `${name}-${scheme}-${width}.png`), fullPage: true,
      });
      await close();
    }
  }
}

// What is common to the pages of one step.
async function checkStep(file, answer, passes, name) {
  assert.ok(statSync(path.join(folder, file)).size < 4e6, "a few MB");
  const { page, said, close } = await open(file);
  const over = page.locator("canvas.over").first();
  const chart = page.locator(".chart").first();
  assert.equal(Number(await chart.getAttribute("data-passes")), passes);
  const ranks = answer.ranks.length;

  // A part of the breakdown for each rank and each thing that it spends time on.
  const painted = await page.evaluate(() => page.data.step.ranks.map((rank) =>
    rank.times.filter((time) => time > 0).length));
  assert.equal(await page.locator("svg.breakdown g.part rect").count(),
    painted.reduce((a, b) => a + b));
  assert.equal(painted.length, ranks);

  // The whole step first; then closer, and back.
  const length = Math.round(answer.step_time_s * 1e9);
  const [from, to] = await visible(page);
  assert.equal(from, 0);
  assert.ok(Math.abs(to - length) <= 1, `${to} of ${length}`);
  await over.scrollIntoViewIfNeeded();
  const box = await over.boundingBox();
  const x = box.x + box.width / 2, y = box.y + box.height / (2 * ranks);
  await page.mouse.move(x, y);
  await page.mouse.wheel(0, 200);  // the page's own scrolling
  await page.waitForTimeout(150);
  assert.deepEqual(await visible(page), [from, to]);
  await page.evaluate(() => scrollTo(0, 0));
  await over.scrollIntoViewIfNeeded();
  const again = await over.boundingBox();
  await page.mouse.move(again.x + again.width / 2, again.y + 8);
  await page.keyboard.down("Control");
  await page.mouse.wheel(0, -500);
  await page.keyboard.up("Control");
  await page.waitForTimeout(150);
  const closer = await visible(page);
  assert.ok(closer[1] - closer[0] < 0.5 * length, `zoomed to ${closer}`);
  // What is under the pointer stays there.
  assert.ok(closer[0] < length / 2 && length / 2 < closer[1]);
  // Dragged to the left: later.
  await page.mouse.down();
  await page.mouse.move(again.x + again.width / 2 - 100, again.y + 8, { steps: 4 });
  await page.mouse.up();
  await page.waitForTimeout(150);
  const later = await visible(page);
  assert.ok(later[0] > closer[0], `moved to ${later}`);
  assert.ok(Math.abs((later[1] - later[0]) - (closer[1] - closer[0])) <= 2);
  await page.locator("button[data-zoom=all]").click();
  await page.waitForTimeout(150);
  assert.deepEqual(await visible(page), [from, to]);

  // Passes of the first rank say what they are, where they are; close enough that a pixel, which is
  // what a pointer is exact to, is less than half of one.
  await page.evaluate(() => scrollTo(0, 0));
  await over.scrollIntoViewIfNeeded();
  for (let i = 0; i < 3; ++i) await page.locator("button[data-zoom=in]").click();
  await page.getByRole("button", { name: "Passes" }).click();
  await page.waitForTimeout(150);
  const bars = await page.evaluate(() => {
    const [from, to] = [Number(document.body.dataset.from), Number(document.body.dataset.to)];
    const all = readBars(page.data.step.ranks[0].bars);
    return all.filter((bar) => bar.passes && bar.passes.length === 1 && bar.start > from &&
      bar.end < to).slice(0, 8).map((bar) => ({ share: ((bar.start + bar.end) / 2 - from) /
      (to - from), pass: bar.passes[0] }));
  });
  assert.ok(bars.length > 0);
  for (const bar of bars) {
    await page.evaluate((share) => {
      const over = document.querySelector("canvas.over");
      const box = over.getBoundingClientRect();
      over.dispatchEvent(new MouseEvent("mousemove", { bubbles: true,
        clientX: box.left + box.width * share, clientY: box.top + 6 }));
    }, bar.share);
    const shown = await tip(page);
    const kind = ["Forward", "Backward", "Input gradient", "Weight gradient"][bar.pass[0]];
    assert.ok(shown.startsWith(`${kind} of micro-batch ${bar.pass[2]}\nrank 0, stage ${
      bar.pass[1]}`), shown);
    assert.match(shown, /start[\s\S]*duration[\s\S]*waited/);
  }

  // Close by, tasks of a stream.
  await page.evaluate(() => scrollTo(0, 0));
  await over.scrollIntoViewIfNeeded();
  await page.getByRole("button", { name: "Auto" }).last().click();
  for (let i = 0; i < 9; ++i) await page.locator("button[data-zoom=in]").click();
  await page.waitForTimeout(200);
  await page.screenshot({ path: path.join(pictures, `${name}-close.png`) });
  const near = await visible(page);
  assert.ok(near[1] - near[0] < length / 2000);
  // Scrolled sideways: later.
  const low = await over.boundingBox();
  await page.mouse.move(low.x + low.width / 2, low.y + 8);
  await page.mouse.wheel(200, 0);
  await page.waitForTimeout(150);
  assert.ok((await visible(page))[0] > near[0]);
  // What is under the pointer is a task, a wait or idleness at that moment.
  assert.match(await tip(page), /^[^\n]+\nrank 0[^\n]*\nstart/);

  // Over the memory: what the rank has in use there.
  await page.locator("button[data-zoom=all]").click();
  const memory = page.locator("canvas.over").nth(1);
  await memory.scrollIntoViewIfNeeded();
  const rows = await memory.boundingBox();
  await page.mouse.move(rows.x + rows.width / 2, rows.y + rows.height / (2 * ranks));
  const held = /^rank 0: ([\d.,]+) GiB in use/.exec(await tip(page));
  assert.ok(held && Number(held[1]) <= answer.ranks[0].peak_bytes / 2 ** 30 + 0.1, held);

  // Another theme redraws with other colours.
  const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const light = await background();
  await page.getByRole("button", { name: "Dark" }).click();
  assert.notEqual(await background(), light);
  assert.deepEqual(said, []);
  await close();
}

// 16 micro-batches forward and backward on 4 ranks.
let answer = run(`simulate ${kSmall}`, "small.html");
await checkStep("small.html", answer, 4 * 16 * 2, "small");
await picture("small.html", "small");
console.log("small job: 128 passes, zoom and hover");

// 128 micro-batches forward and backward on 16 ranks.
answer = run(`simulate ${kLarge}`, "large.html");
await checkStep("large.html", answer, 16 * 128 * 2, "large");
await picture("large.html", "large");
console.log("large job: 4096 passes, zoom and hover");

{
  const schedules = ["gpipe", "1f1b", "interleaved:4", "zb-h1", "zb-v", "dualpipe"];
  answer = run(`compare ${kSmall} --schedules ${schedules.join(",")},interleaved:9`,
    "compared.html");
  const { page, said, close } = await open("compared.html");
  const charts = page.locator(".chart");
  assert.equal(await charts.count(), schedules.length);
  // F and BW; with 2 chunks each of F, B and W, zb-v; pairs of dualpipe are one bar.
  const passes = { gpipe: 128, "1f1b": 128, "interleaved:4": 512, "zb-h1": 192, "zb-v": 384 };
  for (let i = 0; i < schedules.length; ++i) {
    const wanted = passes[schedules[i]];
    if (wanted) assert.equal(Number(await charts.nth(i).getAttribute("data-passes")), wanted);
  }
  assert.equal(await page.locator("tbody tr").count(), schedules.length + 1);
  // One scale: the longest fills it.
  const longest = Math.max(...answer.schedules.map((row) => row.step_time_s || 0));
  assert.ok(Math.abs((await visible(page))[1] - longest * 1e9) <= 1);
  await page.locator("button[data-zoom=in]").click();
  await page.waitForTimeout(150);
  const [from, to] = await visible(page);
  assert.ok(Math.abs((to - from) - longest * 1e9 / 2) <= 2);
  assert.deepEqual(said, []);
  await close();
  await picture("compared.html", "compared");
  console.log("comparison: 6 timelines on one scale");
}

{
  answer = run(`simulate ${kSmall} --slow gpu:5=0.8 --jitter 0.03 --seed 1 --steps 40`,
    "full.html");
  const { page, said, close } = await open("full.html");
  assert.equal(await page.locator("svg.links").count(), 2);
  const { link_kinds: kinds, links, steps_s: steps } = answer.full;
  assert.equal(await page.locator("svg.links g.link").count(), kinds.length + links.length);
  // Every step is in the histogram.
  const counted = await page.evaluate(() => d3.sum(d3.selectAll(
    "svg.distribution g.plot rect").data(), (bin) => bin.length));
  assert.equal(counted, steps.length);
  assert.equal(await page.locator("tbody tr").count(), Object.keys(answer.full.contention).length);
  assert.deepEqual(said, []);
  await close();
  await picture("full.html", "full");
  console.log("every rank: links and step times");
}

{
  const question = "--model llama-3.1-70b --cluster dgx-h100 --nodes 16 --global-batch 1024 " +
    "--seq 8192";
  answer = run(`plan ${question}`, "plan.html");
  const { page, said, close } = await open("plan.html");
  const rows = page.locator("table.plans tbody tr");
  assert.equal(await rows.count(), answer.plans.length);
  assert.equal(await page.locator("svg.front circle.front").count(), answer.pareto.length);
  assert.equal(await page.locator("svg.front circle.listed").count(), answer.plans.length);
  const stages = (plan) => plan.memory.stages.length;
  assert.equal(await page.locator("svg.stages g.item").first().locator("rect").count(),
    stages(answer.plans[0]));
  // The parts of the waterfall end where the step does, for each plan that is chosen.
  for (const i of [0, 1, answer.plans.length - 1]) {
    await rows.nth(i).click();
    const ends = await page.evaluate(() => waterfallParts(chosen.plan).slice(-2)
      .map((part) => part.to));
    for (const end of ends) {
      assert.ok(Math.abs(end / answer.plans[i].step_time_s - 1) < 1e-9, `${end}`);
    }
    assert.equal(await page.locator("svg.stages text.total").count(), stages(answer.plans[i]));
    assert.equal(await page.locator("tr.best").count(), 1);
  }
  // Sorted by memory, and back to the smallest number first.
  const memory = async () => (await page.locator("table.plans tbody tr td:last-child")
    .allInnerTexts()).map((text) => Number.parseFloat(text));
  await page.locator("table.plans th button", { hasText: "memory" }).click();
  const ascending = await memory();
  assert.deepEqual(ascending, [...ascending].sort((a, b) => a - b));
  await page.locator("table.plans th button", { hasText: "memory" }).click();
  assert.deepEqual(await memory(), [...ascending].reverse());
  // Of degrees that some of the plans have, or that begin theirs.
  const begins = (a, b) => String(a).startsWith(String(b));
  const alike = (a) => answer.plans.filter(
    ({ plan }) => begins(plan.pp, a.pp) && begins(plan.tp, a.tp));
  const { plan: some } = answer.plans.find(({ plan }) => alike(plan).length < answer.plans.length);
  await page.locator("input").fill(`pp${some.pp} tp${some.tp}`);
  const left = alike(some).length;
  assert.equal(await rows.count(), left);
  await page.locator("details.facts summary").click();
  assert.ok((await page.locator("dd.code").innerText()).startsWith(`./mw plan ${question}`));
  assert.deepEqual(said, []);
  await close();
  await picture("plan.html", "plan");
  console.log("plan: table, front, waterfall, stages");
}

{
  const line = "plan --model qwen3-8b --cluster pcie-l40s --nodes 1|2 --global-batch 64 --seq 8192 " +
    "--tokens 1B --price 1.5 --robust --choose fused-cross-entropy=off|on,moment-dtype=fp32|bf16";
  answer = run(line, "sizes.html");
  const { page, said, close } = await open("sizes.html");
  const section = (title) => page.locator("section", { has: page.locator("h2", { hasText: title }) });
  const { sizes, chosen_nodes: chosen } = answer.sizes;
  assert.equal(sizes.length, 2);
  assert.equal(await section("Cluster sizes").locator("tbody tr").count(), sizes.length);
  assert.equal(await section("Cluster sizes").locator("tr.best td").first().innerText(),
    String(chosen));
  assert.match(await section("Cluster sizes").locator(".hint").innerText(), /cheapest/);
  const { choices, chosen: option } = answer.options;
  assert.equal(choices.length, 4);
  assert.equal(await section("Options").locator("tbody tr").count(), choices.length);
  assert.equal(await section("Options").locator("tr.best td").first().innerText(),
    choices[option].options["fused-cross-entropy"]);
  assert.equal(await section("not alike").locator("tbody tr").count(), answer.robust.plans.length);
  // A plan whose layers are not even says so.
  const uneven = answer.plans.filter(({ plan }) => plan.stage_layers.length > 0).length;
  assert.ok(uneven > 0);
  const layers = await page.evaluate(() =>
    [...document.querySelectorAll("table.plans tbody tr")].map((row) => {
      const heads = [...document.querySelectorAll("table.plans th")].map((th) => th.innerText);
      return row.cells[heads.indexOf("layers")].innerText;
    }));
  assert.equal(layers.filter((text) => text !== "even").length, uneven);
  assert.deepEqual(said, []);
  await close();
  await picture("sizes.html", "sizes");
  console.log("plan: cluster sizes, options, GPUs that are not alike, uneven layers");
}

{
  // Names that are markup stay text.
  const name = "</script><script>alert(1)</script><img src=x onerror=alert(2)> \"'&";
  const cluster = path.join(folder, "cluster.json");
  writeFileSync(cluster, JSON.stringify({ inherit: "dgx-h100", name }));
  run(kSmall.replace("dgx-h100", cluster).replace(/^/, "simulate "), "names.html");
  const { page, said, close } = await open("names.html");
  assert.ok((await page.locator("header .under").innerText()).startsWith(name + " · "));
  assert.equal(await page.locator("img").count(), 0);
  assert.deepEqual(said, []);
  await close();
  run(`plan --model llama-3.1-8b --cluster ${cluster} --global-batch 16 --seq 8192`,
    "plan_names.html");
  const plan = await open("plan_names.html");
  assert.equal(await plan.page.locator("header .under").innerText(), name);
  assert.equal(await plan.page.locator("img").count(), 0);
  assert.deepEqual(plan.said, []);
  await plan.close();
  console.log("names are text");
}

await browser.close();
