// The curves of one or several jobs: reported values by step, with a log scale, smoothing, and a zoom that all charts share.
"use strict";

const POINTS = 1000;
const EVERY_MS = 3000;
const MOST_CHARTS = 3;
const MOST_MARKERS = 40;
const THROUGHPUT = "samples_per_s";
const COLORS = ["#2f6bff", "#e0632b", "#179a61", "#a24ad6", "#c2a200", "#d6336c", "#0fa3b1", "#7a7f87"];
const NO_CURVES = "No curves yet.";
const NEVER_ANY = "No values have been reported.";
const NOT_METRICS = new Set(["at", "step"]);
const ENDED = new Set(["succeeded", "failed", "cancelled"]);

// The series and the state of a job, null if the user can't see it, and the reason if the series are refused. Throws while
// the master can't answer.
async function read(job) {
  const answers = await Promise.all([`/jobs/${job}/metrics?points=${POINTS}&lowest_rank=true`, `/jobs/${job}`].map((url) => fetch(url)));
  if (answers.some((answer) => answer.status >= 500)) throw new Error(`no answer about ${job}`);
  const [series, document_] = await Promise.all(answers.map((answer) => (answer.ok ? answer.json() : null)));
  const refusal = answers[0].status === 422 ? (await problemOf(answers[0])).detail : "";
  return { job, series, state: document_?.state, refusal };
}

// A series without steps of 2^53 and above, which a job can report: adding 1 does not change them, so that uPlot's loop
// over the marks of the axis would not end.
function countable(series) {
  return { ...series, points: series.points.filter((point) => Number.isSafeInteger(point.step)) };
}

// An exponential moving average whose start is not biased towards 0; the weight is that of the past.
function smoothed(values, weight) {
  let sum = 0;
  let total = 0;
  return values.map((value) => {
    if (value === null || value === undefined) return value;
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return sum / total;
  });
}

// One curve per job: of each attempt, the worker that reports the value with the lowest rank.
function curvesOf(seriesList, metric) {
  const byAttempt = new Map();
  for (const series of seriesList) {
    const has = series.points.some((point) => typeof point[metric] === "number");
    const known = byAttempt.get(series.attempt);
    if (has && (!known || series.rank < known.rank)) byAttempt.set(series.attempt, series);
  }
  return [...byAttempt.values()].sort((a, b) => a.attempt - b.attempt);
}

function metricsOf(seriesList, declared) {
  const names = new Set();
  for (const series of seriesList)
    for (const point of series.points)
      for (const [name, value] of Object.entries(point)) if (typeof value === "number" && !NOT_METRICS.has(name)) names.add(name);
  const place = (name) => {
    const found = declared.findIndex((one) => isNamed(one, name));
    return found < 0 ? declared.length : found;
  };
  return [...names].sort((a, b) => place(a) - place(b) || a.localeCompare(b, "en", { numeric: true }));
}

// The values that are drawn by default: like `rolecall watch`, the most important ones with a direction, but the
// throughput takes the last place. Without declarations of a direction, the first ones that are reported. `declared` is
// sorted by importance.
function mainMetrics(names, declared) {
  const directed = declared.filter((one) => one.direction && names.includes(one.name));
  if (!directed.length) return names.slice(0, MOST_CHARTS);
  const scores = directed.map((one) => one.name).slice(0, MOST_CHARTS);
  return names.includes(THROUGHPUT) ? [...scores.filter((name) => name !== THROUGHPUT).slice(0, MOST_CHARTS - 1), THROUGHPUT] : scores;
}

// Whether a declared name is that of a reported value; `{index}` stands for a number.
function isNamed({ name }, reported) {
  const [before, after] = name.split("{index}");
  if (after === undefined) return name === reported;
  const index = reported.slice(before.length, reported.length - after.length);
  return reported.startsWith(before) && reported.endsWith(after) && /^[0-9]+$/.test(index);
}

// The choices of a value. Those that one declaration stands for, such as the losses of micro-batches, are a group.
function optionsOf(names, declared) {
  const groups = new Map();
  for (const name of names) {
    const family = declared.find((one) => isNamed(one, name))?.name ?? name;
    groups.set(family, [...(groups.get(family) || []), new Option(name, name)]);
  }
  return [...groups.values()].flatMap((options) => {
    if (options.length === 1) return options;
    const group = document.createElement("optgroup");
    group.label = `${options[0].value} … ${options.at(-1).value}`;
    group.append(...options);
    return [group];
  });
}

// Distances of the labels of steps: 1, 2 or 5 times a power of ten.
const WHOLE = Array.from({ length: 40 }, (_, n) => [1, 2, 5][n % 3] * 10 ** Math.floor(n / 3));

// The bounds of a log scale close around these values: uPlot's own are powers of ten, so that 0.9 to 1 would fill a corner.
function logBounds(values) {
  if (!values.length) return {};
  const [low, high] = [Math.min(...values), Math.max(...values)].map(Math.log10);
  const margin = Math.max(high - low, 0.01) / 20;
  return { range: [Math.max(10 ** (low - margin), Number.MIN_VALUE), Math.min(10 ** (high + margin), Number.MAX_VALUE)] };
}

// The bounds of a scale around a value that never changes: uPlot's own are 0 and twice the value.
function steadyBounds(values) {
  if (!values.length) return {};
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const size = Math.max(Math.abs(low), Math.abs(high));
  if (high - low > size * 1e-9) return {};
  const margin = size / 10 || 1;
  return { range: [Math.max(low - margin, -Number.MAX_VALUE), Math.min(high + margin, Number.MAX_VALUE)] };
}

// The marks of a log scale: powers of ten and between few of them twice and five times these; within a power of ten,
// round values at equal distances.
function logMarks(_plot, _axis, low, high) {
  const [first, last] = [Math.log10(low), Math.log10(high)];
  if (last - first < 1) {
    const distance = (high - low) / 5;
    const power = 10 ** Math.floor(Math.log10(distance));
    const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= distance);
    return Array.from({ length: Math.floor(high / step) - Math.ceil(low / step) + 1 }, (_, n) => (Math.ceil(low / step) + n) * step);
  }
  const every = Math.ceil((last - first) / 8);
  const powers = Array.from({ length: Math.floor((last - first) / every) + 2 }, (_, n) => (Math.floor(first / every) + n) * every);
  const marks = powers.flatMap((power) => (last - first < 3 ? [1, 2, 5] : [1]).map((one) => one * 10 ** power));
  return marks.filter((mark) => mark >= low && mark <= high);
}

// The best value of all curves by the metric's direction, as a sentence.
function bestOf(curves, name, direction) {
  if (!direction) return "";
  const better = direction === "higher" ? (a, b) => a > b : (a, b) => a < b;
  let best = null;
  for (const { label, points } of curves)
    for (const point of points)
      if (typeof point[name] === "number" && (!best || better(point[name], best.value))) best = { value: point[name], step: point.step, label };
  if (!best) return "";
  const where = curves.length > 1 ? `${best.label}, ` : "";
  return `Best: ${Number(best.value.toPrecision(5))} (${where}step ${best.step.toLocaleString("en")}; ${direction} is better).`;
}

// Vertical lines where attempts after the first begin.
function attemptMarks(starts) {
  return {
    hooks: {
      draw: (plot) => {
        const { ctx, bbox } = plot;
        ctx.save();
        ctx.strokeStyle = "#b3261e";
        ctx.setLineDash([4, 4]);
        for (const step of starts) {
          const x = Math.round(plot.valToPos(step, "x", true));
          ctx.beginPath();
          ctx.moveTo(x, bbox.top);
          ctx.lineTo(x, bbox.top + bbox.height);
          ctx.stroke();
        }
        ctx.restore();
      },
    },
  };
}

// The names of the jobs for people, with the id where two have the same name.
function titlesOf(jobs, names) {
  const nameOf = (job) => names[job] || job;
  return new Map(jobs.map((job) => [job, jobs.filter((one) => nameOf(one) === nameOf(job)).length > 1 && names[job] ? `${names[job]} (${job})` : nameOf(job)]));
}

// The first step of an attempt, the same for all values, of which some are reported later than others.
function startOf(all, attempt) {
  return Math.min(...all.filter((series) => series.attempt === attempt && series.points.length).map((series) => series.points[0].step));
}

// The curves of one value, and where attempts of a single job begin.
function curvesByName(name, jobs, titles, data) {
  const curves = [];
  const starts = new Set();
  for (const job of jobs) {
    const ofJob = curvesOf(data.get(job) || [], name);
    for (const series of ofJob) {
      const points = series.points.filter((point) => point[name] !== undefined);
      if (series.attempt > 1 && jobs.length === 1) starts.add(startOf(data.get(job), series.attempt));
      const attempt = `attempt ${series.attempt}`;
      const label = jobs.length === 1 ? attempt : ofJob.length > 1 ? `${titles.get(job)}, ${attempt}` : titles.get(job);
      curves.push({ job, label, color: COLORS[(jobs.length > 1 ? jobs.indexOf(job) : series.attempt - 1) % COLORS.length], points });
    }
  }
  return { curves, starts };
}

function startCurves(box) {
  const jobs = box.dataset.jobs.split(" ");
  const titles = titlesOf(jobs, JSON.parse(box.dataset.names || "{}"));
  const declared = JSON.parse(box.dataset.metrics);
  box.innerHTML = `
    <div class="bar" hidden>
      <label>Value <select name="metric"></select></label>
      <label><input name="log" type="checkbox"> Log scale</label>
      <label>Smoothing <input name="weight" type="range" min="0" max="0.99" step="0.01" value="0"></label>
      <span class="actions" role="group" aria-label="Zoom">
        <button type="button" name="in">Zoom in</button>
        <button type="button" name="out">Zoom out</button>
        <button type="button" name="earlier" aria-label="Earlier steps">←</button>
        <button type="button" name="later" aria-label="Later steps">→</button>
        <button type="button" name="all">All</button>
      </span>
      <span class="note">Or drag to zoom, and double-click to see all.</span>
    </div>
    <div class="charts"></div>
    <p class="empty">${NO_CURVES}</p>`;
  const [metric, log, weight] = ["metric", "log", "weight"].map((name) => box.querySelector(`[name=${name}]`));
  const place = box.querySelector(".charts");
  const bar = box.querySelector(".bar");
  const empty = box.querySelector(".empty");
  let data = new Map();
  let refusals = [];
  let names = [];
  let charts = [];
  let whole = null;
  let zoom = null;
  let isFinal = false;

  const sizeOf = (chart) => ({ width: chart.frame.clientWidth || 600, height: charts.length > 1 ? 260 : 320 });
  const resizing = new ResizeObserver(() => charts.forEach((chart) => chart.plot?.setSize(sizeOf(chart))));

  function chartOf(name) {
    const section = document.createElement("section");
    section.className = "chart";
    section.innerHTML = `<h3></h3><p class="note about"></p><div class="plot" role="img"></div>`;
    section.querySelector("h3").textContent = name;
    const frame = section.querySelector(".plot");
    resizing.observe(frame);
    return { name, section, frame, about: section.querySelector(".about"), plot: null };
  }

  // The charts of the chosen value or of the main ones. They stay while their names do, so that the page does not jump.
  function arrange() {
    const shown = metric.value ? [metric.value] : mainMetrics(names, declared);
    if (shown.join() === charts.map((chart) => chart.name).join()) return;
    for (const chart of charts) {
      chart.plot?.destroy();
      resizing.unobserve(chart.frame);
    }
    charts = shown.map(chartOf);
    place.replaceChildren(...charts.map((chart) => chart.section));
  }

  function draw() {
    arrange();
    const found = charts.map((chart) => curvesByName(chart.name, jobs, titles, data));
    const steps = found.flatMap(({ curves }) => curves.flatMap(({ points }) => [points[0].step, points.at(-1).step]));
    whole = steps.length ? [Math.min(...steps), Math.max(...steps)] : null;
    charts.forEach((chart, number) => drawChart(chart, found[number]));
    empty.textContent = refusals.length ? `The values can't be read: ${refusals.join("; ")}` : isFinal ? NEVER_ANY : NO_CURVES;
    bar.hidden = !charts.length;
    empty.hidden = charts.length > 0 && !refusals.length;
    if (charts.length) box.dataset.points = String(Math.max(...found.flatMap(({ curves }) => curves.map(({ points }) => points.length))));
  }

  function drawChart(chart, { curves, starts }) {
    const { name, frame } = chart;
    const declaration = declared.find((one) => isNamed(one, name));
    chart.about.textContent = [declaration?.help, bestOf(curves, name, declaration?.direction)].filter(Boolean).join(" ");
    const tables = curves.map((curve) => [
      curve.points.map((point) => point.step),
      smoothed(curve.points.map((point) => (log.checked && point[name] <= 0 ? null : point[name])), Number(weight.value)),
    ]);
    const [min, max] = zoom || whole;
    const visible = tables.flatMap(([steps, values_]) => values_.filter((value, n) => typeof value === "number" && steps[n] >= min && steps[n] <= max));
    if (log.checked && !visible.length) chart.about.textContent += " The log scale shows nothing, because no value here is above 0.";
    const isMarked = curves.every(({ points }) => points.length < MOST_MARKERS);
    const text = getComputedStyle(document.body).color;
    const grid = { stroke: "rgb(128 128 128 / 25%)" };
    const axis = { stroke: text, grid, ticks: grid };
    const values = (_, ticks) => ticks.map((value) => (value === null ? "" : (Math.abs(value) < 1e7 ? Number(value.toPrecision(6)).toString() : Number(value.toPrecision(3)).toExponential())));
    frame.setAttribute("aria-label", `${name} by step, from step ${Math.ceil(min)} to step ${Math.floor(max)}`);
    chart.plot?.destroy();
    const table = uPlot.join(tables);
    // Where nothing is pointed at, the legend has the newest values that are shown, and their step if it is the same.
    const newest = table.map((column) => column.findLastIndex((value, n) => typeof value === "number" && table[0][n] <= max));
    if (new Set(newest.slice(1)).size > 1) newest[0] = null;
    chart.plot = new uPlot(
      {
        ...sizeOf(chart),
        scales: { x: { time: false, ...(min < max ? { min, max } : { min: min - 1, max: max + 1 }) }, y: log.checked ? { distr: 3, ...logBounds(visible) } : steadyBounds(visible) },
        axes: [{ ...axis, label: "step", incrs: WHOLE }, { ...axis, size: 70, values, ...(log.checked ? { splits: logMarks, filter: (_, marks) => marks } : {}), ...(declaration?.unit ? { label: declaration.unit } : {}) }],
        series: [
          { label: "step" },
          ...curves.map((curve) => ({ label: curve.label, stroke: curve.color, width: 2, spanGaps: true, points: { show: isMarked || curve.points.length < 2 } })),
        ],
        plugins: [attemptMarks(starts)],
        hooks: {
          setSelect: [(one) => zoomTo(one.posToVal(one.select.left, "x"), one.posToVal(one.select.left + one.select.width, "x"))],
          setLegend: [(one) => { if (one.legend.idx === null) one.setLegend({ idxs: newest }, false); }],
        },
        cursor: { drag: { setScale: false } },
      },
      table,
      frame,
    );
    chart.plot.setLegend({ idxs: newest }, false);
    if (jobs.length > 1) chart.plot.root.querySelectorAll(".u-series").forEach((row, number) => { if (number) row.title = curves[number - 1].job; });
    chart.plot.over.addEventListener("dblclick", () => zoomTo(...whole));
  }

  // Show these steps in all charts, at least one, or all of them if nothing would be left out.
  function zoomTo(from, to) {
    if (!whole || from >= to) return;
    const [first, last] = whole;
    const size = Math.min(Math.max(to - from, 1), last - first);
    const start = Math.min(Math.max((from + to - size) / 2, first), last - size);
    zoom = size < last - first ? [start, start + size] : null;
    // Not within an event of a plot that this replaces.
    queueMicrotask(draw);
  }

  // Scale the visible steps around their middle, and move them by a part of themselves.
  function zoomBy(scale, move) {
    if (!whole) return;
    const [from, to] = zoom || whole;
    const [middle, half] = [(from + to) / 2 + move * (to - from), ((to - from) / 2) * scale];
    zoomTo(middle - half, middle + half);
  }

  function show(found) {
    for (const { job, series } of found) if (series) data.set(job, series.series.map(countable));
    refusals = found.map(({ refusal }) => refusal).filter(Boolean);
    isFinal = found.every(({ state }) => ENDED.has(state));
    const reported = metricsOf([...data.values()].flat(), declared);
    if (reported.join() !== names.join()) {
      names = reported;
      const chosen = metric.value;
      metric.replaceChildren(new Option("main values", ""), ...optionsOf(names, declared));
      if (names.includes(chosen)) metric.value = chosen;
    }
    draw();
  }

  // Shows the newest values until all jobs have ended. While the master can't answer, the curves stay as they are.
  async function follow() {
    const found = await Promise.all(jobs.map(read)).catch(() => null);
    if (found) show(found);
    if (!found || found.some(({ state }) => state && !ENDED.has(state))) setTimeout(follow, EVERY_MS);
  }

  for (const control of [metric, log, weight]) control.addEventListener("input", draw);
  const zooms = { in: [0.5, 0], out: [2, 0], earlier: [1, -0.5], later: [1, 0.5] };
  for (const [name, by] of Object.entries(zooms)) box.querySelector(`button[name=${name}]`).addEventListener("click", () => zoomBy(...by));
  box.querySelector("button[name=all]").addEventListener("click", () => whole && zoomTo(...whole));
  follow();
}

document.querySelectorAll(".curves").forEach(startCurves);
