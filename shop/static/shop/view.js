// What the button, the link and the note of a product show in each state.

import { clock } from "./asking.js";
import { about, fill, page } from "./page.js";
import { written } from "./times.js";
import { visit } from "./visit.js";

const { labels, notes } = page;
export const money = (amount) => `${amount} ${visit.sale.currency}`;

function duration(milliseconds) {
  const seconds = Math.max(0, Math.ceil(milliseconds / 1000));
  const [days, hours] = [Math.floor(seconds / 86_400), Math.floor(seconds / 3600) % 24];
  const two = (number) => String(Math.floor(number)).padStart(2, "0");
  const time = `${two((seconds % 3600) / 60)}:${two(seconds % 60)}`;
  if (days) return fill(page.days, { days, time: `${two(hours)}:${time}` });
  return hours ? `${hours}:${time}` : time;
}

// Return the sentence for the problem that ended the last press.
function reason({ refusal, atLimit }) {
  if (!refusal || refusal.type === "price-changed") return "";
  const { type, left } = refusal;
  // The problem has no `left` if the sale does not show how many units are left.
  const shortage = type === "sold-out" && (left === undefined ? "fewer-left" : left && "too-few");
  const kind = shortage || (atLimit && "limit-reached") || type;
  return fill(notes[kind] ?? notes.refused, refusal);
}

// Return what the buyer sees now. `label`: the text of the button; without a label, the button is hidden. `press`:
// whether the button can be pressed. `link`: a link beside or instead of the button. `guest`: whether the visitor may
// buy as a guest. `note`: the sentence below the button.
export function view(product) {
  const { item, empty } = product;
  const { sale, login, room } = visit;
  const { order } = product.intent ?? {};
  const now = clock.now();
  const isOpen = item && now >= Date.parse(sale.opens_at) + visit.jitter && now < Date.parse(sale.closes_at);
  const toLogin = { href: page.login, label: labels.login };
  // Two kinds of visitors cannot buy: those who are not logged in, and guests if the sale allows no guests.
  const guest = login === null;
  const refused = Boolean(login?.guest && !page.guests);
  const toEnter = refused ? { href: page.account, label: labels.account } : toLogin;
  const toOrder = { href: `${page.orders}${order?.id}/` };

  if (product.active) return viewOfPress(product, toLogin);
  if (order?.state === "pending" || order?.state === "paid") {
    const { quantity } = product.intent.body.items[0];
    const admitted = !sale?.waiting_room || room?.ticket;
    const selling = isOpen && !empty && sale.state !== "paused";
    const again = selling && login && admitted && quantity < (item.limit ?? Infinity);
    const time = duration(Date.parse(order.pay_by) - now);
    const link = { ...toOrder, label: fill(labels[order.state], { time }) };
    const note = reason(product) || notes[order.state];
    return { state: order.state, link, note, label: again && labels.again, press: again, quiet: true };
  }
  const ended = order ? notes[order.state] : reason(product);
  const why = ["rejected", "refunded"].includes(order?.state) && { ...toOrder, label: labels.order, quiet: true };
  if (!item || now >= Date.parse(sale.closes_at)) {
    return { state: "over", label: labels.over, note: ended, link: why };
  }
  if (!isOpen) {
    visit.waited = true;
    const label = fill(labels.coming, { time: duration(Date.parse(sale.opens_at) - now) });
    if (guest || refused) {
      const note = refused ? notes["no-guests"] : notes.login;
      return { state: "coming", label, link: { ...toEnter, quiet: true }, note, guest };
    }
    if (room?.state === "draw") return { state: "draw", label, note: sale.paused ? notes["draw-paused"] : notes.draw };
    const outside = room?.state === "outside" && { link: toRoom, note: notes["room-coming"] };
    return { state: "coming", label, note: sale.paused ? notes.paused : "", ...outside };
  }
  if (sale.state === "paused") {
    const link = guest || refused ? { ...toEnter, quiet: true } : why;
    return { state: "paused", label: labels.paused, note: notes.paused, link, guest };
  }
  if (empty) return { state: "sold-out", label: labels["sold-out"], note: notes["sold-out"], link: why };
  if (refused) return { state: "login", link: toEnter, note: notes["no-guests"] };
  if (guest) return { state: "login", link: toEnter, guest };
  if (sale.waiting_room && !room?.ticket) return viewOfRoom(product);
  if (product.atLimit) {
    const link = { href: page.orders, label: labels.orders, quiet: true };
    return { state: "over-limit", label: labels["over-limit"], note: reason(product), link };
  }
  if (product.price !== product.agreed) {
    const prices = { price: money(product.price), before: money(product.agreed) };
    return { state: "price", label: fill(labels.price, prices), press: true, note: fill(notes.price, prices) };
  }
  const turn = room?.ticket && fill(notes.admitted, { time: written(room.ends_at) });
  const note = ended || turn || (visit.waited ? notes.opened : "");
  return { state: "open", label: labels.open, press: true, note, link: why };
}

const toRoom = { href: page.room, label: labels.enter };

// Return what the buyer sees while the request of a press is being repeated.
function viewOfPress({ trouble, intent }, toLogin) {
  const { location, place } = intent ?? {};
  if (visit.login === null) return { state: "login", link: toLogin, note: notes["signed-out"] };
  if (trouble === "offline") return { state: "offline", label: labels.offline, note: notes.offline };
  if (trouble === "paused") return { state: "paused", label: labels.paused, note: notes["until-resumed"] };
  const queued = { state: "queued", label: fill(labels.queued, { place: place ?? "…" }), note: notes.queued };
  if (location) return queued;
  return { state: "buying", label: labels.buying, note: notes[trouble || "buying"] };
}

// Return what a customer without a ticket sees, if the sale has a waiting room.
function viewOfRoom(product) {
  const { room } = visit;
  const note = reason(product);
  if (room?.state === "waiting") {
    const values = { ...room, wait: about(room.estimate) };
    return { state: "waiting", label: fill(labels.waiting, values), note: fill(notes.waiting, values) };
  }
  if (room?.state === "outside" || room?.state === "ended") {
    return { state: "room", link: toRoom, note: note || notes[room.state] };
  }
  return { state: "room", label: labels.room, note: note || (room && notes.draw) };
}
