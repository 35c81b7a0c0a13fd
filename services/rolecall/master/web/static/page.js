// What all pages do: show errors of calls, and follow up on buttons.
"use strict";

const message = document.getElementById("message");

function showMessage(text) {
  message.textContent = text;
  message.hidden = !text;
}

async function problemOf(response) {
  const isProblem = (response.headers.get("content-type") || "").startsWith("application/problem+json");
  return isProblem ? response.json() : { detail: `${response.status} ${response.statusText}`, errors: [] };
}

document.body.addEventListener("htmx:responseError", (event) => {
  const { responseText, status } = event.detail.xhr;
  // A job that was deleted meanwhile: the page of the same address says so.
  if (status === 404 && event.detail.requestConfig.verb === "get" && event.detail.target.id === "job") {
    location.reload();
    return;
  }
  try {
    showMessage(JSON.parse(responseText).detail);
  } catch {
    showMessage(`The master answered ${status}.`);
  }
});
for (const name of ["htmx:sendError", "htmx:timeout"]) {
  document.body.addEventListener(name, (event) => {
    const isButton = event.detail.requestConfig.verb !== "get";
    showMessage(isButton ? "No answer from the master: press the button again." : "The master does not answer; trying again.");
  });
}
// The page to compare jobs, without a chosen one.
const comparing = document.querySelector("form[action='/ui/compare']");
comparing?.addEventListener("submit", (event) => {
  if (comparing.querySelector(":checked")) return;
  event.preventDefault();
  showMessage("Choose two or more jobs.");
});
comparing?.addEventListener("change", () => showMessage(""));
// A button shows at once that it is pressed, until a part of the page that was read afterwards replaces it.
const status_ = document.getElementById("status");
let acting = 0;
let earliest = 0;
document.body.addEventListener("htmx:beforeRequest", (event) => {
  const { requestConfig, elt } = event.detail;
  requestConfig.began = performance.now();
  if (requestConfig.verb === "get") return;
  acting += 1;
  requestConfig.usual = elt.textContent;
  status_.textContent = elt.textContent = elt.dataset.pressed ?? elt.textContent;
  // A disabled button loses the focus, and the Tab key would start at the top of the page.
  document.getElementById("main").focus({ preventScroll: true });
  elt.disabled = true;
});
document.body.addEventListener("htmx:afterRequest", (event) => {
  const { successful, requestConfig, elt } = event.detail;
  if (requestConfig.verb === "get") {
    if (successful && message.textContent.startsWith("The master does not answer")) showMessage("");
    return;
  }
  acting -= 1;
  if (!successful) {
    status_.textContent = "";
    elt.textContent = requestConfig.usual;
    elt.disabled = false;
    elt.focus({ preventScroll: true });
    return;
  }
  showMessage("");
  earliest = performance.now();
  if (elt.dataset.then) location.assign(elt.dataset.then);
  else htmx.trigger(document.body, "changed");
});
document.body.addEventListener("htmx:beforeSwap", (event) => {
  const { requestConfig } = event.detail;
  if (acting || requestConfig.began < earliest) event.detail.shouldSwap = false;
});
// When the part that contains them is replaced, lists keep their scroll positions, and details stay open. A new state of
// the job is announced.
const scrolled = new Map();
const opened = new Set();
const stateOf = () => document.querySelector("h1 .state")?.textContent;
let state = stateOf();
const detailsIn = (part) => part.querySelectorAll("details[data-key]");
const listsIn = (part) => [...part.querySelectorAll("[tabindex='0']")].map((list) => [list.getAttribute("aria-label") || list.className, list]);
document.body.addEventListener("htmx:beforeSwap", (event) => {
  scrolled.clear();
  opened.clear();
  for (const one of detailsIn(event.detail.target)) if (one.open) opened.add(one.dataset.key);
  for (const [name, { scrollLeft, scrollTop }] of listsIn(event.detail.target)) scrolled.set(name, [scrollLeft, scrollTop]);
});
document.body.addEventListener("htmx:afterSwap", (event) => {
  if (stateOf() !== state) status_.textContent = state = stateOf();
  for (const one of detailsIn(event.detail.target)) one.open = opened.has(one.dataset.key);
  for (const [name, list] of listsIn(event.detail.target)) if (scrolled.has(name)) list.scrollTo(...scrolled.get(name));
});
// A part that is replaced must not take the focus away from a button in it.
document.body.addEventListener("htmx:beforeSwap", (event) => {
  const { requestConfig, target } = event.detail;
  if (requestConfig.verb !== "get" || !event.detail.shouldSwap) return;
  const active = document.activeElement;
  if (target.contains(active) && active.matches("button, a, summary")) {
    event.detail.shouldSwap = target.dataset.skipped === "2";
    target.dataset.skipped = event.detail.shouldSwap ? "0" : String(Number(target.dataset.skipped || 0) + 1);
  }
});
