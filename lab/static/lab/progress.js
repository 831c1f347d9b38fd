// Remembers in this browser which rungs the reader has done, and where on the path of the first ten minutes they are.
// Without storage, or when the browser forbids it, the pages work and remember nothing.

const KEY = "last-unit-lab";

function load() {
  try {
    const stored = JSON.parse(localStorage.getItem(KEY));
    return { done: { ...stored?.done }, at: typeof stored?.at === "string" ? stored.at : "" };
  } catch {
    return { done: {}, at: "" };
  }
}

function save(progress) {
  try {
    localStorage.setItem(KEY, JSON.stringify(progress));
  } catch {
    // Not allowed, or full: the page goes on without it.
  }
}

// Notes what the page shows, after it is loaded and after each choice that replaces its content.
function note() {
  const place = document.getElementById("play");
  if (!place) return;
  const progress = load();
  if ("done" in place.dataset) progress.done[place.dataset.rung] = true;
  if ("station" in place.dataset) progress.at = place.dataset.station;
  save(progress);
}

function show() {
  const progress = load();
  for (const mark of document.querySelectorAll("[data-done-mark]")) {
    mark.hidden = progress.done[mark.dataset.doneMark] !== true;
  }
  for (const link of document.querySelectorAll("[data-resume]")) {
    if (!progress.at.startsWith(link.dataset.resume)) continue;
    link.href = progress.at;
    link.hidden = false;
    link.nextElementSibling?.classList.add("quiet");
  }
}

note();
show();
document.body.addEventListener("htmx:afterSettle", note);
// The browser may restore a page as it was before a rung was done.
addEventListener("pageshow", show);
