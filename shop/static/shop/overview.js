// Refresh the overview: fetch the parts of the page as HTML, and replace those that have changed. Do nothing while the
// tab is hidden.

const PAUSE = 1000; // milliseconds between a response and the next request
const ANSWER_WITHIN = 10_000;

const page = document.getElementById("overview");
const lost = page.querySelector("[data-lost]");
let asking = false;
let timer = 0;

async function refresh() {
  clearTimeout(timer);
  if (asking || document.hidden) return;
  asking = true;
  let failed = "The overview is not refreshed: no answer from the shop. It tries again by itself.";
  try {
    const response = await fetch(page.dataset.live, { cache: "no-store", signal: AbortSignal.timeout(ANSWER_WITHIN) });
    if (response.redirected) failed = "You are no longer logged in. Reload the page.";
    else if (response.ok) {
      const { parts } = await response.json();
      for (const [name, html] of Object.entries(parts)) show(name, html);
      failed = "";
    }
  } catch {
    // The message below reports the failure.
  }
  if (lost.textContent !== failed) lost.textContent = failed;
  asking = false;
  timer = setTimeout(refresh, PAUSE);
}

const shown = {};
// The text of an alert without its figures. A number in a name, such as in "sku-1", is no figure.
const words = (alert) => alert.textContent.replace(/(?<![\w-])[+-]?\d+/g, "");

// Replace a part if it has changed. If a link in it has the focus, give the focus to the same link in the new part.
function show(name, html) {
  const place = page.querySelector(`[data-part="${name}"]`);
  if (!place || shown[name] === html) return;
  shown[name] = html;
  const focused = place.contains(document.activeElement) && document.activeElement.getAttribute("href");
  const { content } = Object.assign(document.createElement("template"), { innerHTML: html });
  // A screen reader reads out each inserted alert. Do not repeat one in which only a figure has changed.
  const told = new Set(Array.from(place.querySelectorAll("[data-alert]"), words));
  for (const alert of content.querySelectorAll("[data-alert]")) if (told.has(words(alert))) alert.removeAttribute("role");
  place.replaceChildren(content);
  if (focused) place.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
}

document.addEventListener("visibilitychange", refresh);
addEventListener("online", refresh);
timer = setTimeout(refresh, PAUSE);
