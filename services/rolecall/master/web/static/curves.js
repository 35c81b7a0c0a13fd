// The curves of one or several jobs: any reported value by step, with a log scale, smoothing, and zoom by dragging.
"use strict";

const POINTS = 1000;
const EVERY_MS = 3000;
const COLORS = ["#2f6bff", "#e0632b", "#179a61", "#a24ad6", "#c2a200", "#d6336c", "#0fa3b1", "#7a7f87"];
const NOT_METRICS = new Set(["at", "step"]);
const ENDED = new Set(["succeeded", "failed", "cancelled"]);

// The series and the state of a job, null if the user can't see it. Throws while the master can't answer.
async function read(job) {
  const answers = await Promise.all([`/jobs/${job}/metrics?points=${POINTS}&lowest_rank=true`, `/jobs/${job}`].map((url) => fetch(url)));
  if (answers.some((answer) => answer.status >= 500)) throw new Error(`no answer about ${job}`);
  const [series, document_] = await Promise.all(answers.map((answer) => (answer.ok ? answer.json() : null)));
  return { job, series, state: document_?.state };
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
  return [...names].sort((a, b) => place(a) - place(b) || a.localeCompare(b));
}

// Whether a declared name is that of a reported value; `{index}` stands for a number.
function isNamed({ name }, reported) {
  const [before, after] = name.split("{index}");
  if (after === undefined) return name === reported;
  const index = reported.slice(before.length, reported.length - after.length);
  return reported.startsWith(before) && reported.endsWith(after) && /^[0-9]+$/.test(index);
}

// Distances of the labels of steps: 1, 2 or 5 times a power of ten.
const WHOLE = Array.from({ length: 40 }, (_, n) => [1, 2, 5][n % 3] * 10 ** Math.floor(n / 3));

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

function startCurves(box) {
  const jobs = box.dataset.jobs.split(" ");
  const declared = JSON.parse(box.dataset.metrics);
  box.innerHTML = `
    <div class="bar">
      <label>Value <select name="metric"></select></label>
      <label><input name="log" type="checkbox"> Log scale</label>
      <label>Smoothing <input name="weight" type="range" min="0" max="0.99" step="0.01" value="0"></label>
      <span class="note">Drag to zoom, double-click to see all.</span>
    </div>
    <p class="note about"></p>
    <div class="plot" role="img" aria-label="Curve"></div>
    <p class="empty">No values have been reported yet.</p>`;
  const [metric, log, weight] = ["metric", "log", "weight"].map((name) => box.querySelector(`[name=${name}]`));
  const place = box.querySelector(".plot");
  const empty = box.querySelector(".empty");
  const about = box.querySelector(".about");
  let data = new Map();
  let plot = null;
  let zoom = null;

  function draw() {
    const name = metric.value;
    const curves = [];
    const starts = new Set();
    for (const job of jobs) {
      const ofJob = curvesOf(data.get(job) || [], name);
      for (const [place_, series] of ofJob.entries()) {
        const points = series.points.filter((point) => point[name] !== undefined);
        if (place_ > 0 && jobs.length === 1) starts.add(points[0].step);
        const attempt = `attempt ${series.attempt}`;
        const label = jobs.length === 1 ? attempt : ofJob.length > 1 ? `${job}, ${attempt}` : job;
        curves.push({ label, color: COLORS[(jobs.length > 1 ? jobs.indexOf(job) : place_) % COLORS.length], points });
      }
    }
    empty.hidden = curves.length > 0;
    const declaration = declared.find((one) => isNamed(one, name));
    about.textContent = [declaration?.help, bestOf(curves, name, declaration?.direction)].filter(Boolean).join(" ");
    plot?.destroy();
    plot = null;
    if (!curves.length) return;
    const tables = curves.map((curve) => [
      curve.points.map((point) => point.step),
      smoothed(curve.points.map((point) => (log.checked && point[name] <= 0 ? null : point[name])), Number(weight.value)),
    ]);
    const text = getComputedStyle(document.body).color;
    const grid = { stroke: "rgb(128 128 128 / 25%)" };
    const axis = { stroke: text, grid, ticks: grid };
    const values = (_, ticks) => ticks.map((value) => (value === null ? "" : Number(value.toPrecision(6)).toString()));
    place.setAttribute("aria-label", `${name} by step, up to step ${Math.max(...tables.map(([steps]) => steps.at(-1)))}`);
    plot = new uPlot(
      {
        width: place.clientWidth || 600,
        height: 320,
        scales: { x: { time: false, ...(zoom ? { min: zoom[0], max: zoom[1] } : {}) }, y: { distr: log.checked ? 3 : 1 } },
        axes: [{ ...axis, label: "step", incrs: WHOLE }, { ...axis, size: 70, values, ...(declaration?.unit ? { label: declaration.unit } : {}) }],
        series: [
          { label: "step" },
          ...curves.map((curve) => ({ label: curve.label, stroke: curve.color, width: 2, spanGaps: true, points: { show: curve.points.length < 40 } })),
        ],
        plugins: [attemptMarks(starts)],
        hooks: { setSelect: [(one) => { zoom = [one.posToVal(one.select.left, "x"), one.posToVal(one.select.left + one.select.width, "x")]; }] },
      },
      uPlot.join(tables),
      place,
    );
    plot.over.addEventListener("dblclick", () => { zoom = null; });
    box.dataset.points = String(Math.max(...tables.map(([steps]) => steps.length)));
  }

  function show(found) {
    for (const { job, series } of found) if (series) data.set(job, series.series);
    const names = metricsOf([...data.values()].flat(), declared);
    if (names.join() !== [...metric.options].map((option) => option.value).join()) {
      const chosen = metric.value;
      metric.replaceChildren(...names.map((name) => new Option(name, name)));
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
  new ResizeObserver(() => plot?.setSize({ width: place.clientWidth, height: 320 })).observe(place);
  follow();
}

document.querySelectorAll(".curves").forEach(startCurves);
