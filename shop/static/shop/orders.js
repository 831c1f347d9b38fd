// The script of the order pages: show local times, count down the time left to pay, and poll an order that may change.

import { local } from "./asking.js";
import { show } from "./page.js";
import { showTimes } from "./times.js";

const SLOWEST = 15; // maximum seconds between two polls
const ANSWER_WITHIN = 25_000; // timeout in milliseconds, longer than the shop's own time limit for a request

function begin(root) {
  showTimes(root);
  for (const timer of root.querySelectorAll("[data-left]")) setTimer(timer, timer.dataset.left);
  for (const button of root.querySelectorAll("[data-print]")) button.hidden = false;
  count();
}

// `left` is the time left in milliseconds, by the shop's clock. Do not use the clock of the device, because it may be
// changed while the page is open.
function setTimer(timer, left) {
  timer.until = local() + Number(left);
  timer.over = false;
}

function digits(seconds) {
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60];
  const parts = hours ? [hours, minutes, seconds % 60] : [minutes, seconds % 60];
  return parts.map((part, index) => (index ? String(part).padStart(2, "0") : part)).join(":");
}

function count() {
  for (const timer of document.querySelectorAll("[data-left]")) {
    const seconds = Math.ceil((timer.until - local()) / 1000);
    timer.textContent = seconds > 0 ? timer.dataset.text.replace("{time}", digits(seconds)) : timer.dataset.over;
    if (seconds <= 0 && !timer.over) {
      timer.over = true;
      watch(1);
    }
  }
}

const announce = (text) => show(document.getElementById("announced"), text);
const showConnection = (text) => show(document.querySelector("[data-shown=connection]"), text);

// Fetch this page again, and replace the order if it has changed. Return whether to poll again.
async function look() {
  const order = document.getElementById("order");
  if (!order) return false;
  let response, text;
  try {
    response = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(ANSWER_WITHIN) });
    text = await response.text();
  } catch {
    showConnection(order.dataset.offline);
    return true;
  }
  showConnection("");
  if (response.status >= 500) return true;
  const found = new DOMParser().parseFromString(text, "text/html").getElementById("order");
  if (!found) {
    location.reload(); // The log-in has ended, or the order does not exist any more: show the shop's response.
    return false;
  }
  if (found.dataset.version !== order.dataset.version) {
    const focused = order.contains(document.activeElement);
    order.replaceWith(found);
    if (focused) document.getElementById("content").focus();
    begin(found);
    announce(found.querySelector("h1").textContent);
  } else {
    // Set the timers again, because a device that was asleep has counted too slowly.
    const timers = order.querySelectorAll("[data-left]");
    found.querySelectorAll("[data-left]").forEach((timer, at) => setTimer(timers[at], timer.dataset.left));
  }
  return Number(found.dataset.poll) > 0;
}

let watching = false;

// Poll until no change is expected. `pause` is the number of seconds until the first poll; 0 for no poll.
async function watch(pause) {
  if (watching) return;
  watching = true;
  while (pause) {
    await new Promise((resolve) => setTimeout(resolve, pause * 1000));
    if (document.hidden) continue;
    pause = (await look()) ? Math.min(pause * 1.2, SLOWEST) : 0;
  }
  watching = false;
}

document.addEventListener("click", (event) => {
  if (event.target.closest("[data-print]")) print();
});
addEventListener("pageshow", (event) => {
  if (event.persisted) watch(0.1);
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) watch(0.1);
});
begin(document);
setInterval(count, 250);
watch(Number(document.getElementById("order")?.dataset.poll));
