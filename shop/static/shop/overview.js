// Refresh the overview: replace the parts that have changed by what the shop has rendered. Nothing is asked while the
// tab is hidden.

const PAUSE = 1000; // milliseconds between an answer and the next question
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
    // The message says it.
  }
  if (lost.textContent !== failed) lost.textContent = failed;
  asking = false;
  timer = setTimeout(refresh, PAUSE);
}

const shown = {};

// Replace a part if it has changed, and keep the focus on the link that has it.
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
