// The merged log of a job: live, and filtered by role, rank and text by the master. It holds the newest lines only.
"use strict";

const MOST_LINES = 5000;
const MOST_CHARS = 4_000_000;
const TAIL = 1000;
const RETRY_MS = 5000;
const TYPING_MS = 300;
const RECORD = /^(\[[a-z-]+-\d+\] )(\{"time": ".*)$/s;

// The same characters as in `spec/visible.py`, where they are explained.
const CONTROL = String.raw`\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff`;
const INVISIBLE = String.raw`\u200b\u2060-\u2064\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}`;
const HIDDEN_IN_RECORD = new RegExp(`[${CONTROL}${INVISIBLE}]`, "gu");
const HIDDEN_IN_LOG = new RegExp(`(\\x1b\\[[0-9;]*m|\\r)|[${CONTROL}]`, "gu");

function escaped(character) {
  const code = character.codePointAt(0);
  const [letter, digits] = code < 0x100 ? ["x", 2] : code < 0x10000 ? ["u", 4] : ["U", 8];
  return `\\${letter}${code.toString(16).padStart(digits, "0")}`;
}

const textOf = (value) => (typeof value === "string" ? value : JSON.stringify(value));

// A record in JSON as text, and other lines as they are, without control characters, like `rolecall logs` on a terminal.
function readable(line) {
  let shown = line;
  try {
    shown = recordAsText(line);
  } catch { // A part of a long line, or what a job printed, such as values that are nested too deeply.
  }
  return shown.replace(HIDDEN_IN_LOG, (character, allowed) => allowed ?? escaped(character));
}

// Throws unless what follows the worker is JSON that can be shown.
function recordAsText(line) {
  const found = RECORD.exec(line);
  if (!found) return line;
  const [, worker, json] = found;
  const { time, level, logger, message, traceback, ...others } = JSON.parse(json);
  if (![time, level, logger, message].every((part) => typeof part === "string")) return line;
  const fields = Object.entries(others).map(([name, value]) => `${name}=${textOf(value).replaceAll("\n", "\\n")}`).join(" ");
  const head = `${time.replace("T", " ")} ${level} ${logger} ${message}${fields && ` [${fields}]`}`;
  const text = traceback ? `${head}\n${textOf(traceback)}` : head;
  return worker + text.replace(HIDDEN_IN_RECORD, escaped).replaceAll("\n", `\n${worker}    `);
}

function startLog(box) {
  const job = box.dataset.job;
  const roles = box.dataset.roles.split(" ");
  box.innerHTML = `
    <div class="bar">
      <label>Role <select name="role"><option value="">all</option></select></label>
      <label hidden>Attempt <select name="attempt"><option value="">newest</option></select></label>
      <label>Rank in the gang <input name="rank" inputmode="numeric" size="4" pattern="[0-9]*" placeholder="all"></label>
      <label>Text <input name="text" type="search" maxlength="200" placeholder="search the whole log"></label>
      <label><input name="stay" type="checkbox" checked> Follow</label>
      <a class="button" download>Download</a>
      <span class="note" role="status"></span>
    </div>
    <pre class="lines" tabindex="0" role="region" aria-label="Log lines"></pre>`;
  const [role, attempt, rank, text, stay] = ["role", "attempt", "rank", "text", "stay"].map((name) => box.querySelector(`[name=${name}]`));
  role.append(...roles.map((name) => new Option(name, name)));
  const view = box.querySelector(".lines");
  const status = box.querySelector("[role=status]");
  let lines = [];
  let chars = 0;
  let fresh = 0; // The number of lines that are not shown yet.
  let source = null;
  let retry = 0;
  let typing = 0;
  let endedWith = Infinity; // The newest attempt when the stream ended.

  const scroll = () => { if (stay.checked) view.scrollTop = view.scrollHeight; };

  function clear() {
    lines = [];
    chars = 0;
    fresh = 0;
    view.replaceChildren();
  }

  // Drops old lines at once: a hidden page is flushed rarely.
  function add(line) {
    lines.push(line);
    chars += line.length;
    fresh += 1;
    while (lines.length > MOST_LINES || chars > MOST_CHARS) chars -= lines.shift().length;
  }

  // A line is a block, so that the browser lays out only new ones. Its line break is for copies of the text.
  function blockOf(line) {
    const block = document.createElement("span");
    block.textContent = `${readable(line)}\n`;
    return block;
  }

  function flush() {
    if (!fresh) return;
    const added = lines.slice(-fresh).map(blockOf);
    while (view.childElementCount + added.length > lines.length) view.firstChild.remove();
    view.append(...added);
    fresh = 0; // Last, so that an error loses no lines.
    scroll();
  }

  function found() {
    if (!text.value) return "These are the last lines.";
    return lines.length ? "These are the last lines with this text." : "No line contains this text.";
  }

  function connect() {
    source?.close();
    clearTimeout(retry);
    clearTimeout(typing);
    const query = new URLSearchParams();
    if (role.value) query.set("role", role.value);
    if (/^[0-9]+$/.test(rank.value)) query.set("rank", rank.value);
    if (attempt.value) query.set("attempt", attempt.value);
    if (text.value) query.set("text", text.value);
    box.querySelector("a").href = `/jobs/${job}/logs?${query}`;
    query.set("tail", TAIL);
    query.set("follow", "true");
    endedWith = Infinity;
    source = new EventSource(`/jobs/${job}/logs?${query}`);
    let continues = false;
    source.addEventListener("open", () => {
      status.textContent = text.value ? "Waiting for lines with this text…" : "";
      // A new stream begins with the last lines. A browser that reconnects by itself continues after the last event.
      if (!continues) clear();
      continues = true;
    });
    source.addEventListener("log", (event) => {
      status.textContent = "";
      add(event.data);
    });
    source.addEventListener("end", (event) => {
      source.close();
      endedWith = newestAttempt();
      const what = attempt.value ? `Attempt ${attempt.value} has ended` : `The job has ended: ${event.data}`;
      status.textContent = `${what}. ${found()}`;
    });
    source.addEventListener("error", () => {
      status.textContent = "Reconnecting…";
      // Browsers give up after an error status, for example while the database is unavailable.
      if (source.readyState === EventSource.CLOSED) recover(source);
    });
  }

  // Tries again, unless the error is final: the job is deleted, has no such worker, or the user is logged out. Only
  // another call tells the error.
  async function recover(failed) {
    const attempt = new AbortController();
    const answer = await fetch(failed.url, { signal: attempt.signal }).catch(() => null);
    const isFinal = answer && answer.status >= 400 && answer.status < 500 && answer.status !== 429;
    const problem = isFinal ? await problemOf(answer) : null;
    attempt.abort(); // Of a log that can be followed, only the status matters here.
    if (failed !== source) return; // The filter has changed meanwhile.
    if (!isFinal) {
      retry = setTimeout(connect, RETRY_MS);
      return;
    }
    clear();
    status.textContent = `The log can't be read: ${problem.detail}`;
  }

  // The part of the page that is reloaded has its number.
  const newestAttempt = () => Number(document.querySelector("[data-attempt]")?.dataset.attempt || 0);

  // Offers the attempts that have begun, and continues the log of a job that was retried.
  function offerAttempts() {
    const newest = newestAttempt();
    if (newest > endedWith && !attempt.value) connect();
    for (let one = attempt.options.length; one <= newest; one++) attempt.append(new Option(one, one));
    attempt.parentElement.hidden = newest < 2;
  }

  setInterval(flush, 200);
  offerAttempts();
  document.body.addEventListener("htmx:afterSwap", offerAttempts);
  for (const field of [text, rank]) {
    field.addEventListener("input", () => {
      clearTimeout(typing);
      typing = setTimeout(connect, TYPING_MS);
    });
  }
  role.addEventListener("change", connect);
  attempt.addEventListener("change", connect);
  connect();
}

document.querySelectorAll(".log").forEach(startLog);
