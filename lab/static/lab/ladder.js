// Filters the rungs of the ladder while the reader types. The server does the same when the form is sent.

const form = document.getElementById("filter");
const found = document.getElementById("found");
const all = document.getElementById("all");
const rungs = [...document.querySelectorAll(".rung")];

function filter() {
  const asked = new FormData(form);
  const words = asked.get("text").toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const rung of rungs) {
    const fits = ["track", "level", "claim"].every((name) => ["", rung.dataset[name]].includes(asked.get(name)));
    rung.hidden = !fits || !words.every((word) => rung.dataset.text.includes(word));
    shown += !rung.hidden;
  }
  found.textContent = found.dataset.sentence.replace("#", shown);
  all.hidden = shown === rungs.length;
  for (const section of document.querySelectorAll(".level, .track")) {
    section.hidden = !section.querySelector(".rung:not([hidden])");
  }
  const query = new URLSearchParams([...asked].filter(([, value]) => value)).toString();
  history.replaceState(null, "", query ? `?${query}` : location.pathname + location.hash);
}

form.addEventListener("input", filter);
form.addEventListener("submit", (event) => {
  event.preventDefault();
  filter();
});
all.addEventListener("click", (event) => {
  event.preventDefault();
  for (const field of form.elements) field.value = "";
  filter();
  form.elements.text.focus();
});
form.querySelector("button").hidden = true;
// The browser keeps what was typed when it goes back or reloads.
addEventListener("pageshow", filter);
