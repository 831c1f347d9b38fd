// Buying on the page of a sale. The button is a state machine, and `Product.view` is its table.
//
// One press is one intent with one idempotency key. The key is kept in IndexedDB before its request leaves, and the same
// request is sent until the shop has answered it. So a lost answer, a reload or a second tab never buys twice.

import { ask, clock, local } from "./asking.js";
import { keep, newKey, tabs } from "./intents.js";

const POLL = 2000; // milliseconds between two questions, on average
const LONGEST_PAUSE = 15_000;
const SETTLED = 3000; // after which the figures of the shop show what it has just refused
const JITTER = 1000 * Math.random(); // so that not all pages act in the moment in which the sale opens

const page = JSON.parse(document.getElementById("sale-data").textContent);
const { labels, notes } = page;

let sale; // the latest now.json
let login; // the access token of the customer; null if nobody has logged in; undefined until the shop has said
let customer; // user id of the latest login
let room = null; // where the customer stands in the waiting room, if the sale has one and the shop has said
let roomTimer = 0;
let waited = false; // this page has shown the countdown

const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) => values[name]);
const money = (amount) => `${amount} ${sale.currency}`;
const about = (seconds) =>
  seconds < 60 ? page.wait.soon : fill(page.wait.minutes, { minutes: Math.ceil(seconds / 60) });
const backoff = (failures) => Math.random() * Math.min(LONGEST_PAUSE, 500 * 2 ** failures);

// Look where the customer stands in the waiting room, and again when the shop says.
async function lookAtRoom() {
  clearTimeout(roomTimer);
  if (!sale?.waiting_room || !login || document.hidden) return;
  const answer = await ask(page.standing, { headers: { Authorization: `Bearer ${login.access}` } });
  if (answer?.status === 200) room = answer.body;
  else if (answer?.status === 401 && login) login.until = 0;
  for (const each of products) {
    if (room?.ticket && each.refusal?.type === "waiting-room") each.refusal = null;
  }
  render();
  const wait = 100 + 1000 * (answer?.body?.poll_after ?? 5);
  roomTimer = setTimeout(async () => { if (await identify()) lookAtRoom(); }, wait);
}

// Return the login, with a token that is valid for `margin` milliseconds more; undefined without an answer.
let identifying = null;
function identify(margin = 0) {
  if (login && local() + margin < login.until) return login;
  identifying ??= newLogin().finally(() => { identifying = null; });
  return identifying;
}

async function newLogin() {
  const answer = await ask(page.token);
  if (answer?.status !== 200) return undefined;
  const before = login && customer;
  const { access, expires_in: seconds } = answer.body;
  login = access && { access, until: local() + 900 * seconds };
  customer = answer.body.customer ?? customer;
  if (!login || customer !== before) {
    room = null;
    lookAtRoom();
  }
  for (const each of products) {
    if (login ? customer !== before : !each.active) each.intent = login && (await each.load());
  }
  return login;
}

function duration(milliseconds) {
  const seconds = Math.max(0, Math.ceil(milliseconds / 1000));
  const [days, hours] = [Math.floor(seconds / 86_400), Math.floor(seconds / 3600) % 24];
  const two = (number) => String(Math.floor(number)).padStart(2, "0");
  const time = `${two((seconds % 3600) / 60)}:${two(seconds % 60)}`;
  if (days) return fill(page.days, { days, time: `${two(hours)}:${time}` });
  return hours ? `${hours}:${time}` : time;
}

class Product {
  intent = null; // { key, body, done, location, place, order, spent }: as it is kept
  wanted = null; // a press whose key is not kept yet
  refusal = null; // the problem that has ended the last press
  emptyUntil = -Infinity;
  trouble = ""; // why the request is sent again: "busy", "offline" or "paused"
  failures = 0;
  going = false;
  wake = () => {};

  constructor(card) {
    this.card = card;
    this.id = Number(card.dataset.product);
    this.agreed = card.dataset.price; // the price that the buyer has seen, and orders at
    this.form = card.querySelector("form");
    this.button = card.querySelector("button");
    this.link = card.querySelector("a.button");
    this.note = card.querySelector(".note");
    this.form.addEventListener("submit", (event) => this.press(event));
  }

  get name() { return `${page.sale}/${customer}/${this.id}`; } // what the intent is kept under
  get item() { return sale.items.find((item) => item.product === this.id); }
  get price() { return this.refusal?.price ?? this.item.price; }
  get atLimit() { return this.refusal?.type === "over-limit" && this.refusal.taken >= this.refusal.limit; }
  get active() { return Boolean(this.wanted || (this.intent && !this.intent.done)); }

  load() { return keep(this.name, (kept) => kept).catch(() => null); }

  // What the buyer sees now. `label`: of the button, which can be pressed if `press` is set; without one it is hidden.
  view() {
    const { item } = this;
    const { order, location, place } = this.intent ?? {};
    const now = clock.now();
    const isOpen = item && now >= Date.parse(sale.opens_at) + JITTER && now < Date.parse(sale.closes_at);
    const empty = !item || item.left === 0 || local() < this.emptyUntil;
    const toLogin = { href: page.login, label: labels.login };
    const toRoom = { href: page.room, label: labels.enter };
    const toOrder = { href: `${page.orders}${order?.id}/` };

    if (this.active) {
      if (login === null) return { state: "login", link: toLogin, note: notes["signed-out"] };
      if (this.trouble === "offline") return { state: "offline", label: labels.offline, note: notes.offline };
      if (this.trouble === "paused") return { state: "paused", label: labels.paused, note: notes["until-resumed"] };
      const queued = { state: "queued", label: fill(labels.queued, { place: place ?? "…" }), note: notes.queued };
      if (location) return queued;
      return { state: "buying", label: labels.buying, note: notes[this.trouble || "buying"] };
    }
    if (order?.state === "pending" || order?.state === "paid") {
      const { quantity } = this.intent.body.items[0];
      const admitted = !sale?.waiting_room || room?.ticket;
      const again = isOpen && !empty && login && admitted && quantity < (item.limit ?? Infinity);
      const time = duration(Date.parse(order.pay_by) - now);
      const link = { ...toOrder, label: fill(labels[order.state], { time }) };
      const note = this.reason() || notes[order.state];
      return { state: order.state, link, note, label: again && labels.again, press: again, quiet: true };
    }
    const ended = order ? notes[order.state] : this.reason();
    const why = order?.state === "rejected" && { ...toOrder, label: labels.order, quiet: true };
    if (!item || now >= Date.parse(sale.closes_at)) {
      return { state: "over", label: labels.over, note: ended, link: why };
    }
    if (!isOpen) {
      waited = true;
      const label = fill(labels.coming, { time: duration(Date.parse(sale.opens_at) - now) });
      if (login === null) return { state: "coming", label, link: { ...toLogin, quiet: true }, note: notes.login };
      if (room?.state === "draw") return { state: "draw", label, note: notes.draw };
      const outside = room?.state === "outside" && { link: toRoom, note: notes["room-coming"] };
      return { state: "coming", label, ...outside };
    }
    if (login === null) return { state: "login", link: toLogin };
    if (sale.state === "paused") return { state: "paused", label: labels.paused, note: notes.paused };
    if (empty) return { state: "sold-out", label: labels["sold-out"], note: notes["sold-out"] };
    if (sale.waiting_room && !room?.ticket) {
      const note = this.reason();
      if (room?.state === "waiting") {
        const values = { ...room, wait: about(room.estimate) };
        return { state: "waiting", label: fill(labels.waiting, values), note: fill(notes.waiting, values) };
      }
      if (room?.state === "outside" || room?.state === "ended") {
        return { state: "room", link: toRoom, note: note || notes[room.state] };
      }
      return { state: "room", label: labels.room, note: note || (room && notes.draw) };
    }
    if (this.atLimit) {
      const link = { href: page.orders, label: labels.orders, quiet: true };
      return { state: "over-limit", label: labels["over-limit"], note: this.reason(), link };
    }
    if (this.price !== this.agreed) {
      const prices = { price: money(this.price), before: money(this.agreed) };
      return { state: "price", label: fill(labels.price, prices), press: true, note: fill(notes.price, prices) };
    }
    const turn = room?.ticket && fill(notes.admitted, { time: dates.format(new Date(room.ends_at)) });
    const note = ended || turn || (waited ? notes.opened : "");
    return { state: "open", label: labels.open, press: true, note, link: why };
  }

  // The sentence for the problem that has ended the last press.
  reason() {
    if (!this.refusal || this.refusal.type === "price-changed") return "";
    const { type, left } = this.refusal;
    const kind = (type === "sold-out" && left && "too-few") || (this.atLimit && "limit-reached") || type;
    return fill(notes[kind] ?? notes.refused, this.refusal);
  }

  render() {
    if (!sale) return;
    const { state, label, press, quiet, link, note } = this.view();
    const focused = document.activeElement;
    this.card.dataset.state = state;
    show(this.button, label || "");
    this.button.hidden = !label;
    this.button.classList.toggle("quiet", Boolean(quiet));
    this.button.setAttribute("aria-disabled", press ? "false" : "true"); // `disabled` would lose the focus
    this.link.hidden = !link;
    if (link) {
      show(this.link, link.label);
      this.link.href = link.href;
      this.link.classList.toggle("quiet", Boolean(link.quiet));
    }
    if (focused === this.button && this.button.hidden) this.link.focus();
    show(this.note, note || "");
    const left = this.item?.left;
    show(this.card.querySelector("[data-shown=left]"), left ? fill(page.left[left] ?? page.left.exact, { left }) : "");
    if (this.item) show(this.card.querySelector("[data-shown=price]"), money(this.price));
  }

  press(event) {
    if (!sale) return; // The figures have not come yet: the form buys without this script.
    event.preventDefault();
    if (!this.view().press) return;
    const quantity = Number(this.form.elements.quantity.value);
    this.agreed = this.price;
    this.refusal = null;
    const body = { sale: page.sale, items: [{ product: this.id, quantity, price: this.agreed }] };
    this.wanted = { body, shown: JSON.stringify(this.intent) };
    this.wake();
    this.render();
    this.goOn();
  }

  // Bring the press, or an intent that was found, to its end.
  async goOn() {
    if (this.going) return;
    this.going = true;
    while (this.active) {
      const who = await identify();
      if (who === null) break;
      let wait = 0;
      if (!who) wait = this.failed("offline");
      else if (this.wanted) await this.begin();
      else if (this.active) wait = await this.attempt();
      this.render();
      if (wait && this.active) await this.pause(wait);
    }
    this.wanted = null;
    this.going = false;
    this.render();
  }

  // Keep the intent before its request leaves. If another tab has begun or ended one that this tab has not shown yet,
  // the buyer has not agreed to a second one: show that instead.
  async begin() {
    const { body, shown } = this.wanted;
    try {
      this.intent = await keep(this.name, (kept) => {
        if (kept && JSON.stringify(kept) !== shown) return kept;
        // A key is used until it has an order. A refusal leaves it free: should an earlier attempt, whose answer was
        // lost, have bought after all, then the next press finds that order and does not buy again.
        const used = !kept || kept.order || kept.spent;
        return { key: used ? newKey() : kept.key, body, done: false };
      });
      tabs.postMessage(this.name);
    } catch {
      this.form.submit(); // Nothing can be kept in this browser: buy with the form, whose key is in its address.
    }
    this.wanted = null;
    this.failures = 0;
    this.trouble = "";
  }

  // Send the request once, or ask for the queued order. Return the pause before the next attempt; 0 after the last.
  async attempt() {
    const { key, body, location } = this.intent;
    const headers = { Authorization: `Bearer ${login.access}` };
    const ticket = room?.ticket && { "Waiting-Ticket": room.ticket };
    const post = {
      method: "POST",
      headers: { ...headers, ...ticket, "Content-Type": "application/json", "Idempotency-Key": key },
      body: JSON.stringify(body),
    };
    const answer = await (location ? ask(location, { headers }) : ask(page.api, post));
    if (!answer) return this.failed("offline");
    const wait = 1000 * answer.headers.get("Retry-After");
    if (answer.body?.type?.endsWith("/sale-paused/")) return this.failed("paused", wait);
    if (wait || answer.status >= 500) return this.failed("busy", wait);
    if (answer.status === 401 && this.failures < 3) {
      if (login) login.until = 0; // The token has ended.
      return this.failed("busy");
    }
    this.failures = 0;
    this.trouble = "";
    const said = answer.body;
    const type = answer.status < 300 ? "" : said.type?.split("/").at(-2);
    // The clocks of two servers differ a little: in the moments after the opening, the shop is asked again.
    const opening = Math.abs(clock.now() - Date.parse(sale?.opens_at)) < SETTLED;
    if (type === "sale-not-open" && opening) return this.failed("busy", 500);
    if (said.state === "queued") {
      await this.change(key, { location: location ?? answer.headers.get("Location"), place: said.place });
      return POLL / 2 + backoff(0);
    }
    if (answer.status < 300) await this.change(key, { done: true, location: undefined, order: summary(said) });
    else await this.refused(key, type, said);
    return 0;
  }

  async refused(key, type, problem) {
    const price = problem.items?.find((item) => item.product === this.id)?.price;
    if (type === "waiting-room") {
      room = null;
      lookAtRoom();
    }
    if (type === "sold-out" && !problem.left) this.emptyUntil = local() + SETTLED;
    else this.refusal = { ...problem, type, price };
    await this.change(key, { done: true, spent: type === "key-reused" });
  }

  // Keep what the shop has answered, unless another tab has begun a newer intent meanwhile.
  async change(key, changes) {
    const changed = (kept) => (kept && kept.key !== key ? kept : { ...(kept ?? this.intent), ...changes });
    this.intent = await keep(this.name, changed).catch(() => changed(null)); // Its key is kept, which is what matters.
    tabs.postMessage(this.name);
  }

  failed(trouble, least = 0) {
    this.trouble = trouble;
    this.failures += 1;
    return least + 100 + backoff(this.failures);
  }

  pause(milliseconds) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, milliseconds);
      this.wake = () => { clearTimeout(timer); resolve(); };
    });
  }

  // Find the intent that this tab, or another one, has begun before. Ask what has become of its order since.
  async resume() {
    if (!(await identify())) return;
    if (!this.active) this.intent = await this.load();
    const { key, order } = this.intent ?? {};
    if (order?.state === "pending") {
      const answer = await ask(`${page.api}${order.id}/`, { headers: { Authorization: `Bearer ${login?.access}` } });
      if (answer?.status === 200) await this.change(key, { order: summary(answer.body) });
    }
    this.render();
    this.goOn();
  }

  get overdue() {
    const { order } = this.intent ?? {};
    return order?.state === "pending" && clock.now() > Date.parse(order.pay_by);
  }
}

const summary = ({ id, state, pay_by }) => ({ id, state, pay_by });

// Write a text only if it has changed: a screen reader reads out every change.
function show(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const dates = new Intl.DateTimeFormat(document.documentElement.lang, {
  ...{ year: "numeric", month: "short", day: "numeric" },
  ...{ hour: "2-digit", minute: "2-digit", hourCycle: "h23", timeZoneName: "short" },
});
const products = Array.from(document.querySelectorAll("[data-product]"), (card) => new Product(card));
const render = () => products.forEach((each) => each.render());

let polling = false;
let timer = 0;
async function poll() {
  clearTimeout(timer);
  if (polling || document.hidden) return;
  polling = true;
  const answer = await ask(page.now, { cache: "no-cache" });
  polling = false;
  show(document.querySelector("[data-shown=connection]"), answer ? "" : notes.connection);
  if (answer?.status === 200) {
    if (sale?.state === "paused" && answer.body.state !== "paused") {
      setTimeout(() => products.forEach((each) => each.wake()), JITTER); // not all pages in the same millisecond
    }
    sale = answer.body;
    for (const time of document.querySelectorAll("time[data-shown]")) {
      time.dateTime = sale[time.dataset.shown];
      show(time, dates.format(new Date(time.dateTime)));
    }
    if (!room && !roomTimer) lookAtRoom();
    const toOpening = Date.parse(sale.opens_at) - clock.now();
    if (login && toOpening > 0 && toOpening < 60_000) identify(120_000); // so that the first order need not wait for it
    products.filter((each) => each.overdue).forEach((each) => each.resume());
  }
  render();
  const unpaid = products.some((each) => each.intent?.order?.state === "pending");
  if (sale?.state !== "over" || unpaid) timer = setTimeout(poll, POLL * (0.75 + Math.random() / 2));
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) return;
  if (login) login.until = 0; // Somebody else may have logged in on another page.
  poll();
  products.forEach((each) => each.resume());
  identify().then(lookAtRoom);
});
addEventListener("online", () => { poll(); products.forEach((each) => each.wake()); });
tabs.addEventListener("message", async (event) => {
  const product = login && products.find((each) => each.name === event.data);
  if (!product) return;
  product.intent = await product.load();
  product.wake();
  product.render();
  product.goOn();
});

setInterval(render, 200);
poll();
products.forEach((each) => each.resume());
