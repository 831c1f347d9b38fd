// Refresh the overview: fetch the parts of the page as HTML, and replace those that have changed. Do nothing while the
// tab is hidden.

import { drawCharts, keepCharts } from "./charts.js";

const PAUSE = 1000; // milliseconds between a response and the next request
// Milliseconds within which a healthy shop usually answers. After that, the page marks the figures as old, and asks the
// health check whether to raise an alert. The page still waits for the answer: in a shop with very many orders, it may
// take longer without a fault, because Postgres has 10 s for the audit.
const LATE = 3000;
const ANSWER_WITHIN = 12_000; // timeout in milliseconds: the audit's 10 s, and time for the rest

const page = document.getElementById("overview");
const message = page.querySelector("[data-message]");
const lost = page.querySelector("[data-lost]");
const age = page.querySelector("[data-age]");
let asking = null; // the request under way
let timer = 0;
let shownAt = performance.now();
let ticking = 0;

function showAge() {
  age.textContent = `These figures are ${Math.round((performance.now() - shownAt) / 1000)} s old.`;
}

// If `old` is true, mark the figures as old and show their age. Otherwise remove the mark and the age.
function markOld(old) {
  page.classList.toggle("live-old", old);
  clearInterval(ticking);
  if (old) {
    showAge();
    ticking = setInterval(showAge, 1000);
  } else age.textContent = "";
}

async function isHealthy() {
  try {
    return (await fetch(page.dataset.health, { cache: "no-store", signal: AbortSignal.timeout(LATE) })).ok;
  } catch {
    return false;
  }
}

// While the request has no answer, mark the figures as old, and raise the alert if the health check fails.
async function watch(request) {
  while (asking === request) {
    markOld(true);
    if (!(await isHealthy()) && asking === request) lost.hidden = false;
    await new Promise((done) => setTimeout(done, PAUSE));
  }
}

async function refresh() {
  clearTimeout(timer);
  if (asking || document.hidden) return;
  const request = (asking = {});
  const late = setTimeout(watch, LATE, request);
  let said = "";
  let answered = false;
  try {
    const response = await fetch(page.dataset.live, { cache: "no-store", signal: AbortSignal.timeout(ANSWER_WITHIN) });
    if (response.redirected) said = "You are no longer logged in. Reload the page.";
    else if (response.ok) {
      const { parts } = await response.json();
      for (const [name, html] of Object.entries(parts)) show(name, html);
      answered = true;
      shownAt = performance.now();
    }
  } catch {
    // The alert below reports the failure.
  }
  clearTimeout(late);
  asking = null;
  markOld(!answered);
  lost.hidden = answered || said !== "";
  if (message.textContent !== said) message.textContent = said;
  timer = setTimeout(refresh, PAUSE);
}

const shown = {};
// Return the text of an alert without its figures. A number in a name, such as in "sku-1", is not a figure.
const words = (alert) => alert.textContent.replace(/(?<![\w-])[+-]?\d+/g, "");

// Replace a part if it has changed. If a link in it has the focus, give the focus to the same link in the new part.
function show(name, html) {
  const place = page.querySelector(`[data-part="${name}"]`);
  if (!place || shown[name] === html) return;
  shown[name] = html;
  const focused = place.contains(document.activeElement) && document.activeElement.getAttribute("href");
  const { content } = Object.assign(document.createElement("template"), { innerHTML: html });
  // A screen reader reads out each inserted alert. Keep it from reading an alert again if only a figure has changed.
  const told = new Set(Array.from(place.querySelectorAll("[data-alert]"), words));
  for (const alert of content.querySelectorAll("[data-alert]")) if (told.has(words(alert))) alert.removeAttribute("role");
  keepCharts(content);
  place.replaceChildren(content);
  if (name === "sales") drawCharts();
  if (focused) place.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
}

document.addEventListener("visibilitychange", refresh);
addEventListener("online", refresh);
drawCharts();
timer = setTimeout(refresh, PAUSE);
