// The page: which runs and which view are chosen, where data comes from, and what each view shows.
"use strict";

const $ = (id) => document.getElementById(id);
const make = (tag, text, options = {}) => {
  const node = Object.assign(document.createElement(tag), options);
  if (text !== undefined && text !== null) node.textContent = text;
  return node;
};

// From the server, or from the file that holds everything.
const alone = window.BOARD;
const ask = async (path, values = {}) => {
  const query = new URLSearchParams(values);
  const answer = await fetch(`${path}?${query}`);
  if (!answer.ok) throw new Error(answer.status === 404 ? "not there" : await answer.text());
  return answer.json();
};
const source = alone
  ? {
      runs: async () => alone.runs,
      run: async (run) => alone.details[run],
      log: async (run, rank, text) => {
        const wanted = text.toLowerCase();
        const lines = alone.details[run].logs[rank] ?? [];
        return lines.filter((line) => JSON.stringify(line).toLowerCase().includes(wanted));
      },
      series: async (run, metric, smooth, range) => {
        const inside = (points) => (points ?? []).filter(([x]) => !range || (x >= range[0] && x <= range[1]));
        const detail = alone.details[run];
        return { points: inside(detail.series[metric]), smooth: smooth > 0 ? inside(detail.smooth[metric]) : null };
      },
    }
  : {
      runs: async () => (await ask("api/runs")).runs,
      run: (run) => ask("api/run", { run }),
      log: async (run, rank, text) => (await ask("api/log", { run, rank, text })).lines,
      series: (run, metric, smooth, range) => {
        const values = { run, metric, smooth };
        if (range) Object.assign(values, { from: Math.max(0, Math.floor(range[0])), to: Math.ceil(range[1]) });
        return ask("api/series", values);
      },
    };

const state = { runs: [], hidden: new Set(), current: 0, view: "curves", range: null, first: ["loss", "eval_loss", "tokens_per_second", "lr", "grad_norm", "peak_bytes"], wide: "loss", rank: 0, search: "", drawn: 0 };

const listed = () => state.runs.map((run, index) => ({ ...run, index })).filter((run) => run.id.toLowerCase().includes($("filter").value.toLowerCase()));
const visible = () => listed().filter((run) => !state.hidden.has(run.id));
const chosen = () => state.runs[state.current];
const smoothing = () => Number($("smooth").value);

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

const drawList = () => {
  const rows = listed().map((run) => {
    const row = make("li", null, { tabIndex: 0 });
    row.setAttribute("role", "checkbox");
    row.setAttribute("aria-checked", String(!state.hidden.has(run.id)));
    const dot = make("span", null, { className: "dot" });
    dot.style.borderColor = colour(run.index);
    if (!state.hidden.has(run.id)) dot.style.background = colour(run.index);
    row.classList.toggle("current", run.index === state.current);
    row.classList.toggle("hidden", state.hidden.has(run.id));
    const steps = run.steps ? `${run.step ?? 0} of ${run.steps}` : `step ${run.step ?? 0}`;
    const now = run.running ? "running" : alone ? "" : ago(Date.now() / 1000 - run.time);
    row.append(dot, make("span", run.id, { className: "name" }), make("span", `${steps}${now ? ` · ${now}` : ""}`, { className: "sub" }));
    row.addEventListener("click", () => { state.current = run.index; toggle(run.id); });
    return row;
  });
  $("list").replaceChildren(...rows);
};

const toggle = (id) => {
  if (!state.hidden.delete(id)) state.hidden.add(id);
  refresh();
};

// ---- curves

const charts = new Map();
const metrics = () => {
  const names = new Set(visible().flatMap((run) => Object.keys(run.last)));
  const rest = [...names].filter((name) => !state.first.includes(name)).sort();
  return [...state.first.filter((name) => names.has(name)), ...rest];
};

const panel = (metric) => {
  if (charts.has(metric)) return charts.get(metric);
  const figure = make("figure");
  figure.dataset.metric = metric;
  const caption = make("figcaption");
  const size = make("button", "⤢", { title: "larger", ariaLabel: `larger ${metric}` });
  size.addEventListener("click", () => { state.wide = state.wide === metric ? null : metric; drawCurves(); });
  caption.append(make("strong", metric), size);
  const canvas = make("canvas");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `curve of ${metric}`);
  const values = make("div", "", { className: "values" });
  figure.append(caption, canvas, values);
  const chart = new Chart(canvas, values, {
    log: () => $("scale").checked,
    range: () => state.range,
    height: () => (state.wide === metric ? 320 : 180),
    along: (x) => ($("along").value === "time" ? `${brief(x)} s` : String(Math.round(x))),
    zoom: (range) => { state.range = $("along").value === "time" ? state.range : range; drawCurves(); },
  });
  const made = { figure, chart };
  charts.set(metric, made);
  return made;
};

// Steps become seconds since a run's first step by its own pace, where time is asked for.
const paced = async (run, points) => {
  if ($("along").value !== "time") return (x) => x;
  const { points: seconds } = await source.series(run.id, "seconds", 0, null).catch(() => ({ points: [] }));
  const sums = [];
  let sum = 0, last = 0;
  for (const [step, took] of seconds) { sum += (took ?? 0) * (step - last); last = step; sums.push([step, sum]); }
  return (x) => (sums.length ? nearest(sums, x)[1] : x);
};

const drawCurves = async () => {
  const turn = ++state.drawn;
  const runs = visible();
  const names = metrics();
  let grid = $("view").querySelector(".grid");
  if (!grid) {
    grid = make("div", null, { className: "grid" });
    $("view").replaceChildren(grid);
  }
  const panels = names.map(panel);
  panels.forEach(({ figure }, at) => figure.classList.toggle("wide", state.wide === names[at]));
  grid.replaceChildren(...panels.map(({ figure }) => figure));
  if (!names.length) grid.replaceChildren(make("p", state.runs.length ? "No run is shown. Choose some on the left." : "No runs here yet."));
  await Promise.all(names.map(async (metric, at) => {
    const weight = metric.startsWith("eval_") ? 0 : smoothing();
    const curves = await Promise.all(runs.filter((run) => metric in run.last).map(async (run) => {
      const found = await source.series(run.id, metric, weight, state.range).catch(() => null);
      if (!found) return null;
      const place = await paced(run);
      const moved = (points) => points?.map(([x, y]) => [place(x), y]) ?? null;
      const marks = run.marks.map((mark) => ({ x: place(mark.step), kind: mark.kind }));
      return { index: run.index, name: run.id, points: moved(found.points), smooth: moved(found.smooth), marks };
    }));
    if (turn === state.drawn) panels[at].chart.show(curves.filter(Boolean));
  }));
  if (turn === state.drawn) document.body.dataset.ready = state.view;
};

// ---- tables

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

const drawRuns = () => {
  const rows = listed().map((run) => [
    run.id, run.running ? "running" : "not running", run.about.mesh ?? "", `${run.step ?? 0}${run.steps ? ` / ${run.steps}` : ""}`,
    shown(run.last.loss), shown(run.last.eval_loss), shown(run.last.tokens_per_second), run.last.peak_bytes ? bytes(run.last.peak_bytes) : "",
    run.marks.filter((mark) => mark.kind === "restart").length, run.damaged || "",
  ]);
  $("view").replaceChildren(table([["run"], ["state"], ["mesh"], ["step", 1], ["loss", 1], ["eval loss", 1], ["tokens/s", 1], ["memory", 1], ["restarts", 1], ["damaged lines", 1]], rows));
};

// Where every rank of the chosen run is; those behind the others are marked.
const drawRanks = async () => {
  const run = chosen();
  if (!run) return $("view").replaceChildren(make("p", "No runs here yet."));
  const { now } = await source.run(run.id);
  const axes = [...new Set(now.flatMap((rank) => Object.keys(rank.sent_each)))].sort();
  const newest = Math.max(...now.map((rank) => rank.step));
  const rows = now.map((rank) => [
    rank.rank, rank.host, rank.step < newest ? make("span", rank.step, { className: "warn" }) : rank.step, rank.seconds.toPrecision(3), bytes(rank.bytes), bytes(rank.peak_bytes),
    ...axes.map((axis) => (axis in rank.sent_each ? bytes(rank.sent_each[axis]) : "")),
  ]);
  const heads = [["rank", 1], ["host"], ["step", 1], ["seconds", 1], ["memory", 1], ["peak", 1], ...axes.map((axis) => [`sent on ${axis}`, 1])];
  $("view").replaceChildren(make("h2", run.id), now.length ? table(heads, rows) : make("p", "No rank has told anything yet."));
};

const drawCheckpoints = async () => {
  const parts = [];
  for (const run of visible()) {
    const { checkpoints } = await source.run(run.id);
    const rows = checkpoints.map((saved) => [saved.name, bytes(saved.bytes), saved.committed ? "committed" : make("span", "not committed", { className: "warn" })]);
    const restarts = run.marks.filter((mark) => mark.kind === "restart").map((mark) => mark.step);
    parts.push(make("h2", run.id), table([["checkpoint"], ["size", 1], ["state"]], rows));
    if (restarts.length) parts.push(make("p", `resumed at step ${restarts.join(", ")}`));
  }
  $("view").replaceChildren(...parts);
};

// Lines of the chosen run's configuration, and what differs from the first other run that is shown.
const drawConfig = async () => {
  const run = chosen();
  if (!run) return $("view").replaceChildren(make("p", "No runs here yet."));
  const other = visible().find((shownRun) => shownRun.id !== run.id);
  const [mine, theirs] = await Promise.all([run, other].map(async (one) => (one ? (await source.run(one.id)).config ?? "" : null)));
  const block = make("pre");
  const named = (text) => {
    let section = "";
    return text.split("\n").map((line) => {
      if (/^\[/.test(line)) section = line;
      return { line, key: `${section} ${line}` };
    });
  };
  const ours = named(mine);
  if (theirs === null) block.textContent = mine;
  else {
    const there = new Set(named(theirs).map(({ key }) => key));
    const here = new Set(ours.map(({ key }) => key));
    for (const { line, key } of ours) block.append(make("span", `${there.has(key) || !line.trim() ? "  " : "+ "}${line}\n`, { className: there.has(key) || !line.trim() ? "" : "added" }));
    for (const { line, key } of named(theirs)) if (line.trim() && !here.has(key)) block.append(make("span", `- ${line}\n`, { className: "gone" }));
  }
  $("view").replaceChildren(make("h2", other ? `${run.id} beside ${other.id}` : run.id), block);
};

const drawLog = async () => {
  const run = chosen();
  if (!run) return $("view").replaceChildren(make("p", "No runs here yet."));
  const { ranks } = await source.run(run.id);
  if (!ranks.includes(state.rank)) state.rank = ranks[0] ?? 0;
  const lines = await source.log(run.id, state.rank, state.search);
  let block = $("lines");
  if (!block || block.dataset.run !== run.id) {
    const bar = make("p");
    const pick = make("select", null, { ariaLabel: "Rank" });
    pick.append(...ranks.map((rank) => make("option", `rank ${rank}`, { value: rank, selected: rank === state.rank })));
    pick.addEventListener("change", () => { state.rank = Number(pick.value); drawLog(); });
    const search = make("input", null, { type: "search", placeholder: "Search", value: state.search, ariaLabel: "Search the log" });
    search.addEventListener("input", () => { state.search = search.value; drawLog(); });
    bar.append(pick, " ", search);
    block = make("pre", null, { id: "lines", className: "log" });
    block.dataset.run = run.id;
    $("view").replaceChildren(make("h2", run.id), bar, block);
  }
  const end = block.scrollTop + block.clientHeight >= block.scrollHeight - 4;
  block.replaceChildren(...lines.map((line) => {
    if (typeof line === "string") return make("span", `${line}\n`);
    const { time, level, message, rank, ...rest } = line;
    const when = time ? new Date(time * 1000).toISOString().slice(11, 23) : "";
    const more = Object.entries(rest).map(([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`).join(" ");
    return make("span", `${when} ${level ?? ""} ${message ?? ""} ${more}\n`, { className: level === "warn" || level === "error" ? level : "" });
  }));
  if (!lines.length) block.textContent = "no lines";
  if (end) block.scrollTop = block.scrollHeight;
};

// ---- the whole

const VIEWS = { curves: drawCurves, runs: drawRuns, checkpoints: drawCheckpoints, config: drawConfig, log: drawLog, ranks: drawRanks };

const refresh = async () => {
  try {
    state.runs = await source.runs();
    state.current = Math.min(state.current, Math.max(0, state.runs.length - 1));
    drawList();
    await VIEWS[state.view]();
    document.body.dataset.ready = state.view;
    const running = state.runs.filter((run) => run.running).length;
    $("state").textContent = `${state.runs.length} runs, ${running} running${alone ? " (a copy)" : ""}`;
  } catch (error) {
    $("state").textContent = `cannot be read now: ${error.message}`;
  }
};

const turnTo = (view) => {
  state.view = view;
  history.replaceState(null, "", `#${view}`);
  delete document.body.dataset.ready;
  document.querySelectorAll("[data-view]").forEach((tab) => tab.setAttribute("aria-selected", String(tab.dataset.view === view)));
  $("view").replaceChildren();
  refresh();
};

document.querySelectorAll("[data-view]").forEach((tab) => tab.addEventListener("click", () => turnTo(tab.dataset.view)));
$("filter").addEventListener("input", refresh);
$("smooth").addEventListener("input", () => { $("weight").textContent = $("smooth").value; refresh(); });
["scale", "along"].forEach((id) => $(id).addEventListener("change", () => { state.range = null; refresh(); }));
window.addEventListener("resize", () => charts.forEach(({ chart }) => chart.draw()));
dark.addEventListener("change", refresh);

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (["INPUT", "SELECT"].includes(event.target.tagName) && event.target.type !== "range" && event.target.type !== "checkbox") {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const rows = listed();
  const at = rows.findIndex((run) => run.index === state.current);
  const move = (by) => { if (rows.length) { state.current = rows[(at + by + rows.length) % rows.length].index; refresh(); } };
  const smoother = (by) => { $("smooth").value = smoothing() + by; $("smooth").dispatchEvent(new Event("input")); };
  const keys = {
    j: () => move(1), k: () => move(-1),
    " ": () => chosen() && toggle(chosen().id),
    o: () => { state.hidden = new Set(state.runs.filter((run) => run.id !== chosen()?.id).map((run) => run.id)); refresh(); },
    l: () => { $("scale").checked = !$("scale").checked; refresh(); },
    "+": () => smoother(0.05), "-": () => smoother(-0.05), 0: () => { state.range = null; refresh(); },
    "/": () => $("filter").focus(),
  };
  Object.keys(VIEWS).forEach((view, number) => { keys[number + 1] = () => turnTo(view); });
  if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
});

// A copy has one average of every curve.
if (alone) $("smooth").parentElement.hidden = true;
// An address may name a view: `#log`.
turnTo(location.hash.slice(1) in VIEWS ? location.hash.slice(1) : "curves");
if (!alone) setInterval(() => { if (!document.hidden) refresh(); }, 2000);
