// The page of a waiting room. It looks at the visitor's place when the shop says, and leads to the sale when it is their
// turn. Entering is a form, which needs no script.

import { ask } from "./asking.js";
import { about, fill, page, show, spread } from "./page.js";
import { showTime } from "./times.js";

const NEWS = 8; // seconds between two questions for the sale, on average
const NEWS_PER_SECOND = 5000; // about how many of them a room may send in a second, however many people are in it
const LONGEST_PAUSE = 60; // seconds between two attempts without an answer

const section = document.querySelector(".room");
const part = (name) => document.querySelector(`[data-shown=${name}]`);

let state = page.state;
let entered = page.entered; // places that were given
let opensAt = page.opensAt;
let access = ""; // token of the API
let failures = 0;
let timer = 0;

function render(standing) {
  // Who had a place and has none now has lost it.
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

// Return where the visitor stands; null if they have to log in again, or the sale is over: the page itself knows;
// undefined without an answer.
async function look({ again = true } = {}) {
  if (!access) {
    const answer = await ask(page.token);
    if (answer?.status !== 200) return undefined;
    access = answer.body.access ?? "";
  }
  if (!access) return null;
  const answer = await ask(page.api, { headers: { Authorization: `Bearer ${access}` } });
  if (answer?.status === 401 && again) {
    access = ""; // The token has ended.
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

// Ask what all visitors are told of the sale. The next look at the place may be an hour away: the shop has named it by
// the opening that was known then.
async function news() {
  const answer = await ask(page.now, { cache: "no-cache" });
  if (answer?.status === 200) {
    const sale = answer.body;
    part("paused").hidden = !sale.paused;
    part("estimate").hidden = sale.paused; // Nobody is admitted, so no wait can be named.
    part("stock").hidden = sale.state !== "sold-out";
    showTime(part("opens_at"), sale.opens_at);
    if (sale.opens_at !== opensAt) later(spread(entered) / 1000);
    opensAt = sale.opens_at;
  }
  setTimeout(news, 1000 * Math.max(NEWS, entered / NEWS_PER_SECOND) * (0.75 + Math.random() / 2));
}

addEventListener("online", poll);
later(page.pollAfter);
news();
