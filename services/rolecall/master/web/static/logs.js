// The merged log of a job: live, filtered by role, rank and text. It holds the newest lines only.
"use strict";

const MOST_LINES = 5000;
const TAIL = 1000;

function startLog(box) {
  const job = box.dataset.job;
  const roles = box.dataset.roles.split(" ");
  box.innerHTML = `
    <div class="bar">
      <label>Role <select name="role"><option value="">all</option></select></label>
      <label>Rank <input name="rank" inputmode="numeric" size="4" pattern="[0-9]*" placeholder="all"></label>
      <label>Text <input name="text" type="search" placeholder="filter"></label>
      <label><input name="stay" type="checkbox" checked> Follow</label>
      <a class="button" download>Download</a>
      <span class="note" role="status"></span>
    </div>
    <pre class="lines" tabindex="0" role="region" aria-label="Log lines"></pre>`;
  const [role, rank, text, stay] = ["role", "rank", "text", "stay"].map((name) => box.querySelector(`[name=${name}]`));
  role.append(...roles.map((name) => new Option(name, name)));
  const view = box.querySelector(".lines");
  const status = box.querySelector("[role=status]");
  let lines = [];
  let fresh = [];
  let source = null;

  const isShown = (line) => line.toLowerCase().includes(text.value.toLowerCase());
  const scroll = () => { if (stay.checked) view.scrollTop = view.scrollHeight; };

  function redraw() {
    view.textContent = lines.filter(isShown).join("\n");
    scroll();
  }

  function flush() {
    if (fresh.length) {
      lines = lines.concat(fresh);
      const shown = fresh.filter(isShown);
      fresh = [];
      if (lines.length > MOST_LINES) {
        lines = lines.slice(-MOST_LINES);
        redraw();
      } else if (shown.length) {
        view.append((view.textContent ? "\n" : "") + shown.join("\n"));
        scroll();
      }
    }
  }

  function connect() {
    source?.close();
    lines = [];
    fresh = [];
    view.textContent = "";
    const query = new URLSearchParams();
    if (role.value) query.set("role", role.value);
    if (/^[0-9]+$/.test(rank.value)) query.set("rank", rank.value);
    box.querySelector("a").href = `/jobs/${job}/logs?${query}`;
    query.set("tail", TAIL);
    query.set("follow", "true");
    source = new EventSource(`/jobs/${job}/logs?${query}`);
    source.addEventListener("open", () => { status.textContent = ""; });
    source.addEventListener("log", (event) => fresh.push(event.data));
    source.addEventListener("end", (event) => {
      source.close();
      status.textContent = `The job has ended: ${event.data}. These are the last lines.`;
    });
    source.addEventListener("error", () => {
      status.textContent = source.readyState === EventSource.CLOSED ? "The log can't be read." : "Reconnecting…";
    });
  }

  setInterval(flush, 200);
  text.addEventListener("input", redraw);
  role.addEventListener("change", connect);
  rank.addEventListener("change", connect);
  connect();
}

document.querySelectorAll(".log").forEach(startLog);
