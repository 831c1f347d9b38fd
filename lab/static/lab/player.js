// Steps through the run on a rung's page: marks the step and its line of source, and shows the state after it.
// Everything that it shows is in the page already. Without scripts, the page shows the whole run and its end.

const player = document.getElementById("player");
if (player) {
  start(player);
}

function start(player) {
  const PAUSE = 1100; // milliseconds between two steps of a run that plays
  const BEFORE = -1; // the place before the first step
  const steps = [...player.querySelectorAll(".steps > li")];
  const panels = [...player.querySelectorAll(".panel")];
  const picture = player.querySelector(".lanes-and-steps");
  const controls = player.querySelector(".controls");
  const button = (name) => controls.querySelector(`[data-do=${name}]`);
  const full = picture.querySelector(".past").getAttribute("height");
  const row = steps[0].getBoundingClientRect().height;
  let at = BEFORE;
  let timer = null;

  const actions = { first: () => show(BEFORE), back: () => show(at - 1), on: () => show(at + 1), play: toggle };

  for (const name of Object.keys(actions)) {
    button(name).addEventListener("click", () => {
      if (name !== "play") stop();
      actions[name]();
    });
  }
  steps.forEach((step, place) => step.addEventListener("click", () => { stop(); show(place); }));
  document.addEventListener("keydown", (event) => {
    const name = { ArrowLeft: "back", ArrowRight: "on", " ": "play" }[event.key];
    if (!name || event.ctrlKey || event.metaKey || event.altKey) return;
    // Keys that have a meaning for the focused element keep that meaning.
    if (event.target.closest("input, select, textarea, pre")) return;
    if (name === "play" && event.target.closest("a, button, summary")) return;
    event.preventDefault();
    if (name !== "play") stop();
    actions[name]();
  });

  controls.hidden = false;
  show(at, { scroll: false });

  function show(place, { scroll = true } = {}) {
    at = Math.max(BEFORE, Math.min(place, steps.length - 1));
    steps.forEach((step, other) => {
      step.classList.toggle("later", other > at);
      if (other === at) step.setAttribute("aria-current", "step");
      else step.removeAttribute("aria-current");
    });
    const step = steps[at];
    const last = at === steps.length - 1;
    panels.forEach((panel) => { panel.hidden = panel.dataset.panel !== step?.dataset.panel; });
    const now = player.querySelector(".now code");
    now.textContent = step ? `${step.querySelector(".who").textContent} ${step.querySelector("code").textContent}` : "";
    player.querySelector(".before").hidden = Boolean(step);
    player.querySelector(".end").hidden = !last;
    controls.querySelector("output").textContent = `${at + 1} / ${steps.length}`;
    button("first").disabled = button("back").disabled = !step;
    button("on").disabled = last;
    veil(at);
    mark(step?.dataset.source ?? "", scroll);
    if (scroll && step) reveal(picture, step);
    // On a phone, the picture has no box of its own, and the buttons stay in view while the page follows the step.
    if (scroll && step && getComputedStyle(controls).position === "sticky") step.scrollIntoView({ block: "nearest" });
  }

  function veil(place) {
    [...picture.querySelectorAll(".mark")].forEach((drawn, other) => drawn.classList.toggle("later", other > place));
    picture.querySelector(".past").setAttribute("height", place === steps.length - 1 ? full : row * (place + 1));
  }

  function mark(source, scroll) {
    document.querySelectorAll(".line.current").forEach((line) => line.classList.remove("current"));
    const [name, number] = source.split(":");
    const file = name && document.querySelector(`.file[data-file="${CSS.escape(name)}"]`);
    if (!file) return;
    if (scroll) document.querySelectorAll("details.file").forEach((other) => { other.open = other === file; });
    const line = file.querySelector(`[data-line="${number}"]`);
    if (!line) return;
    line.classList.add("current");
    reveal(file.querySelector("pre"), line);
  }

  // Scrolls inside the box only, so that the page does not move under the reader.
  function reveal(box, inner) {
    const outside = box.getBoundingClientRect();
    const inside = inner.getBoundingClientRect();
    if (inside.top < outside.top + 40) box.scrollTop -= outside.top + 40 - inside.top;
    if (inside.bottom > outside.bottom - 40) box.scrollTop += inside.bottom - outside.bottom + 40;
  }

  function toggle() {
    if (timer) return stop();
    show(at === steps.length - 1 ? BEFORE : at + 1);
    timer = setInterval(() => (at === steps.length - 1 ? stop() : show(at + 1)), PAUSE);
    button("play").setAttribute("aria-pressed", "true");
  }

  function stop() {
    clearInterval(timer);
    timer = null;
    button("play").setAttribute("aria-pressed", "false");
  }
}
