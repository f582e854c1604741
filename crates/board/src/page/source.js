// Where data comes from: the server, or the file that holds everything; and the makers of what is shown.
"use strict";

const $ = (id) => document.getElementById(id);
const make = (tag, text, options = {}) => {
  const node = Object.assign(document.createElement(tag), options);
  if (text !== undefined && text !== null) node.textContent = text;
  return node;
};

const alone = window.BOARD;
const ask = async (path, values = {}) => {
  const query = new URLSearchParams(values);
  const answer = await fetch(`${path}?${query}`);
  if (!answer.ok) throw new Error(answer.status === 404 ? "not there" : await answer.text());
  return answer.json();
};
const source = alone
  ? {
      cluster: async (since) => ({ version: 1, all: !since, count: alone.glances.length, runs: since ? [] : alone.glances }),
      runs: async (ids) => alone.runs.filter((run) => ids.includes(run.id)),
      run: async (run) => alone.details[run] ?? { config: "", checkpoints: [], ranks: [], now: [] },
      pipeline: async (run) => alone.details[run]?.pipeline ?? { pipelines: [] },
      samples: async (run, step) => {
        const kept = alone.details[run]?.samples ?? [];
        return { steps: kept.map((one) => one.step), chosen: kept.findLast((one) => one.step <= step) ?? null };
      },
      log: async (run, rank, text) => {
        const wanted = text.toLowerCase();
        const lines = alone.details[run]?.logs[rank] ?? [];
        return lines.filter((line) => JSON.stringify(line).toLowerCase().includes(wanted));
      },
      series: async (run, metric, smooth, range) => {
        const inside = (points) => (points ?? []).filter(([x]) => !range || (x >= range[0] && x <= range[1]));
        const detail = alone.details[run];
        return { points: inside(detail.series[metric]), smooth: smooth > 0 ? inside(detail.smooth[metric]) : null };
      },
    }
  : {
      cluster: (since) => ask("api/cluster", { since }),
      runs: async (ids) => (ids.length ? (await ask("api/runs", ids.map((id) => ["run", id]))).runs : []),
      run: (run) => ask("api/run", { run }),
      pipeline: (run, first) => ask("api/pipeline", first === null ? { run } : { run, first }),
      samples: (run, step) => ask("api/samples", step === Infinity ? { run } : { run, step }),
      log: async (run, rank, text) => (await ask("api/log", { run, rank, text })).lines,
      series: (run, metric, smooth, range) => {
        const values = { run, metric, smooth };
        if (range) Object.assign(values, { from: Math.max(0, Math.floor(range[0])), to: Math.ceil(range[1]) });
        return ask("api/series", values);
      },
    };

const ago = (seconds) => {
  if (!Number.isFinite(seconds)) return "";
  if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h ago` : `${Math.round(seconds / 86400)} days ago`;
};
const bytes = (count) => {
  for (const [unit, size] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) if (count >= size) return `${(count / size).toPrecision(3)} ${unit}`;
  return `${count} B`;
};

const table = (heads, rows) => {
  const whole = make("table");
  const head = make("tr");
  heads.forEach(([name, number]) => head.append(make("th", name, { className: number ? "number" : "" })));
  whole.append(head);
  for (const row of rows) {
    const line = make("tr");
    row.forEach((cell, at) => {
      const box = make("td", null, { className: heads[at][1] ? "number" : "" });
      box.append(cell instanceof Node ? cell : String(cell ?? ""));
      line.append(box);
    });
    whole.append(line);
  }
  const scroll = make("div", null, { className: "scroll" });
  scroll.append(whole);
  return scroll;
};
