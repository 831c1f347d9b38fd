// Replaces the bars of a running race every half second until the race is over.
const PAUSE = 500; // milliseconds
const bars = document.getElementById("race-bars");
const status = document.getElementById("race-status");

async function follow() {
  let over = false;
  try {
    const response = await fetch(bars.dataset.address);
    if (response.ok) {
      show(await response.text());
      const standings = bars.firstElementChild;
      // Write the sentence only when it changes, because a screen reader reads out every change.
      if (status.textContent !== standings.dataset.sentence) status.textContent = standings.dataset.sentence;
      over = "over" in standings.dataset;
    }
    over ||= response.status === 404;
  } catch {
    // The shop did not answer. Try again after the pause.
  }
  if (!over) setTimeout(follow, PAUSE);
}

// Replace the bars. If a link in them has the focus, give the focus to the same link in the new bars.
function show(html) {
  const focused = bars.contains(document.activeElement) && document.activeElement.getAttribute("href");
  bars.innerHTML = html;
  if (focused) bars.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
}

if (bars?.dataset.address) setTimeout(follow, PAUSE);

// A second click would be refused because the first race runs, and the page would show only that refusal.
const button = document.querySelector("#race-start button");
button?.form.addEventListener("submit", () => { button.disabled = true; });
// The browser may restore the page with the button still disabled.
if (button) addEventListener("pageshow", () => { button.disabled = false; });
