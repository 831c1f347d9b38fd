// The script of a waiting room's page. It polls the visitor's place at the interval that the shop sets, and opens the
// page of the sale when it is their turn. Entering the room is a form, which needs no script.

import { ask } from "./asking.js";
import { about, fill, page, show, pollPause } from "./page.js";
import { showTime } from "./times.js";

const NEWS = 8; // average seconds between two polls of the sale's figures
const NEWS_PER_SECOND = 5000; // approximate maximum of these polls per second, from all visitors of a room
const LONGEST_PAUSE = 60; // maximum seconds between two attempts without a response

const section = document.querySelector(".room");
const part = (name) => document.querySelector(`[data-shown=${name}]`);

let state = page.state;
let entered = page.entered; // number of places given
let opensAt = page.opensAt;
let access = ""; // token of the API
let failures = 0;
let timer = 0;

function render(standing) {
  // A visitor who had a place and has none now has lost it.
  if (standing.state !== "outside") state = standing.state;
  else if (state !== "outside") state = "lost";
  entered = standing.entered;
  const { headline, note } = page.texts[state];
  section.dataset.state = state;
  show(part("headline"), fill(headline, standing));
  show(part("note"), note);
  show(part("entered"), String(entered));
  show(part("ahead"), String(standing.ahead ?? ""));
  show(part("wait"), about(standing.estimate ?? 0));
  for (const each of document.querySelectorAll("[data-of]")) {
    each.hidden = !each.dataset.of.split(" ").includes(state);
  }
}

// Return the visitor's place; undefined without a response. Return null if they have to log in again or the sale is
// over: reloading the page then shows which.
async function look({ again = true } = {}) {
  if (!access) {
    const answer = await ask(page.token);
    if (answer?.status !== 200) return undefined;
    access = answer.body.access ?? "";
  }
  if (!access) return null;
  const answer = await ask(page.api, { headers: { Authorization: `Bearer ${access}` } });
  if (answer?.status === 401 && again) {
    access = ""; // The token has expired.
    return look({ again: false });
  }
  if (!answer || answer.status === 429 || answer.status >= 500) return undefined;
  return answer.status === 200 ? answer.body : null;
}

async function poll() {
  clearTimeout(timer);
  const standing = await look();
  if (standing === null) return location.reload();
  if (standing?.state === "admitted") return location.replace(page.sale);
  failures = standing ? 0 : failures + 1;
  show(part("connection"), failures ? page.connection : "");
  if (standing) render(standing);
  return later(standing?.poll_after ?? 1 + Math.random() * Math.min(LONGEST_PAUSE, 2 ** failures));
}

function later(seconds) {
  clearTimeout(timer);
  timer = setTimeout(poll, 1000 * seconds);
}

// Poll the figures of the sale, which are the same for all visitors. The next poll of the place may be an hour away, so
// without this, the page would not notice a change of the opening time.
async function news() {
  const answer = await ask(page.now, { cache: "no-cache" });
  if (answer?.status === 200) {
    const sale = answer.body;
    part("paused").hidden = !sale.paused;
    part("estimate").hidden = sale.paused; // During a pause nobody is admitted, so the wait cannot be estimated.
    part("stock").hidden = sale.state !== "sold-out";
    showTime(part("opens_at"), sale.opens_at);
    if (sale.opens_at !== opensAt) later(pollPause(entered) / 1000);
    opensAt = sale.opens_at;
  }
  setTimeout(news, 1000 * Math.max(NEWS, entered / NEWS_PER_SECOND) * (0.75 + Math.random() / 2));
}

addEventListener("online", poll);
later(page.pollAfter);
news();
