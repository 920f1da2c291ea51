// SPDX-License-Identifier: Apache-2.0
//
// What every page has: its data, how numbers are written, colours, a tooltip, sections.
// Text from the data is set as text everywhere, never as markup.
"use strict";

const page = {
  data: JSON.parse(document.getElementById("data").textContent),
  redraws: [],  // called when the width or the colours have changed
};

// Three significant digits, as the program's own tables have them.
page.significant = function (value) {
  if (value === 0) return "0";
  const digits = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))));
  return digits > 0 ? value.toFixed(Math.min(digits, 6)) : d3.format(",")(Math.round(value));
};
page.seconds = function (ns) {
  const size = Math.abs(ns);
  if (size >= 1e9) return page.significant(ns / 1e9) + " s";
  if (size >= 1e6) return page.significant(ns / 1e6) + " ms";
  if (size >= 1e3) return page.significant(ns / 1e3) + " µs";
  return Math.round(ns) + " ns";
};
// A moment, to the microsecond where the step is short enough to tell.
page.moment = (ns) => {
  if (ns >= 1e9) return d3.format(",.6f")(ns / 1e9) + " s";
  if (ns >= 1e6) return d3.format(".3f")(ns / 1e6) + " ms";
  return d3.format(".3f")(ns / 1e3) + " µs";
};
page.gib = (bytes) => d3.format(",.1f")(bytes / 2 ** 30) + " GiB";
page.percent = (share) => d3.format(".1f")(100 * share) + "%";
page.bytes = (bytes) => {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let i = 0;
  for (; bytes >= 1000 && i + 1 < units.length; ++i) bytes /= 1000;
  return page.significant(bytes) + " " + units[i];
};

page.readColours = function () {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue("--" + name).trim();
  page.colour = {};
  for (const name of ["back", "card", "line", "grid", "ink", "soft", "faint", "bad", "accent",
    "held", "fixed"]) {
    page.colour[name] = of(name);
  }
  page.paint = d3.range(13).map((i) => of("p" + i));
  // Black or white, whichever can be read on it.
  page.onPaint = page.paint.map((text) => {
    const c = d3.rgb(text);
    return (0.299 * c.r + 0.587 * c.g + 0.114 * c.b) > 140 ? "#10151b" : "#ffffff";
  });
};

page.redraw = function () {
  page.readColours();
  for (const draw of page.redraws) draw();
};

page.element = function (parent, name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  if (parent) parent.appendChild(made);
  return made;
};

page.button = function (parent, text, title, action) {
  const made = page.element(parent, "button", "", text);
  made.type = "button";
  made.title = title;
  made.addEventListener("click", action);
  return made;
};

// One of several choices is pressed.
page.choice = function (parent, label, choices, chosen, action) {
  const group = page.element(parent, "span", "buttons");
  page.element(group, "span", "label", label);
  const buttons = choices.map(([name, title]) => page.button(group, name, title, () => {
    for (const b of buttons) b.setAttribute("aria-pressed", String(b.textContent === name));
    action(name);
  }));
  for (const b of buttons) b.setAttribute("aria-pressed", String(b.textContent === chosen));
};

page.section = function (title, hint) {
  const section = page.element(page.main, "section");
  const head = page.element(section, "div", "head");
  page.element(head, "h2", "", title);
  page.element(head, "span", "hint", hint || "");
  section.head = head;
  return section;
};

page.swatch = function (parent, paint) {
  const made = page.element(parent, "span", "swatch");
  made.style.background = `var(--p${paint})`;
  return made;
};

page.legend = function (parent, paints) {
  const legend = page.element(parent, "div", "legend");
  for (const paint of paints) {
    const entry = page.element(legend, "span");
    page.swatch(entry, paint);
    entry.appendChild(document.createTextNode(page.data.paints[paint]));
  }
  return legend;
};

// {title, place, rows: [[what, value, paint or undefined]]} beside the pointer.
page.tip = {
  show(content, x, y) {
    const tip = page.tip.box;
    tip.textContent = "";
    page.element(tip, "div", "title", content.title);
    if (content.place) page.element(tip, "div", "place", content.place);
    const table = page.element(tip, "table");
    for (const [what, value, paint] of content.rows || []) {
      const row = page.element(table, "tr");
      const cell = page.element(row, "td");
      if (paint !== undefined) page.swatch(cell, paint);
      cell.appendChild(document.createTextNode(what));
      page.element(row, "td", "", value);
    }
    tip.style.display = "block";
    const width = tip.offsetWidth, height = tip.offsetHeight;
    const left = x + 16 + width > innerWidth ? x - 16 - width : x + 16;
    const top = y + 16 + height > innerHeight ? y - 12 - height : y + 16;
    tip.style.left = Math.max(4, left) + "px";
    tip.style.top = Math.max(4, top) + "px";
  },
  hide() { page.tip.box.style.display = "none"; },
};

// A canvas of that size in CSS pixels, cleared, to draw on in them.
page.canvas = function (canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const w = Math.round(width * ratio), h = Math.round(height * ratio);
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.width = width + "px";
    canvas.style.height = height + "px";
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
};

page.start = function (build) {
  page.main = document.querySelector("main");
  page.tip.box = page.element(document.body, "div");
  page.tip.box.id = "tip";
  page.readColours();
  const header = page.element(page.main, "header");
  page.header = page.element(header, "div");
  page.choice(header, "", [["Auto", "as the system"], ["Light", ""], ["Dark", ""]], "Auto",
    (name) => {
      const root = document.documentElement;
      if (name === "Auto") delete root.dataset.theme;
      else root.dataset.theme = name.toLowerCase();
      page.redraw();
    });
  build();
  page.element(page.main, "footer", "", "Drawn by Millwright with D3; this file holds all it needs.");
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", page.redraw);
  let width = 0;
  new ResizeObserver(() => {
    if (page.main.clientWidth === width) return;
    width = page.main.clientWidth;
    page.redraw();
  }).observe(page.main);
};
