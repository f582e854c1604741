// A step of a pipeline on a canvas: what every rank did when, measured above and simulated below, over one axis of time.
"use strict";

// Colours by kind; messages and waiting for them are faint.
const KINDS = [["forward", 0], ["backward", 1], ["gradient of the input", 4], ["gradients of the parameters", 6]];
const kindOf = (words) => KINDS.find(([name]) => name === words);

class Pipeline {
  constructor(canvas, values) {
    Object.assign(this, { canvas, values, step: null, bars: [] });
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      this.point(event.clientX - box.left, event.clientY - box.top);
    });
    canvas.addEventListener("pointerleave", () => { this.values.textContent = ""; });
  }

  show(step) { this.step = step; this.draw(); }

  draw() {
    const { canvas, step } = this;
    const width = canvas.clientWidth;
    if (!width || !step) return;
    const parts = [["measured", step.measured], ["simulated", step.simulated]].filter(([, part]) => part);
    const ranks = step.measured.rows.length;
    const row = ranks > 32 ? 10 : 22;
    const height = parts.length * (ranks * row + 26) + 22;
    const scale = window.devicePixelRatio || 1;
    canvas.style.height = `${height}px`;
    [canvas.width, canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    const style = getComputedStyle(document.documentElement);
    const [ink, faint, line, panel] = ["--ink", "--faint", "--line", "--panel"].map((name) => style.getPropertyValue(name));
    const [left, right] = [58, width - 10];
    const end = Math.max(...parts.map(([, part]) => part.seconds)) || 1;
    const x = (time) => left + (time / end) * (right - left);
    this.bars = [];
    pen.font = "11px system-ui, sans-serif";
    let top = 0;
    for (const [name, part] of parts) {
      pen.fillStyle = ink;
      pen.textAlign = "left";
      pen.fillText(name, left, top + 17);
      top += 24;
      part.rows.forEach((one, at) => {
        const y = top + at * row;
        pen.fillStyle = faint;
        pen.textAlign = "right";
        if (row > 12 || at % 4 === 0) pen.fillText(`rank ${one.rank}`, left - 5, y + row / 2 + 4);
        for (const [action, words, from, to] of one.spans) {
          const kind = kindOf(words);
          const [begin, size] = [x(from), Math.max(x(to) - x(from), kind ? 0.5 : 0)];
          this.bars.push({ name, rank: one.rank, host: one.host, action, words, from, to, begin, end: begin + size, top: y, bottom: y + row });
          if (!kind) {
            pen.fillStyle = line;
            pen.fillRect(begin, y + row / 2 - 1, size, 2);
            continue;
          }
          pen.fillStyle = colour(kind[1]);
          pen.fillRect(begin, y + 1, size, row - 2);
          if (size > 1.5) { pen.fillStyle = panel; pen.fillRect(begin + size - 0.75, y + 1, 0.75, row - 2); }
          const micro = action.replace(/^\d+[A-Z]/, "");
          if (row > 12 && size > 7 * micro.length + 4) {
            pen.fillStyle = panel;
            pen.textAlign = "center";
            pen.fillText(micro, begin + size / 2, y + row / 2 + 4);
          }
        }
      });
      top += ranks * row + 2;
    }
    pen.fillStyle = faint;
    for (const at of ticks(0, end * 1e3, Math.max(2, Math.floor(width / 110)))) {
      pen.textAlign = x(at / 1e3) > right - 16 ? "right" : "center";
      if (at / 1e3 <= end) pen.fillText(`${brief(at)} ms`, Math.min(x(at / 1e3), right), height - 6);
    }
  }

  // Says what is under the pointer; work before what lies around it.
  point(x, y) {
    const here = this.bars.filter((bar) => x >= bar.begin && x <= bar.end && y >= bar.top && y <= bar.bottom);
    const bar = here.find((one) => kindOf(one.words)) ?? here[0];
    this.values.textContent = bar
      ? `${bar.name}, rank ${bar.rank}${bar.host ? ` on ${bar.host}` : ""}: ${bar.action} (${bar.words}), ${brief(bar.from * 1e3)} to ${brief(bar.to * 1e3)} ms`
      : "";
  }
}

// What the colours are.
const legend = () => {
  const line = make("p", null, { className: "sub" });
  for (const [name, index] of KINDS) {
    const dot = make("span", null, { className: "swatch" });
    dot.style.background = colour(index);
    line.append(dot, `${name}  `);
  }
  line.append(make("span", null, { className: "swatch thin" }), "messages, and waiting for them");
  return line;
};
