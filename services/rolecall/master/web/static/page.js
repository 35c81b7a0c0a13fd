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
  try {
    showMessage(JSON.parse(responseText).detail);
  } catch {
    showMessage(`The master answered ${status}.`);
  }
});
document.body.addEventListener("htmx:sendError", () => showMessage("The master does not answer; trying again."));
let hasActed = false;
document.body.addEventListener("htmx:afterRequest", (event) => {
  const { successful, requestConfig, elt } = event.detail;
  if (!successful) return;
  if (requestConfig.verb === "get") {
    if (message.textContent.startsWith("The master does not answer")) showMessage("");
    return;
  }
  showMessage("");
  hasActed = true;
  if (elt.dataset.then) location.assign(elt.dataset.then);
  else htmx.trigger(document.body, "changed");
});
// Lists keep their scroll positions when the part that contains them is replaced.
const scrolled = new Map();
const listsIn = (part) => [...part.querySelectorAll("[tabindex='0']")].map((list) => [list.getAttribute("aria-label") || list.className, list]);
document.body.addEventListener("htmx:beforeSwap", (event) => {
  scrolled.clear();
  for (const [name, { scrollLeft, scrollTop }] of listsIn(event.detail.target)) scrolled.set(name, [scrollLeft, scrollTop]);
});
document.body.addEventListener("htmx:afterSwap", (event) => {
  for (const [name, list] of listsIn(event.detail.target)) if (scrolled.has(name)) list.scrollTo(...scrolled.get(name));
});
// A part that is replaced must not take the focus away from a button in it, unless the user has just pressed one.
document.body.addEventListener("htmx:beforeSwap", (event) => {
  const { requestConfig, target } = event.detail;
  if (requestConfig.verb !== "get") return;
  const active = document.activeElement;
  if (target.contains(active) && active.matches("button, a, summary")) {
    event.detail.shouldSwap = hasActed || target.dataset.skipped === "2";
    target.dataset.skipped = event.detail.shouldSwap ? "0" : String(Number(target.dataset.skipped || 0) + 1);
    if (hasActed) document.getElementById("main").focus({ preventScroll: true });
  }
  hasActed = false;
});
