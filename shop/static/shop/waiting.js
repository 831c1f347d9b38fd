// The page of a waiting room. It looks at the visitor's place when the shop says, and leads to the sale when it is their
// turn. Entering is a form, which needs no script.

import "./times.js";

const page = JSON.parse(document.getElementById("room-data").textContent);
const section = document.querySelector(".room");
const ANSWER_WITHIN = 25_000; // milliseconds, longer than the shop takes for any answer
const LONGEST_PAUSE = 60; // seconds between two attempts without an answer

let state = page.state;
let access = ""; // token of the API
let failures = 0;
let timer = 0;

const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) => values[name]);
const about = (seconds) =>
  seconds < 60 ? page.wait.soon : fill(page.wait.minutes, { minutes: Math.ceil(seconds / 60) });

// Write a text only if it has changed: a screen reader reads out every change.
function show(name, text) {
  const element = document.querySelector(`[data-shown=${name}]`);
  if (element.textContent !== String(text)) element.textContent = text;
}

function render(standing) {
  // Who had a place and has none now has lost it.
  if (standing.state !== "outside") state = standing.state;
  else if (state !== "outside") state = "lost";
  const { headline, note } = page.texts[state];
  section.dataset.state = state;
  show("headline", fill(headline, standing));
  show("note", note);
  show("entered", standing.entered);
  show("ahead", standing.ahead ?? "");
  show("wait", about(standing.estimate ?? 0));
  for (const part of document.querySelectorAll("[data-of]")) {
    part.hidden = !part.dataset.of.split(" ").includes(state);
  }
}

async function ask(address, headers = {}) {
  const response = await fetch(address, { cache: "no-store", headers, signal: AbortSignal.timeout(ANSWER_WITHIN) });
  return { status: response.status, body: response.ok ? await response.json() : null };
}

// Return where the visitor stands; null if they have to log in again, or the sale is over: the page itself knows.
async function look({ again = true } = {}) {
  if (!access) {
    const answer = await ask(page.token);
    if (answer.status >= 500) throw new Error(`status ${answer.status}`);
    access = answer.body?.access ?? "";
  }
  if (!access) return null;
  const answer = await ask(page.api, { Authorization: `Bearer ${access}` });
  if (answer.status === 401 && again) {
    access = ""; // The token has ended.
    return look({ again: false });
  }
  if (answer.status === 429 || answer.status >= 500) throw new Error(`status ${answer.status}`);
  return answer.body;
}

async function showStock() {
  const figures = (await ask(page.now)).body;
  document.querySelector("[data-shown=stock]").hidden = figures?.state !== "sold-out";
}

async function poll() {
  clearTimeout(timer);
  let wait;
  try {
    const standing = await look();
    if (!standing) return location.reload();
    if (standing.state === "admitted") return location.replace(page.sale);
    render(standing);
    await showStock();
    failures = 0;
    wait = standing.poll_after;
  } catch {
    failures += 1;
    wait = 1 + Math.random() * Math.min(LONGEST_PAUSE, 2 ** failures);
  }
  show("connection", failures ? page.connection : "");
  return later(wait);
}

function later(seconds) {
  timer = setTimeout(poll, 1000 * seconds);
}

addEventListener("online", poll);
later(page.pollAfter);
