// The script of a waiting room's page. It polls the visitor's place at the interval that the shop sets, and opens the
// page of the sale when it is their turn. Entering the room is a form, which needs no script.
//
// A turn begins when a poll finds that the visitor is admitted. A hidden page does not send this poll: its title says
// that it is the visitor's turn, and it polls when the visitor returns. The visitor keeps their place until then.

import { ask, local } from "./asking.js";
import { about, fill, page, show, pollPause } from "./page.js";
import { showTime } from "./times.js";

const NEWS = 8; // average seconds between two polls of the sale's figures
const NEWS_PER_SECOND = 5000; // approximate maximum of these polls per second, from all visitors of a room
const FASTEST = 2; // minimum seconds between two polls, however often the visitor returns to the page
const LONGEST_PAUSE = 60; // maximum seconds between two attempts without a response

const section = document.querySelector(".room");
const part = (name) => document.querySelector(`[data-shown=${name}]`);

let state = page.state;
let entered = page.entered; // number of places given
let opensAt = page.opensAt;
let access = ""; // token of the API
let failures = 0;
let timer = 0;
let polled = local(); // time of the latest poll; the first poll was made by the server, for this page
let polling = false;
let turnAt = turnOf(page); // time at which the turn comes, by the latest estimate

function turnOf({ estimate }) {
  return local() + 1000 * (estimate ?? Infinity);
}

function showTitle(name, standing) {
  const { title } = page.texts[name];
  document.title = title ? `${fill(title, standing)} · ${page.title}` : page.title;
}

function render(standing) {
  // If the visitor had a place and has no place now, they have lost it.
  if (standing.state !== "outside") state = standing.state;
  else if (state !== "outside") state = "lost";
  entered = standing.entered;
  turnAt = turnOf(standing);
  showTitle(state, standing);
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

// Return the visitor's place; undefined if the shop does not answer, or cannot answer now. Return null if the visitor
// has to log in again, or if the sale is over: the caller then reloads the page, which shows the reason.
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
  if (polling) return;
  if (document.hidden && local() + 1000 >= turnAt) { // The estimate is rounded up to a second.
    return part("paused").hidden ? showTitle("admitted", {}) : later(NEWS); // During a pause, no turn comes.
  }
  polling = true;
  polled = local();
  const standing = await look();
  polling = false;
  if (standing === null) return location.reload();
  if (standing?.state === "admitted") {
    // The turn may begin before the page expects it: right after the opening, or if the rate has risen. If the page is
    // hidden, stay on it, because the title of the sale's page would not say that it is the visitor's turn.
    if (document.hidden) return showTitle("admitted", {});
    return location.replace(page.sale);
  }
  failures = standing ? 0 : failures + 1;
  show(part("connection"), failures ? page.connection : "");
  if (standing) render(standing);
  return later(standing?.poll_after ?? 1 + Math.random() * Math.min(LONGEST_PAUSE, 2 ** failures));
}

function later(seconds) {
  clearTimeout(timer);
  timer = setTimeout(poll, 1000 * seconds);
}

// Poll the figures of the sale, which are the same for all visitors. So the page notices a change of the opening time,
// although the next poll of the place may be an hour away.
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
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) later(Math.max(0, FASTEST - (local() - polled) / 1000));
});
later(page.pollAfter);
news();
