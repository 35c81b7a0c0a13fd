// The form for a new job: fields from the schema of the workload, the equivalent curl command, errors at the fields.
"use strict";

const form = document.getElementById("submit");
const workload = document.getElementById("workload");
const source = document.getElementById("start");
const curl = document.getElementById("curl");
const problems = document.getElementById("problems");
const REQUEST = {
  type: "object",
  properties: {
    name: { type: "string", maxLength: 120, description: "A name for people; it need not be unique." },
    labels: { type: "object", description: "Names and values for filtering jobs, as JSON." },
    priority: { type: "integer", minimum: -100, maximum: 100, default: 0, description: "Jobs with a higher priority start first." },
    max_restarts: { type: "integer", minimum: 0, maximum: 1000, default: 3, description: "Restarts after failed attempts." },
    deadline_s: { type: "number", exclusiveMinimum: 0, description: "Seconds after submission at which the job is stopped." },
  },
};
let request = null;
let params = null;
let roles = null;
let forms = [];

function jobOf() {
  const found = { workload: workload.value, ...request.read() };
  const counts = roles.read();
  if (counts) found.roles = counts;
  const values = params.read();
  if (values) found.params = values;
  return found;
}

function preview() {
  const text = JSON.stringify(jobOf(), null, 2).replaceAll("'", "'\\''");
  curl.textContent = `curl -sS --fail-with-body -X POST "$ROLECALL_URL/jobs" -H "Authorization: Bearer $ROLECALL_TOKEN" \\\n  -H "Content-Type: application/json" -d '${text}'`;
}

async function load(start) {
  const document_ = await fetch(`/workloads/${encodeURIComponent(workload.value)}`).then((answer) => answer.json());
  document.getElementById("summary").textContent = document_.summary;
  const counts = Object.entries(document_.roles).filter(([, one]) => one.most > one.least);
  const rolesSchema = {
    type: "object",
    properties: Object.fromEntries(counts.map(([role, one]) => [role, { type: "integer", minimum: one.least, maximum: one.most, default: one.default, description: `Workers: ${one.least} to ${one.most}.` }])),
  };
  const plainCounts = Object.fromEntries(Object.entries(start?.roles || {}).filter(([role]) => role in rolesSchema.properties));
  forms = [new SchemaForm.Form({}, preview), new SchemaForm.Form({}, preview), new SchemaForm.Form(document_.params, preview)];
  request = forms[0].control(REQUEST, "", start, false);
  rolesSchema.required = Object.keys(rolesSchema.properties);
  roles = forms[1].field("roles", rolesSchema, "roles", plainCounts, false);
  params = forms[2].control(document_.params, "params", start?.params, false);
  document.getElementById("request").replaceChildren(request.element, roles.element);
  document.getElementById("params").replaceChildren(params.element);
  preview();
}

// Not `crypto.randomUUID`, which browsers offer to HTTPS and loopback addresses only.
function requestKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

async function send(path) {
  problems.hidden = true;
  document.getElementById("plan").textContent = "";
  const job = jobOf();
  const answer = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json", ...(path === "/jobs" ? { "Idempotency-Key": requestKey() } : {}) }, body: JSON.stringify(job) });
  if (answer.ok) return answer.json();
  const problem = await problemOf(answer);
  const left = forms.reduce((errors, one) => one.showErrors(errors), problem.errors || []);
  problems.textContent = (problem.errors || []).length ? left.map((one) => `${one.field}: ${one.message}`).join("\n") || "Some fields are invalid; see above." : problem.detail;
  problems.hidden = false;
  form.querySelector("[data-wrong]")?.scrollIntoView({ block: "center" });
  return null;
}

function planText(plan) {
  if (plan.waiting_for) return `The job is valid. It would wait: ${plan.waiting_for}.`;
  const seats = plan.workers.map((worker) => `${worker.role}-${worker.role_rank} on ${worker.node}`);
  return `The job is valid and would start now: ${seats.join(", ")}.`;
}

document.getElementById("check").addEventListener("click", async () => {
  const plan = await send("/jobs?dry_run=true");
  document.getElementById("plan").textContent = plan ? planText(plan) : "";
});
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const job = await send("/jobs");
  if (job) location.assign(`/ui/jobs/${job.id}`);
});
workload.addEventListener("change", () => {
  source.value = "";
  load();
});
source.addEventListener("change", () => startFrom(source.value));

// What fills the form: `example:WORKLOAD`, `job:ID`, or nothing.
async function startFrom(chosen) {
  const [kind, name] = [chosen.slice(0, chosen.indexOf(":")), chosen.slice(chosen.indexOf(":") + 1)];
  if (!kind) return load();
  const url = kind === "example" ? `/workloads/${encodeURIComponent(name)}` : `/jobs/${encodeURIComponent(name)}`;
  const found = await fetch(url).then((answer) => (answer.ok ? answer.json() : null));
  const job = kind === "example" ? found?.example : found;
  if (!job) showMessage(`${name} is not available any more.`);
  else workload.value = job.workload;
  return load(job || undefined);
}

const clone = new URLSearchParams(location.search).get("clone");
if (clone) source.value = `job:${clone}`;
startFrom(clone ? `job:${clone}` : "");
