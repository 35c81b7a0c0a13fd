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
    priority: { type: "integer", minimum: -100, maximum: 100, default: 0, description: "Jobs with a higher priority start first." },
    max_restarts: { type: "integer", minimum: 0, maximum: 1000, default: 3, description: "Restarts after failed attempts." },
    deadline_s: { type: "number", exclusiveMinimum: 0, description: "Seconds after submission at which the job is stopped." },
    notify: { type: "string", maxLength: 2000, description: "The URL of a webhook for the end of the job." },
    labels: { type: "object", propertyNames: { maxLength: 317 }, additionalProperties: { type: "string", maxLength: 63 }, description: "Names and values for filtering jobs: up to 63 letters, digits, `-`, `_` and `.`, with a letter or digit first and last." },
  },
};
const GPUS = { type: "integer", minimum: 0, maximum: 1, description: "GPUs of each worker: 0 or 1. By default, trainers, stages and observers get a GPU where their node has some." };
const THREADS = { type: "integer", minimum: 1, description: "CPU threads of each worker; by default those of its share of the node's cores." };
let request = null;
let params = null;
let roles = null;
let forms = [];
let newest = 0;

function jobOf() {
  const found = { workload: workload.value, ...request.read() };
  const demands = Object.entries(roles.read() || {}).filter(([, one]) => Object.keys(one).length);
  if (demands.length) found.roles = Object.fromEntries(demands.map(([role, one]) => [role, Object.keys(one).join() === "count" ? one.count : one]));
  const values = params.read();
  if (values) found.params = values;
  return found;
}

function preview() {
  const text = JSON.stringify(jobOf(), null, 2).replaceAll("'", "'\\''");
  curl.textContent = `curl -sS --fail-with-body -X POST "$ROLECALL_URL/jobs" -H "Authorization: Bearer $ROLECALL_TOKEN" \\\n  -H "Content-Type: application/json" -d '${text}'`;
}

// The number and resources of each role's workers: in one value, as in a request, or in two, as in a job's document.
function demandsOf(start) {
  const found = {};
  for (const [role, one] of Object.entries(start?.roles || {})) found[role] = typeof one === "number" ? { count: one } : { ...one };
  for (const [role, { gpus, threads }] of Object.entries(start?.resources || {})) {
    if (gpus !== null) found[role] = { ...found[role], gpus };
    if (threads !== null) found[role] = { ...found[role], threads };
  }
  return found;
}

// The fields of one role. Its number of workers is one of them if it can be chosen.
function roleSchema({ least, most, default: usual }) {
  const count = { type: "integer", minimum: least, maximum: most, default: usual, description: `Workers: ${least} to ${most}.` };
  return { type: "object", properties: { ...(most > least ? { count } : {}), gpus: GPUS, threads: THREADS }, required: most > least ? ["count"] : [] };
}

// Fill the form, unless the user has meanwhile chosen something else to fill it with.
async function load(start, turn) {
  const document_ = await fetch(`/workloads/${encodeURIComponent(workload.value)}`).then((answer) => answer.json());
  if (turn !== newest) return;
  document.getElementById("summary").textContent = document_.summary;
  const demands = demandsOf(start);
  const shown = Object.entries(document_.roles).filter(([role, one]) => one.most > one.least || "gpus" in (demands[role] || {}) || "threads" in (demands[role] || {}));
  const rolesSchema = {
    type: "object",
    properties: Object.fromEntries(shown.map(([role, one]) => [role, roleSchema(one)])),
    required: shown.map(([role]) => role),
  };
  forms = [new SchemaForm.Form({}, preview), new SchemaForm.Form({}, preview), new SchemaForm.Form(document_.params, preview)];
  request = forms[0].control(REQUEST, () => "", start, false);
  roles = forms[1].field("roles", rolesSchema, () => "roles", demands, false);
  params = forms[2].control(document_.params, () => "params", start?.params, false);
  document.getElementById("request").replaceChildren(request.element, roles.element);
  document.getElementById("params").replaceChildren(params.element);
  preview();
}

// Not `crypto.randomUUID`, which browsers offer to HTTPS and loopback addresses only.
function requestKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

// The message with the name of its field, unless it begins with it: `name: …`, but not `names must …`.
function namedProblem({ field, message }) {
  return message.startsWith(field) && !/^[\w.-]/.test(message.slice(field.length)) ? message : `${field}: ${message}`;
}

// Show errors at their fields, and the others above the button.
function showErrors(errors, detail) {
  const left = forms.reduce((others, one) => one.showErrors(others), errors);
  problems.textContent = errors.length ? left.map(namedProblem).join("\n") || "Some fields are invalid; see above." : detail;
  problems.hidden = false;
  form.querySelector("[data-wrong]")?.scrollIntoView({ block: "center" });
}

async function send(path) {
  problems.hidden = true;
  document.getElementById("plan").textContent = "";
  for (const one of forms) one.showErrors([]); // Those of the last attempt.
  const errors = forms.flatMap((one) => one.findErrors());
  if (errors.length) return showErrors(errors);
  const answer = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json", ...(path === "/jobs" ? { "Idempotency-Key": requestKey() } : {}) }, body: JSON.stringify(jobOf()) });
  if (answer.ok) return answer.json();
  const problem = await problemOf(answer);
  return showErrors(problem.errors || [], problem.detail);
}

function planText(plan) {
  const unchecked = "Its nodes check files, environments and code of its own when it starts.";
  if (plan.waiting_for) return `The job is valid. It would wait: ${plan.waiting_for}. ${unchecked}`;
  const seats = plan.workers.map((worker) => `${worker.role}-${worker.role_rank} on ${worker.node}`);
  return `The job is valid and would start now: ${seats.join(", ")}. ${unchecked}`;
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
  startFrom("");
});
source.addEventListener("change", () => startFrom(source.value));

// The paths of the values in which a job's document hides credentials, such as `params.data.train`.
function hiddenIn(value, path) {
  const isHidden = (text) => text.includes("***");
  if (typeof value === "string") return isHidden(value) ? [path] : [];
  return Object.entries(value || {}).flatMap(([name, one]) => (isHidden(name) ? [`${path}.${name}`] : hiddenIn(one, `${path}.${name}`)));
}

// What of a job's document can't be cloned, for people.
function lostOf({ id, notify, params }) {
  const hidden = hiddenIn(params, "params");
  const more = hidden.length > 3 ? ` and ${hidden.length - 3} more` : "";
  return [
    notify ? `${id} sends a webhook to ${notify}. The rest of the address is hidden, so it is not cloned: enter it again under “notify”, or no webhook is sent.` : "",
    hidden.length ? `What can be credentials in ${hidden.slice(0, 3).join(", ")}${more} is hidden: replace each *** before you submit the job.` : "",
  ].join(" ").trim();
}

// What fills the form: `example:WORKLOAD`, `job:ID`, or nothing.
async function startFrom(chosen) {
  const [kind, name] = [chosen.slice(0, chosen.indexOf(":")), chosen.slice(chosen.indexOf(":") + 1)];
  document.getElementById("lost").textContent = "";
  const turn = (newest += 1);
  if (!kind) return load(undefined, turn);
  const url = kind === "example" ? `/workloads/${encodeURIComponent(name)}` : `/jobs/${encodeURIComponent(name)}`;
  const found = await fetch(url).then((answer) => (answer.ok ? answer.json() : null));
  if (turn !== newest) return;
  const job = kind === "example" ? found?.example : found;
  if (!job) showMessage(`${name} is not available any more.`);
  else workload.value = job.workload;
  // A job's document has only the host of its webhook: the rest of the address can be a secret.
  await load(kind === "job" && job ? { ...job, notify: null } : job || undefined, turn);
  if (turn !== newest) return;
  document.getElementById("lost").textContent = kind === "job" && job ? lostOf(job) : "";
}

const clone = new URLSearchParams(location.search).get("clone");
if (clone) source.value = `job:${clone}`;
// The user can choose before this script has loaded.
startFrom(clone ? `job:${clone}` : source.value);
