/* Draws the plots of a page with uPlot, from the JSON in #plots: one line each, marks for what happened, and a tooltip.
 *
 * The tooltip follows the pointer, and the arrow keys in a focused plot. On a page with data-range, dragging over a part
 * of a plot loads the page of that time.
 */
"use strict";

(() => {
  const source = document.getElementById("plots"), root = document.getElementById("live");
  if (!source || !root || !window.uPlot) return;
  const plots = JSON.parse(source.textContent), HEIGHT = 150, NEAR = 7, DASH = [4, 4];
  const drawn = [];

  const number = (value, digits = 0) => value.toLocaleString("en-US", { maximumFractionDigits: digits, minimumFractionDigits: digits });
  const whole = (value) => number(value, Number.isInteger(value) ? 0 : 1);

  function size(value) {
    const units = ["B", "kB", "MB", "GB", "TB"];
    let unit = 0;
    for (; value >= 999.5 && unit < units.length - 1; unit++) value /= 1000;
    return `${number(value, unit && value < 10 ? 1 : 0)} ${units[unit]}`;
  }

  function age(seconds) {
    for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]]) {
      if (seconds >= length) return `${Number((seconds / length).toPrecision(3))} ${unit}`;
    }
    return `${Number(seconds.toPrecision(3))} s`;
  }

  const rate = (value) => `${value >= 10 || !value ? number(value) : number(value, 1)}/s`;
  const UNITS = { whole, size, age, rate, position: whole };
  const inUtc = (seconds) => new Date(seconds * 1000).toISOString().slice(0, 19).replace("T", " ") + " UTC";
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

  /* Times on the axis: of the day, dates, or months, as their distance asks for. In UTC, as all times of the site. */
  function times(splits, distance) {
    return splits.map((seconds) => {
      const at = new Date(seconds * 1000), month = MONTHS[at.getUTCMonth()];
      if (distance >= 25 * 86400) return `${month} ${at.getUTCFullYear()}`;
      if (distance >= 86400) return `${at.getUTCDate()} ${month}`;
      return at.toISOString().slice(11, distance < 60 ? 19 : 16);
    });
  }

  /* --- parts of one plot ---------------------------------------------------------------------------------------- */

  /* A line of a single point would be invisible, so points that have no neighbour are drawn as dots. */
  function alone(u, series) {
    const values = u.data[series], found = [];
    for (let i = 0; i < values.length; i++) {
      if (values[i] != null && values[i - 1] == null && values[i + 1] == null) found.push(i);
    }
    return found;
  }

  function range(plot) {
    return (u, low, high) => {
      if (low == null) return [0, 1];
      if (plot.unit !== "position") return [0, high > 0 ? high * 1.08 : 1];
      const room = Math.max((high - low) * 0.08, 1);
      return [Math.max(0, low - room), high + room];
    };
  }

  /* Lines are on whole device pixels, or they would be grey. */
  function drawMarks(u, marks) {
    const { ctx, bbox } = u;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    for (const mark of marks) {
      const shade = colour(mark.word === "site" ? "--accent" : `--${mark.word}-edge`);
      const at = Math.round(u.valToPos(mark.at, "x", true)) + 0.5;
      if (mark.until) {
        ctx.globalAlpha = 0.2;
        ctx.fillStyle = shade;
        ctx.fillRect(at, bbox.top, Math.max(2, u.valToPos(mark.until, "x", true) - at), bbox.height);
        ctx.globalAlpha = 1;
        continue;
      }
      ctx.strokeStyle = shade;
      ctx.lineWidth = devicePixelRatio * 1.5;
      ctx.setLineDash(mark.word === "site" ? [] : DASH);
      ctx.beginPath();
      ctx.moveTo(at, bbox.top);
      ctx.lineTo(at, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  function marksAt(u, plot, left) {
    return plot.marks.filter((mark) => {
      const from = u.valToPos(mark.at, "x"), until = mark.until ? u.valToPos(mark.until, "x") : from;
      return left >= from - NEAR && left <= until + NEAR;
    });
  }

  /* The tooltip is one line of text for each thing that is there. Texts come from names that clients choose: never HTML. */
  function showTip(u, plot, holder, tip) {
    const { left, idx } = u.cursor, isOwn = holder.matches(":hover") || document.activeElement === holder;
    const lines = [];
    if (isOwn && left >= 0) {
      const value = idx == null ? null : u.data[1][idx];
      if (value != null) lines.push(`${inUtc(u.data[0][idx])}: ${UNITS[plot.unit](value)}`);
      for (const mark of marksAt(u, plot, left)) lines.push(mark.text);
    }
    tip.hidden = !lines.length;
    if (tip.hidden) return;
    tip.replaceChildren(...lines.map((text) => {
      const line = document.createElement("div");
      line.textContent = text;
      return line;
    }));
    const middle = u.over.offsetLeft + left, room = holder.clientWidth - tip.offsetWidth;
    tip.style.left = `${Math.max(0, Math.min(middle - tip.offsetWidth / 2, room))}px`;
  }

  function step(u, key) {
    const times = u.data[0], last = times.length - 1;
    const known = (index) => u.data[1][index] != null;
    let index = u.cursor.idx ?? (key === "ArrowLeft" ? last + 1 : -1);
    const by = key === "ArrowLeft" || key === "End" ? -1 : 1;
    if (key === "Home") index = -1;
    if (key === "End") index = last + 1;
    do index += by; while (index >= 0 && index <= last && !known(index));
    if (index < 0 || index > last) return;
    u.setCursor({ left: u.valToPos(times[index], "x"), top: u.over.clientHeight / 2 });
  }

  /* Times with a second at both ends, because a range of no length shows nothing. */
  function load(u) {
    const { left, width } = u.select;
    if (width < 4) return;
    const at = (place) => new Date(Math.round(u.posToVal(place, "x")) * 1000).toISOString().slice(0, 19);
    const from = at(left), until = at(left + width);
    if (from !== until) location.href = `${root.dataset.range}&from=${from}&until=${until}`;
  }

  /* --- a plot ----------------------------------------------------------------------------------------------------- */

  function draw(holder) {
    const plot = plots[holder.dataset.plot], tip = document.createElement("div");
    tip.className = "plot-tip";
    tip.hidden = true;
    tip.setAttribute("role", "status");
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px sans-serif" };
    const line = colour("--note");
    const options = {
      width: holder.clientWidth, height: HEIGHT, padding: [8, 12, 0, 0], legend: { show: false },
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      cursor: {
        sync: { key: "page", setSeries: false }, y: false,
        drag: root.dataset.range ? { x: true, y: false, setScale: false } : { x: true, y: false },
      },
      scales: { x: { time: true, range: root.dataset.range ? () => [plot.begin, plot.end] : (u, low, high) => (low == null ? [plot.begin, plot.end] : [low, high]) }, y: { range: range(plot) } },
      axes: [
        { ...axis, space: 64, size: 28, values: (u, splits, index, space, distance) => times(splits, distance) },
        { ...axis, size: 62, values: (u, splits) => splits.map((value) => (value == null ? "" : UNITS[plot.unit](value))) },
      ],
      series: [{}, { stroke: line, width: 2, points: { show: true, size: 6, fill: line, filter: alone } }],
      hooks: {
        drawClear: [(u) => drawMarks(u, plot.marks)],
        setCursor: [(u) => showTip(u, plot, holder, tip)],
        setSelect: root.dataset.range ? [load] : [],
      },
    };
    const u = new uPlot(options, [plot.at, plot.values], holder);
    holder.append(tip);
    drawn.push({ u, holder, tip });
    return u;
  }

  function drawAll() {
    for (const { u, tip } of drawn.splice(0)) {
      u.destroy();
      tip.remove();
    }
    for (const holder of root.querySelectorAll(".plot[data-plot]")) draw(holder);
  }

  const of = (holder) => drawn.find((one) => one.holder === holder);

  for (const holder of root.querySelectorAll(".plot[data-plot]")) {
    // Focusable only now: without the script there is nothing to move in.
    holder.tabIndex = 0;
    holder.addEventListener("keydown", (event) => {
      const one = of(holder);
      if (!one) return;
      if (event.key === "Escape") one.u.setCursor({ left: -10, top: -10 });
      else if (["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) {
        event.preventDefault();
        step(one.u, event.key);
      }
    });
    holder.addEventListener("blur", () => of(holder)?.u.setCursor({ left: -10, top: -10 }));
    new ResizeObserver(() => {
      const one = of(holder);
      if (one && holder.clientWidth && holder.clientWidth !== one.u.width) one.u.setSize({ width: holder.clientWidth, height: HEIGHT });
    }).observe(holder);
  }
  drawAll();
  // The theme is a class of the page; a canvas keeps the colours with which it was drawn.
  new MutationObserver(drawAll).observe(document.documentElement, { attributeFilter: ["class"] });
})();
