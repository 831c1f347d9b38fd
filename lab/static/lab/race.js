// The bars of a running race, asked for every half second until it is over.
const PAUSE = 500;
const bars = document.getElementById("race-bars");
const said = document.getElementById("race-said");

async function follow() {
  let over = false;
  try {
    const answer = await fetch(bars.dataset.address);
    if (answer.ok) {
      bars.innerHTML = await answer.text();
      const standing = bars.firstElementChild;
      // Written only when it changes: a screen reader reads out every change.
      if (said.textContent !== standing.dataset.said) said.textContent = standing.dataset.said;
      over = "over" in standing.dataset;
    }
    over ||= answer.status === 404;
  } catch {
    // The shop does not answer: perhaps the next time.
  }
  if (!over) setTimeout(follow, PAUSE);
}

if (bars?.dataset.address) setTimeout(follow, PAUSE);

// A second click would be refused, since the first race runs, and its answer would be all that is shown.
const button = document.querySelector("#race-start button");
button?.form.addEventListener("submit", () => { button.disabled = true; });
// Whoever comes back finds the page as he left it.
if (button) addEventListener("pageshow", () => { button.disabled = false; });
