// The script of a sale's page. It reacts when the sale changes, when another tab changes an intent, and when the
// browser is online again. Each product has a button that buys it (product.js). view.js decides what the button shows.

import { ask, clock } from "./asking.js";
import { tabs } from "./intents.js";
import { page, show, pollPause } from "./page.js";
import { Product } from "./product.js";
import { showTime } from "./times.js";
import { visit } from "./visit.js";

const POLL = 2000; // average milliseconds between two polls

visit.products = Array.from(document.querySelectorAll("[data-product]"), (card) => new Product(card));

let polling = false;
let timer = 0;
async function poll() {
  clearTimeout(timer);
  if (polling || document.hidden) return;
  polling = true;
  const answer = await ask(page.now, { cache: "no-cache" });
  polling = false;
  show(document.querySelector("[data-shown=connection]"), answer ? "" : page.notes.connection);
  if (answer?.status === 200) changed(visit.sale, answer.body);
  visit.render();
  if (visit.sale?.state !== "over" || visit.products.some((each) => each.unpaid)) {
    timer = setTimeout(poll, POLL * (0.75 + Math.random() / 2));
  }
}

function changed(before, sale) {
  visit.sale = sale;
  for (const time of document.querySelectorAll("time[data-shown]")) showTime(time, sale[time.dataset.shown]);
  if (before?.state === "paused" && sale.state !== "paused") {
    setTimeout(wakeAll, visit.jitter); // a random pause, so that not all pages send in the same millisecond
  }
  if (!visit.knowsRoom) visit.lookAtRoom();
  // The opening time has changed, so the pause that the shop set for the next poll is wrong.
  else if (visit.room && before.opens_at !== sale.opens_at) visit.lookAgain(pollPause(visit.room.entered));
  const toOpening = Date.parse(sale.opens_at) - clock.now();
  // Get a token in the minute before the opening, so that the first order need not wait for a token.
  if (visit.login && toOpening > 0 && toOpening < 60_000) visit.identify(120_000);
  visit.products.filter((each) => each.overdue).forEach((each) => each.resume());
}

const wakeAll = () => visit.products.forEach((each) => each.wake());
const resumeAll = () => visit.products.forEach((each) => each.resume());

document.addEventListener("visibilitychange", () => {
  if (document.hidden) return;
  if (visit.login?.guest && !page.guests) visit.endToken(); // The guest may have become a customer on another page.
  poll();
  resumeAll();
  visit.identify().then(() => visit.lookAtRoom());
});
addEventListener("online", () => { poll(); wakeAll(); });
tabs.addEventListener("message", (event) => {
  if (visit.login) visit.products.find((each) => each.name === event.data)?.follow();
});

setInterval(() => visit.render(), 200);
poll();
resumeAll();
