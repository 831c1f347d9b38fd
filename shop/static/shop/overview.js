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

// Replace a part if it has changed. If a link in it has the focus, give the focus to the same link in the new part.
function show(name, html) {
  const place = page.querySelector(`[data-part="${name}"]`);
  if (!place || shown[name] === html) return;
  shown[name] = html;
  const focused = place.contains(document.activeElement) && document.activeElement.getAttribute("href");
  place.innerHTML = html;
  if (focused) place.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
}

document.addEventListener("visibilitychange", refresh);
addEventListener("online", refresh);
timer = setTimeout(refresh, PAUSE);
