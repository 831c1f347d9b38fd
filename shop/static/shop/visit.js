// What the page of a sale knows: the latest figures of the sale, the customer's login, their place in the waiting room.

import { ask, local } from "./asking.js";
import { page } from "./page.js";

class Visit {
  sale; // the latest now.json
  login; // the access token of the customer, and whether they are a guest; null if nobody has logged in; undefined until the shop has said
  customer; // user id of the latest login
  room = null; // where the customer stands in the waiting room, if the sale has one and the shop has said
  products = [];
  waited = false; // this page has shown the countdown
  jitter = 1000 * Math.random(); // milliseconds, so that not all pages act in the moment in which the sale opens
  #identifying = null;
  #roomTimer = 0;

  get authorization() { return { Authorization: `Bearer ${this.login?.access}` }; }
  get knowsRoom() { return Boolean(this.room || this.#roomTimer); }

  // Return the login, with a token that is valid for `margin` milliseconds more; undefined without an answer.
  identify(margin = 0) {
    if (this.login && local() + margin < this.login.until) return this.login;
    this.#identifying ??= this.#newLogin().finally(() => { this.#identifying = null; });
    return this.#identifying;
  }

  async #newLogin() {
    const answer = await ask(page.token);
    if (answer?.status !== 200) return undefined;
    const before = this.login && this.customer;
    const { access, expires_in: seconds, guest } = answer.body;
    this.login = access && { access, guest, until: local() + 900 * seconds };
    this.customer = answer.body.customer ?? this.customer;
    if (!this.login || this.customer !== before) {
      this.room = null;
      this.lookAtRoom();
    }
    for (const each of this.products) {
      if (this.login ? this.customer !== before : !each.active) each.intent = this.login && (await each.load());
    }
    return this.login;
  }

  // Ask for another token before the next request: this one has ended, or somebody else may have logged in.
  endToken() {
    if (this.login) this.login.until = 0;
  }

  // Look where the customer stands in the waiting room, and again when the shop says.
  async lookAtRoom() {
    clearTimeout(this.#roomTimer);
    if (!this.sale?.waiting_room || !this.login || document.hidden) return;
    const answer = await ask(page.standing, { headers: this.authorization });
    if (answer?.status === 200) this.room = answer.body;
    else if (answer?.status === 401) this.endToken();
    if (this.room?.ticket) this.products.forEach((each) => each.admitted());
    this.render();
    this.lookAgain(100 + 1000 * (answer?.body?.poll_after ?? 5));
  }

  // Look at the waiting room after a pause in milliseconds, in place of the look that was planned.
  lookAgain(pause) {
    clearTimeout(this.#roomTimer);
    this.#roomTimer = setTimeout(async () => { if (await this.identify()) this.lookAtRoom(); }, pause);
  }

  render() {
    this.products.forEach((each) => each.render());
  }
}

export const visit = new Visit();
