// The page: which runs and which view are chosen, and what each view shows.
"use strict";

const state = {
  runs: [], known: new Map(), version: 0, details: new Map(), hidden: new Set(), current: 0, view: "curves", range: null,
  first: ["loss", "eval_loss", "tokens_per_second", "lr", "grad_norm", "peak_bytes"], wide: "loss", rank: 0, search: "", drawn: 0,
  order: { by: 0, down: false }, pipeline: null, step: Infinity,
};

// Of more runs than this only the newest are shown until others are chosen, and never more than can be told apart.
const FEW = 12;
const MOST = 24;
// Runs in the column on the left; a filter finds the others.
const LISTED = 200;

const matching = () => { const wanted = $("filter").value.toLowerCase(); return state.runs.filter((run) => run.id.toLowerCase().includes(wanted)); };
const listed = () => (state.view === "runs" && cluster ? cluster.sorted(matching()) : matching());
const visible = () => matching().filter((run) => !state.hidden.has(run.id)).slice(0, MOST);
// What a list does not say of the runs that are shown.
const detailed = () => visible().map((run) => ({ ...run, ...state.details.get(run.id) })).filter((run) => run.last);
const chosen = () => state.runs[state.current];
const smoothing = () => Number($("smooth").value);

// Takes in what has changed of all runs.
const gather = async () => {
  const { version, all, runs } = await source.cluster(state.version);
  state.version = version;
  const current = chosen()?.id;
  if (all) state.known.clear();
  const fresh = runs.filter((run) => !state.known.has(run.id));
  runs.forEach((run) => state.known.set(run.id, run));
  if (fresh.length) {
    const many = state.known.size > FEW;
    const newest = new Set([...fresh].sort((a, b) => (b.time ?? 0) - (a.time ?? 0)).slice(0, state.runs.length ? 0 : FEW - 2).map((run) => run.id));
    const before = new Set(state.runs.map((run) => run.id));
    for (const { id } of fresh) if (many && !before.has(id) && !newest.has(id)) state.hidden.add(id);
  }
  if (all || runs.length) {
    const sorted = [...state.known.values()].sort((a, b) => (a.id < b.id ? -1 : 1));
    state.runs = sorted.map((run, index) => ({ ...run, index }));
    const at = state.runs.findIndex((run) => run.id === current);
    state.current = at >= 0 ? at : Math.min(state.current, Math.max(0, state.runs.length - 1));
  }
  const wanted = ["curves", "checkpoints"].includes(state.view) ? visible().map((run) => run.id) : [];
  (await source.runs(wanted)).forEach((run) => state.details.set(run.id, run));
};

const drawList = () => {
  const all = listed();
  const first = Math.max(0, Math.min(all.findIndex((run) => run.index === state.current) - LISTED / 2, all.length - LISTED));
  const rows = all.slice(first, first + LISTED).map((run) => {
    const row = make("li", null, { tabIndex: 0 });
    row.setAttribute("role", "checkbox");
    row.setAttribute("aria-checked", String(!state.hidden.has(run.id)));
    const dot = make("span", null, { className: "dot" });
    dot.style.borderColor = colour(run.index);
    if (!state.hidden.has(run.id)) dot.style.background = colour(run.index);
    row.classList.toggle("current", run.index === state.current);
    row.classList.toggle("hidden", state.hidden.has(run.id));
    const steps = run.steps ? `${run.step ?? 0} of ${run.steps}` : `step ${run.step ?? 0}`;
    const now = run.state === "running" || alone ? run.state : `${run.state} ${ago(Date.now() / 1000 - run.time)}`;
    row.append(dot, make("span", run.id, { className: "name" }), make("span", `${steps}${now ? ` · ${now}` : ""}`, { className: "sub" }));
    row.addEventListener("click", () => { state.current = run.index; toggle(run.id); });
    return row;
  });
  if (all.length > rows.length) rows.push(make("li", `${all.length - rows.length} more: filter by name`, { className: "sub" }));
  $("list").replaceChildren(...rows);
};

const toggle = (id) => {
  if (!state.hidden.delete(id)) state.hidden.add(id);
  refresh();
};

// ---- curves

const charts = new Map();
const metrics = () => {
  const names = new Set(detailed().flatMap((run) => Object.keys(run.last)));
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
  const runs = detailed();
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

// All runs there are, live.
let cluster = null;
const drawRuns = () => {
  if (!cluster || !cluster.box.isConnected) {
    const order = cluster?.order ?? state.order;
    cluster = new Cluster(order, (run) => { state.current = run.index; drawList(); drawRuns(); }, () => { drawRuns(); drawList(); });
    $("view").replaceChildren(cluster.box);
  }
  cluster.show(matching(), state.current);
};

// A step of the chosen run's pipeline.
let pipeline = null;
const drawPipeline = async () => {
  const run = chosen();
  if (!run) return $("view").replaceChildren(make("p", "No runs here yet."));
  const step = await source.pipeline(run.id, state.pipeline);
  if (!step.measured) {
    pipeline = null;
    const why = step.pipelines.length ? "Its ranks have not told a step that fits together yet." : "It has no pipeline, or has told no step yet: `mesh.pp` above 1 makes one.";
    return $("view").replaceChildren(make("h2", run.id), make("p", why));
  }
  if (!pipeline?.canvas.isConnected || pipeline.run !== run.id || pipeline.count !== step.pipelines.length) {
    const bar = make("p");
    const title = make("strong", "");
    bar.append(title);
    if (step.pipelines.length > 1 && !alone) {
      const pick = make("select", null, { ariaLabel: "Pipeline" });
      pick.append(...step.pipelines.map((rank) => make("option", `pipeline of rank ${rank}`, { value: rank, selected: rank === step.first })));
      pick.addEventListener("change", () => { state.pipeline = Number(pick.value); drawPipeline(); });
      bar.append(" ", pick);
    }
    const [figure, canvas, values] = [make("figure"), make("canvas"), make("div", "", { className: "values" })];
    canvas.setAttribute("role", "img");
    figure.append(canvas, values);
    pipeline = Object.assign(new Pipeline(canvas, values), { run: run.id, count: step.pipelines.length, title });
    const note = "Simulated is the same schedule if all work of a stage took its median time and messages took none.";
    $("view").replaceChildren(make("h2", run.id), bar, figure, legend(), make("p", note, { className: "sub" }));
  }
  const said = (name, part) => (part ? `${name} ${brief(part.seconds * 1e3)} ms, ${Math.round(part.idle * 100)} % idle` : `${name}: not a schedule`);
  pipeline.title.textContent = `step ${step.step}: ${said("measured", step.measured)}; ${said("simulated", step.simulated)}`;
  pipeline.canvas.setAttribute("aria-label", pipeline.title.textContent);
  pipeline.show(step);
};

// What the chosen run generated in one of its steps; the newest until another is asked for.
const drawSamples = async () => {
  const run = chosen();
  if (!run) return $("view").replaceChildren(make("p", "No runs here yet."));
  const { steps, chosen: found } = await source.samples(run.id, state.step);
  if (!found) {
    const why = "It has generated nothing yet. Runs with `grpo` or `ppo` keep some responses; others do with `[log.samples]`.";
    return $("view").replaceChildren(make("h2", run.id), make("p", why));
  }
  let cards = $("cards");
  if (!cards || cards.dataset.run !== run.id) {
    const slider = make("input", null, { id: "at", type: "range", min: 0, ariaLabel: "Step" });
    slider.addEventListener("input", () => { state.step = slider.steps[slider.value] ?? Infinity; if (Number(slider.value) === slider.steps.length - 1) state.step = Infinity; drawSamples(); });
    cards = make("div", null, { id: "cards", className: "cards" });
    cards.dataset.run = run.id;
    const bar = make("p", null, { className: "steps" });
    bar.append(slider, " ", make("strong", "", { id: "of" }));
    $("view").replaceChildren(make("h2", run.id), bar, cards);
  }
  const slider = $("at");
  slider.steps = steps;
  slider.max = steps.length - 1;
  slider.value = steps.indexOf(found.step);
  $("of").textContent = `step ${found.step}, ${steps.indexOf(found.step) + 1} of ${steps.length}`;
  cards.replaceChildren(...found.samples.map((sample) => {
    const card = make("article");
    const worth = Number.isFinite(sample.reward) ? `reward ${shown(sample.reward)}` : "";
    const end = sample.finished ? "" : "did not end by itself";
    card.append(make("pre", sample.prompt, { className: "prompt" }), make("pre", sample.response), make("p", [worth, end].filter(Boolean).join(" · "), { className: "sub" }));
    return card;
  }));
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
  for (const run of detailed()) {
    const { checkpoints } = await source.run(run.id);
    const rows = checkpoints.map((saved) => [saved.name, bytes(saved.bytes), saved.committed ? "committed" : make("span", "not committed", { className: "warn" })]);
    const restarts = run.marks.filter((mark) => mark.kind === "restart").map((mark) => mark.step);
    parts.push(make("h2", run.id), table([["checkpoint"], ["size", 1], ["state"]], rows));
    if (restarts.length) parts.push(make("p", `resumed at step ${restarts.join(", ")}`));
    if (run.damaged) parts.push(make("p", `${run.damaged} lines of its metrics cannot be read`, { className: "warn" }));
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

const VIEWS = { curves: drawCurves, runs: drawRuns, checkpoints: drawCheckpoints, config: drawConfig, log: drawLog, ranks: drawRanks, pipeline: drawPipeline, samples: drawSamples };

const refresh = async () => {
  try {
    const view = state.view;
    await gather();
    if (view !== state.view) return;
    drawList();
    await VIEWS[view]();
    // The column on the left follows the order of the table, which is there now.
    if (view === "runs") drawList();
    document.body.dataset.ready = view;
    const running = state.runs.filter((run) => run.state === "running").length;
    $("state").textContent = `${state.runs.length} runs, ${running} running${alone ? " (a copy)" : ""}`;
  } catch (error) {
    $("state").textContent = `cannot be read now: ${error.message}`;
  }
};

const turnTo = (view) => {
  state.view = document.body.dataset.shown = view;
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
window.addEventListener("resize", () => { charts.forEach(({ chart }) => chart.draw()); pipeline?.draw(); cluster?.draw(); });
dark.addEventListener("change", refresh);

// The samples of a step before or after.
const earlier = (by) => {
  const slider = $("at");
  if (slider) { slider.value = Number(slider.value) + by; slider.dispatchEvent(new Event("input")); }
};

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
    " ": event.target.tagName === "BUTTON" ? null : () => chosen() && toggle(chosen().id),
    o: () => { state.hidden = new Set(state.runs.filter((run) => run.id !== chosen()?.id).map((run) => run.id)); refresh(); },
    l: () => { $("scale").checked = !$("scale").checked; refresh(); },
    "+": () => smoother(0.05), "-": () => smoother(-0.05), 0: () => { state.range = null; refresh(); },
    "/": () => $("filter").focus(),
    Enter: state.view === "runs" && event.target.tagName !== "BUTTON" ? () => { keys.o(); turnTo("curves"); } : null,
    "[": state.view === "samples" ? () => earlier(-1) : null, "]": state.view === "samples" ? () => earlier(1) : null,
  };
  Object.keys(VIEWS).forEach((view, number) => { keys[number + 1] = () => turnTo(view); });
  if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
});

// A copy has one average of every curve.
if (alone) $("smooth").parentElement.hidden = true;
// An address may name a view: `#log`.
turnTo(location.hash.slice(1) in VIEWS ? location.hash.slice(1) : "curves");
if (!alone) setInterval(() => { if (!document.hidden) refresh(); }, 2000);
