// A product of the sale, and what happens when its button is pressed.
//
// Each press makes one intent with one idempotency key. The key is stored in IndexedDB before the request is sent, and
// the same request is repeated until the shop responds. So a lost response, a reload or a second tab never buys twice.

import { ask, clock, local, retryAfter } from "./asking.js";
import { keep, newKey, tabs } from "./intents.js";
import { fill, page, show } from "./page.js";
import { money, view } from "./view.js";
import { visit } from "./visit.js";

const POLL = 1000; // minimum milliseconds between two polls of a queued order
const LONGEST_PAUSE = 15_000;
// Milliseconds after "sold out" in which the page's figures may be older than the refusal: a web server caches them for
// 2 s, the proxy for 1 s, and this page for up to 2.5 s. Until then, the button must not show "Buy" again.
const SETTLED = 6000;
const LONG_AGO = 900_000; // milliseconds: a page that is opened again sends no unanswered press that is older
const OPENING = 3000; // milliseconds around the opening in which servers may disagree whether the sale is open

const backoff = (failures) => Math.random() * Math.min(LONGEST_PAUSE, 500 * 2 ** failures);
const summary = ({ id, state, pay_by }) => ({ id, state, pay_by });

export class Product {
  intent = null; // the stored intent: { key, body, at, done, location, place, order, spent }
  wanted = null; // a press whose key is not stored yet
  refusal = null; // the problem document that ended the last press
  emptyUntil = -Infinity;
  trouble = ""; // why the request is repeated: "busy", "offline" or "paused"
  failures = 0;
  unauthorized = 0; // responses in a row that have refused the token
  going = false;
  wake = () => {};

  constructor(card) {
    this.card = card;
    this.id = Number(card.dataset.product);
    this.agreed = card.dataset.price; // the price that the buyer has seen, which the order contains
    this.form = card.querySelector("form");
    this.button = card.querySelector("button");
    this.link = card.querySelector("a.button");
    this.guest = card.querySelector("[data-guest]"); // null if the sale allows no guests
    this.note = card.querySelector(".note");
    this.form.addEventListener("submit", (event) => this.press(event));
  }

  get name() { return this.nameFor(visit.customer); } // name of the stored intent
  get item() { return visit.sale.items.find((item) => item.product === this.id); }
  get price() { return this.refusal?.price ?? this.item.price; }
  get empty() { return !this.item || this.item.left === 0 || local() < this.emptyUntil; }
  get atLimit() { return this.refusal?.type === "over-limit" && this.refusal.taken >= this.refusal.limit; }
  get active() { return Boolean(this.wanted || (this.intent && !this.intent.done)); }
  get unpaid() { return this.intent?.order?.state === "pending"; }
  get overdue() { return this.unpaid && clock.now() > Date.parse(this.intent.order.pay_by); }

  // The text for the units left; empty if the sale hides them.
  get left() {
    const left = this.item && this.empty ? 0 : this.item?.left;
    return left === undefined || left === null ? "" : fill(page.left[left] ?? page.left.exact, { left });
  }

  nameFor(customer) { return `${page.sale}/${customer}/${this.id}`; }
  load(customer = visit.customer) { return keep(this.nameFor(customer), (kept) => kept).catch(() => null); }

  // Show the stored intent, unless somebody else has logged in meanwhile.
  async reload() {
    const { name } = this;
    const intent = await this.load();
    if (name === this.name) this.intent = intent;
  }

  // The waiting room has admitted the customer, so forget a refusal that sent them to the waiting room.
  admitted() {
    if (this.refusal?.type === "waiting-room") this.refusal = null;
  }

  render() {
    if (!visit.sale) return;
    const { state, label, press, quiet, link, note, guest } = view(this);
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
    if (this.guest) this.guest.hidden = !guest;
    if (focused === this.button && this.button.hidden) this.link.focus();
    show(this.note, note || "");
    show(this.card.querySelector("[data-shown=left]"), this.left);
    if (this.item) show(this.card.querySelector("[data-shown=price]"), money(this.price));
  }

  press(event) {
    if (!visit.sale) return; // No figures have arrived yet, so let the form buy without this script.
    event.preventDefault();
    if (!view(this).press) return;
    const quantity = Number(this.form.elements.quantity.value);
    this.agreed = this.price;
    this.refusal = null;
    const body = { sale: page.sale, items: [{ product: this.id, quantity, price: this.agreed }] };
    this.wanted = { body, shown: JSON.stringify(this.intent) };
    this.wake();
    this.render();
    this.goOn();
  }

  // Repeat the request of a press, or of an unfinished intent, until it has a result.
  async goOn() {
    if (this.going) return;
    this.going = true;
    while (this.active) {
      const who = await visit.identify();
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

  // Store the intent before the request is sent. If another tab has stored a newer intent that this tab has not shown
  // yet, show that newer intent instead, because the buyer has not agreed to buy twice.
  async begin() {
    const { body, shown } = this.wanted;
    const { name } = this;
    try {
      const intent = await keep(name, (kept) => {
        if (kept && JSON.stringify(kept) !== shown) return kept;
        // Use the same key until it has an order, even after a refusal. The response of an earlier attempt may be lost
        // although that attempt has bought. Then the next press finds that order and does not buy again.
        const used = !kept || kept.order || kept.spent;
        return { key: used ? newKey() : kept.key, body, at: clock.now(), done: false };
      });
      if (name === this.name) this.intent = intent;
      tabs.postMessage(name);
    } catch {
      this.form.submit(); // This browser cannot store intents, so buy with the form, whose key is in its URL.
    }
    this.wanted = null;
    this.failures = 0;
    this.trouble = "";
  }

  // Send the request once, or poll the queued order. Return the milliseconds before the next attempt; 0 after the last.
  async attempt() {
    const { name } = this;
    const { key, body, location } = this.intent;
    const headers = visit.authorization;
    const ticket = visit.room?.ticket && { "Waiting-Ticket": visit.room.ticket };
    // All attempts of one press belong to one trace, whose id is the key (https://www.w3.org/TR/trace-context/).
    const trace = `00-${key}-${key.slice(0, 16)}-01`;
    const post = {
      method: "POST",
      headers: { ...headers, ...ticket, "Content-Type": "application/json", "Idempotency-Key": key, traceparent: trace },
      body: JSON.stringify(body),
    };
    const answer = await (location ? ask(location, { headers }) : ask(page.api, post));
    if (!answer) return this.failed("offline");
    const wait = retryAfter(answer.headers);
    if (answer.body?.type?.endsWith("/sale-paused/")) return this.failed("paused", wait);
    // 408: the body did not arrive in time.
    const later = answer.headers.has("Retry-After") || answer.status >= 500 || answer.status === 408;
    if (later) return this.failed("busy", wait);
    if (answer.status === 401 && this.unauthorized < 3) {
      visit.endToken();
      this.unauthorized += 1;
      return this.failed("busy");
    }
    this.unauthorized = 0;
    this.failures = 0;
    this.trouble = "";
    const said = answer.body;
    const type = answer.status < 300 ? "" : said.type?.split("/").at(-2);
    const opening = Math.abs(clock.now() - Date.parse(visit.sale?.opens_at)) < OPENING;
    if (type === "sale-not-open" && opening) return this.failed("busy", 500);
    if (said.state === "queued") {
      await this.change(name, key, { location: location ?? answer.headers.get("Location"), place: said.place });
      return POLL + backoff(0);
    }
    if (answer.status < 300) await this.change(name, key, { done: true, location: undefined, order: summary(said) });
    else await this.refused(name, key, type, said);
    return 0;
  }

  async refused(name, key, type, problem) {
    const price = problem.items?.find((item) => item.product === this.id)?.price;
    // If the problem has no `left`, some units are left, and the sale does not show how many.
    if (type === "sold-out" && problem.left === 0) this.emptyUntil = local() + SETTLED;
    else if (name === this.name) this.refusal = { ...problem, type, price };
    if (type === "waiting-room" && name === this.name) {
      visit.room = null;
      visit.lookAtRoom();
    }
    await this.change(name, key, { done: true, spent: type === "key-reused" });
  }

  // Store the shop's response in the intent of the customer who sent the request. If another customer has logged in
  // since then, the button does not change. Do nothing if another tab has begun a newer intent.
  async change(name, key, changes) {
    const shown = name === this.name ? this.intent : null;
    const changed = (kept) => {
      const before = kept ?? shown;
      return before?.key === key ? { ...before, ...changes } : before;
    };
    const result = await keep(name, changed).catch(() => changed(null)); // The key is already stored.
    if (name === this.name) this.intent = result;
    tabs.postMessage(name);
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

  // Load the purchase that this or another tab started. Fetch its order, which may have changed since, for example if a
  // paid order was refunded.
  async resume() {
    if (!(await visit.identify())) return;
    if (!this.active) await this.reload();
    const { name } = this;
    const { key, order, at, location } = this.intent ?? {};
    if (this.active && !location && clock.now() - at > LONG_AGO) {
      // The buyer may not want to buy any more. Keep the key: if the shop has the order, the next press finds it.
      this.refusal = { type: "long-ago" };
      await this.change(name, key, { done: true });
    }
    if (["pending", "paid"].includes(order?.state)) {
      const answer = await ask(`${page.api}${order.id}/`, { headers: visit.authorization });
      if (answer?.status === 200) await this.change(name, key, { order: summary(answer.body) });
    }
    this.render();
    this.goOn();
  }

  // Load the intent again after another tab has changed it.
  async follow() {
    await this.reload();
    this.wake();
    this.render();
    this.goOn();
  }
}
