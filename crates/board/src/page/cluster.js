// All runs in one table: sorted by any column, drawn only where it is looked at, so that thousands are as quick as ten.
"use strict";

// Pixels of a row; those outside of the window are one empty row above and one below.
const ROW = 30;

const COLUMNS = [
  { name: "run", of: (run) => run.id },
  { name: "state", of: (run) => run.state },
  { name: "step", number: true, of: (run) => run.step, text: (run) => `${run.step ?? 0}${run.steps ? ` / ${run.steps}` : ""}` },
  { name: "loss", number: true, of: (run) => run.loss, text: (run) => shown(run.loss) },
  { name: "tokens/s", number: true, of: (run) => run.speed, text: (run) => shown(run.speed) },
  { name: "ranks", number: true, of: (run) => run.ranks || null },
  { name: "hosts", number: true, of: (run) => run.hosts || null },
  { name: "told", of: (run) => run.time, text: (run) => (alone ? new Date((run.time ?? 0) * 1000).toISOString().slice(0, 16).replace("T", " ") : ago(Date.now() / 1000 - run.time)) },
  { name: "last event", of: (run) => run.event },
  { name: "failure", of: (run) => run.failure },
];

class Cluster {
  // `order` is kept by the page: {by, down}; `choose` is told which run was picked.
  constructor(order, choose, changed) {
    Object.assign(this, { order, choose, changed, rows: [], current: null });
    this.box = make("div", null, { className: "cluster", tabIndex: 0 });
    this.box.setAttribute("aria-label", "All runs");
    const whole = make("table");
    const head = make("tr");
    this.heads = COLUMNS.map((column, at) => {
      const cell = make("th", null, { className: column.number ? "number" : "" });
      const button = make("button", column.name, { title: `sort by ${column.name}` });
      button.addEventListener("click", () => this.sortBy(at));
      cell.append(button);
      head.append(cell);
      return cell;
    });
    const top = make("thead");
    top.append(head);
    this.body = make("tbody");
    whole.append(top, this.body);
    this.box.append(whole);
    this.box.addEventListener("scroll", () => this.draw());
  }

  sortBy(at) {
    const same = this.order.by === at;
    // Numbers are first asked for from above.
    Object.assign(this.order, { by: at, down: same ? !this.order.down : Boolean(COLUMNS[at].number) || COLUMNS[at].name === "told" });
    this.changed();
  }

  // Runs in the order of the table; those without a value come last.
  sorted(runs) {
    const { of } = COLUMNS[this.order.by];
    const turn = this.order.down ? -1 : 1;
    const known = (value) => value !== null && value !== undefined && value !== "";
    return [...runs].sort((a, b) => {
      const [x, y] = [of(a), of(b)];
      if (!known(x) || !known(y)) return Number(known(y)) - Number(known(x)) || a.index - b.index;
      const found = typeof x === "number" ? x - y : x < y ? -1 : x > y ? 1 : 0;
      return turn * found || a.index - b.index;
    });
  }

  show(runs, current) {
    const moved = current !== this.current;
    [this.rows, this.current] = [this.sorted(runs), current];
    this.heads.forEach((head, at) => head.setAttribute("aria-sort", at !== this.order.by ? "none" : this.order.down ? "descending" : "ascending"));
    if (moved) this.reveal();
    this.draw();
  }

  // Scrolls by as little as shows the chosen run.
  reveal() {
    const at = this.rows.findIndex((run) => run.index === this.current);
    if (at < 0 || !this.box.clientHeight) return;
    const [above, room] = [at * ROW, this.box.clientHeight - 2 * ROW];
    if (above < this.box.scrollTop) this.box.scrollTop = above;
    else if (above > this.box.scrollTop + room) this.box.scrollTop = above - room;
  }

  draw() {
    const first = Math.max(0, Math.floor(this.box.scrollTop / ROW) - 5);
    const last = Math.min(this.rows.length, first + Math.ceil(window.innerHeight / ROW) + 12);
    const gap = (rows) => {
      const row = make("tr", null, { ariaHidden: "true" });
      row.style.height = `${rows * ROW}px`;
      return row;
    };
    const lines = this.rows.slice(first, last).map((run) => {
      const row = make("tr", null, { className: run.index === this.current ? "current" : "" });
      row.dataset.run = run.id;
      for (const column of COLUMNS) {
        const value = (column.text ?? column.of)(run) ?? "";
        const cell = make("td", value, { className: column.number ? "number" : "" });
        if (column.name === "state") cell.classList.add(`is-${run.state}`);
        if (column.name === "failure") cell.classList.add("warn");
        if (String(value).length > 24) cell.title = value;
        row.append(cell);
      }
      row.addEventListener("click", () => this.choose(run));
      return row;
    });
    this.body.replaceChildren(gap(first), ...lines, gap(this.rows.length - last));
  }
}
