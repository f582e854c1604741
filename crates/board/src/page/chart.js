// One chart on a canvas: curves of several runs, marks of checkpoints and restarts, values under the pointer, ranges by dragging.
"use strict";

const LIGHT = ["#0a66c2", "#c2410c", "#15803d", "#7e22ce", "#b91c1c", "#0e7490", "#a16207", "#be185d", "#4d7c0f", "#4338ca"];
const DARK = ["#78b4ff", "#ff9d66", "#5fd38d", "#c79bff", "#ff8a80", "#5fd0e0", "#e8c15a", "#ff8fc0", "#b5d96a", "#a5a8ff"];
const dark = matchMedia("(prefers-color-scheme: dark)");
const colour = (index) => (dark.matches ? DARK : LIGHT)[index % LIGHT.length];

const shown = (value) => {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e15 || (size > 0 && size < 1e-3)) return value.toExponential(3);
  for (const [unit, factor] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e4]]) {
    if (size >= factor) return (value / (unit === "k" ? 1e3 : factor)).toPrecision(4) + unit;
  }
  return Number.isInteger(value) ? String(value) : value.toPrecision(5);
};

// The same for an axis: three digits, no zeros behind them.
const brief = (value) => {
  const text = shown(Number(value.toPrecision(3)));
  return text.replace(/(\.\d*?)0+(?=$|[a-zA-Z])/, "$1").replace(/\.(?=$|[a-zA-Z])/, "");
};

// About `count` round numbers from `low` to `high`.
const ticks = (low, high, count) => {
  const rough = (high - low) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough) ?? rough;
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  return found;
};

class Chart {
  // `curves()` gives [{index, name, points: [[x, y]], smooth, marks: [{x, kind}]}], `range` is shared by all charts.
  constructor(canvas, values, options) {
    Object.assign(this, { canvas, values, options, curves: [], at: null, drag: null });
    const place = (event) => event.clientX - canvas.getBoundingClientRect().left;
    canvas.addEventListener("pointermove", (event) => { this.at = place(event); this.draw(); });
    canvas.addEventListener("pointerleave", () => { this.at = null; this.draw(); });
    canvas.addEventListener("pointerdown", (event) => {
      if (event.pointerType !== "touch") { this.drag = place(event); canvas.setPointerCapture(event.pointerId); }
    });
    canvas.addEventListener("pointerup", (event) => {
      const from = this.drag;
      this.drag = null;
      if (from !== null && this.frame && Math.abs(place(event) - from) > 6) {
        const ends = [from, place(event)].map((x) => this.frame.back(x)).sort((a, b) => a - b);
        this.options.zoom(ends);
      }
    });
    canvas.addEventListener("dblclick", () => this.options.zoom(null));
  }

  show(curves) { this.curves = curves; this.draw(); }

  // Ranges of what is drawn, and functions from values to pixels and back.
  measure(width, height) {
    const xs = [Infinity, -Infinity], ys = [Infinity, -Infinity];
    const log = this.options.log();
    for (const curve of this.curves) {
      for (const [x, y] of curve.smooth ?? curve.points) {
        if (x < xs[0]) xs[0] = x;
        if (x > xs[1]) xs[1] = x;
        if (y === null || (log && y <= 0)) continue;
        if (y < ys[0]) ys[0] = y;
        if (y > ys[1]) ys[1] = y;
      }
    }
    const range = this.options.range();
    if (range) [xs[0], xs[1]] = range;
    if (!(xs[0] <= xs[1]) || !(ys[0] <= ys[1])) return null;
    if (xs[0] === xs[1]) { xs[0] -= 0.5; xs[1] += 0.5; }
    const turn = log ? Math.log10 : (y) => y;
    let [low, high] = [turn(ys[0]), turn(ys[1])];
    if (low === high) { low -= 0.5; high += 0.5; }
    const room = (high - low) * 0.05;
    [low, high] = [low - room, high + room];
    const [left, right, top, bottom] = [56, width - 8, 6, height - 20];
    return {
      left, right, top, bottom, xs, log, low, high,
      x: (x) => left + ((x - xs[0]) / (xs[1] - xs[0])) * (right - left),
      y: (y) => bottom - ((turn(y) - low) / (high - low)) * (bottom - top),
      back: (pixel) => xs[0] + ((pixel - left) / (right - left)) * (xs[1] - xs[0]),
    };
  }

  draw() {
    const { canvas } = this;
    const scale = window.devicePixelRatio || 1;
    const width = canvas.clientWidth, height = this.options.height();
    if (!width) return;
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    const style = getComputedStyle(document.documentElement);
    const [ink, faint, line] = ["--ink", "--faint", "--line"].map((name) => style.getPropertyValue(name));
    const frame = (this.frame = this.measure(width, height));
    pen.font = "11px system-ui, sans-serif";
    if (!frame) {
      pen.fillStyle = faint;
      pen.fillText("no values yet", 60, height / 2);
      this.values.textContent = "";
      return;
    }
    pen.strokeStyle = line;
    pen.fillStyle = faint;
    pen.lineWidth = 1;
    pen.textAlign = "right";
    const levels = frame.log
      ? ticks(frame.low, frame.high, 4).map((power) => 10 ** power)
      : ticks(frame.low, frame.high, 4);
    for (const level of levels) {
      const y = frame.y(level);
      pen.beginPath(); pen.moveTo(frame.left, y); pen.lineTo(frame.right, y); pen.stroke();
      pen.fillText(brief(level), frame.left - 5, y + 4);
    }
    for (const at of ticks(frame.xs[0], frame.xs[1], Math.max(2, Math.floor(width / 110)))) {
      pen.textAlign = frame.x(at) > frame.right - 16 ? "right" : "center";
      if (frame.x(at) <= frame.right) pen.fillText(this.options.along(at), Math.min(frame.x(at), frame.right), height - 5);
    }
    pen.save();
    pen.beginPath(); pen.rect(frame.left, frame.top, frame.right - frame.left, frame.bottom - frame.top); pen.clip();
    for (const curve of this.curves) {
      pen.strokeStyle = colour(curve.index);
      for (const mark of curve.marks) {
        const x = frame.x(mark.x);
        pen.globalAlpha = 0.45;
        pen.setLineDash(mark.kind === "restart" ? [4, 3] : []);
        const top = mark.kind === "restart" ? frame.top : frame.bottom - 5;
        pen.beginPath(); pen.moveTo(x, top); pen.lineTo(x, frame.bottom); pen.stroke();
      }
      pen.setLineDash([]);
      if (curve.smooth) this.line(pen, frame, curve.points, 0.25, 1);
      this.line(pen, frame, curve.smooth ?? curve.points, 1, 1.6);
    }
    pen.restore();
    this.pointer(pen, frame, ink);
  }

  line(pen, frame, points, alpha, width) {
    pen.globalAlpha = alpha;
    pen.lineWidth = width;
    pen.beginPath();
    let down = false;
    for (const [x, y] of points) {
      if (y === null || (frame.log && y <= 0)) { down = false; continue; }
      if (down) pen.lineTo(frame.x(x), frame.y(y));
      else { pen.moveTo(frame.x(x), frame.y(y)); pen.lineTo(frame.x(x) + 0.01, frame.y(y)); }
      down = true;
    }
    pen.stroke();
    pen.globalAlpha = 1;
  }

  // The values of all curves at the pointer, or the last ones.
  pointer(pen, frame, ink) {
    const inside = this.at !== null && this.at >= frame.left && this.at <= frame.right;
    if (this.drag !== null && inside) {
      pen.globalAlpha = 0.12; pen.fillStyle = ink;
      pen.fillRect(Math.min(this.drag, this.at), frame.top, Math.abs(this.at - this.drag), frame.bottom - frame.top);
      pen.globalAlpha = 1;
    }
    if (inside) {
      pen.strokeStyle = ink; pen.globalAlpha = 0.4; pen.lineWidth = 1;
      pen.beginPath(); pen.moveTo(this.at, frame.top); pen.lineTo(this.at, frame.bottom); pen.stroke();
      pen.globalAlpha = 1;
    }
    this.values.replaceChildren();
    for (const curve of this.curves) {
      const points = curve.smooth ?? curve.points;
      if (!points.length) continue;
      const found = inside ? nearest(points, frame.back(this.at)) : points[points.length - 1];
      const part = document.createElement("span");
      part.style.color = colour(curve.index);
      part.textContent = `${this.curves.length > 1 ? `${curve.name} ` : ""}${this.options.along(found[0])}: ${shown(found[1])}  `;
      this.values.append(part);
    }
  }
}

const nearest = (points, x) => {
  let [low, high] = [0, points.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < x) low = middle + 1;
    else high = middle;
  }
  const before = points[low - 1];
  return before && x - before[0] < points[low][0] - x ? before : points[low];
};
