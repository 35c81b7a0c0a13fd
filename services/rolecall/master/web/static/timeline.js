// The picture of a job's recent step: a pipeline compared with theory, or the phases of other workers.
"use strict";

const PICTURE_EVERY_MS = 10_000;
const FIRST_EVERY_MS = 2000;

// The picture with its own style, in a shadow root: the style is not for the rest of the page, and needs more than the
// digest that the content security policy allows, so it is a constructed sheet.
function showPicture(place, text) {
  const [element, style] = /<style>([^<]*)<\/style>/.exec(text);
  const svg = new DOMParser().parseFromString(text.replace(element, ""), "image/svg+xml").documentElement;
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(`:host{display:block}svg{display:block;width:100%;min-width:760px;height:auto}${style}`);
  const root = place.shadowRoot || place.attachShadow({ mode: "open" });
  root.adoptedStyleSheets = [sheet];
  root.replaceChildren(document.importNode(svg, true));
  return svg.querySelector("desc").textContent;
}

function startTimeline(section) {
  const place = section.querySelector(".picture");
  const caption = section.querySelector(".caption");
  const state = () => document.querySelector("#job .state").textContent;
  const hasAttempt = () => document.querySelector("#job [data-attempt]") !== null;
  const address = `/ui/jobs/${section.dataset.job}/picture${section.dataset.pipeline ? "?pipeline=true" : ""}`;
  let last = null;

  // While workers run, every 10 s and only if the page is visible; after the end once, because workers leave their last steps.
  async function refresh() {
    const now = state();
    const isRunning = now === "running" || now === "stopping";
    if (!document.hidden && hasAttempt() && (isRunning || now !== last)) {
      const found = await fetch(address).then((answer) => (answer.ok ? answer.json() : null)).catch(() => null);
      if (found) {
        section.hidden = false;
        section.querySelector("h2").textContent = found.format === "schedule" ? "Pipeline: measured and theory" : "Recent steps";
        // Another sentence follows.
        caption.textContent = showPicture(place, found.svg).replace(/[^.]$/, "$&.");
        section.querySelector(".alone").href = `/jobs/${section.dataset.job}/timeline?format=${found.format}`;
      }
      last = now;
    }
    setTimeout(refresh, section.hidden && isRunning ? FIRST_EVERY_MS : PICTURE_EVERY_MS);
  }

  refresh();
}

document.querySelectorAll(".timeline").forEach(startTimeline);
