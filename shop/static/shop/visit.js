// The state of a sale's page: the latest figures of the sale, the customer's login, and their place in line.

import { ask, local } from "./asking.js";
import { page } from "./page.js";

// The value of the cookie `login`, which differs for each customer; undefined without a log-in. See login_hint.py.
const hint = () => /(?:^|; )login=([^;]+)/.exec(document.cookie)?.[1];
const NOBODY = { status: 200, body: { access: null } }; // the shop's response to a visitor without a log-in

class Visit {
  sale; // the latest figures, from now.json
  // The access token, and whether the customer is a guest; null if nobody is logged in; undefined before the response.
  login;
  customer; // user id of the latest login
  room = null; // the customer's place in the waiting room; null if there is none, or it is not known yet
  products = [];
  waited = false; // whether this page has shown the countdown
  jitter = 1000 * Math.random(); // random milliseconds, so that not all pages act at the moment of the opening
  #hint; // the cookie to which the login belongs
  #identifying = null;
  #roomTimer = 0;

  get authorization() { return { Authorization: `Bearer ${this.login?.access}` }; }
  get knowsRoom() { return Boolean(this.room || this.#roomTimer); }

  // Return the login, with a token that is valid for at least `margin` milliseconds. Return null if nobody is logged
  // in, and undefined if the server sends no token. This sends a request only if the browser has a log-in and this page
  // has no valid token. So a crowd that only watches sends no request.
  async identify(margin = 0) {
    if (this.login && hint() === this.#hint && local() + margin < this.login.until) return this.login;
    this.#identifying ??= this.#newLogin().finally(() => { this.#identifying = null; });
    return this.#identifying;
  }

  async #newLogin() {
    const found = hint(); // before the request: if somebody else logs in meanwhile, the next call asks again
    const answer = found ? await ask(page.token) : NOBODY;
    if (answer?.status !== 200) return undefined;
    const before = this.login && this.customer;
    const { access, expires_in: seconds, guest } = answer.body;
    const { customer: known } = this;
    const customer = answer.body.customer ?? known;
    const another = access && customer !== before;
    const intents = another ? await Promise.all(this.products.map((each) => each.load(customer))) : [];
    // Change login and intents together: the order of one customer must not be sent with the token of another customer.
    this.login = access && { access, guest, until: local() + 900 * seconds };
    this.customer = customer;
    this.#hint = found;
    this.products.forEach((each, at) => {
      if (another) each.intent = intents[at];
      else if (!access && !each.active) each.intent = null;
      if (known !== undefined && customer !== known) each.wanted = null; // The previous customer has pressed.
    });
    if (!access || another) {
      this.room = null;
      this.lookAtRoom();
    }
    return this.login;
  }

  // Get a new token before the next request: the shop has refused the token, or the customer may no longer be a guest.
  endToken() {
    if (this.login) this.login.until = 0;
  }

  // Get the customer's place in the waiting room, and poll it again after the pause that the shop sets.
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

  // Poll the waiting room after a pause in milliseconds, instead of at the planned time.
  lookAgain(pause) {
    clearTimeout(this.#roomTimer);
    this.#roomTimer = setTimeout(async () => { if (await this.identify()) this.lookAtRoom(); }, pause);
  }

  render() {
    this.products.forEach((each) => each.render());
  }
}

export const visit = new Visit();
