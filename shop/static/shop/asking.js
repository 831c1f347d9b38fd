// Requests to the shop, and the shop's clock, which is read from the responses. Times are in milliseconds.

const ANSWER_WITHIN = 25_000; // timeout, longer than the shop's own time limit for a request
const LONGEST_WAIT = 60_000; // longest pause that a response can ask for

export const local = () => performance.timeOrigin + performance.now();

// The clock of the shop: this machine's clock plus a difference. A Date header is exact to the second, so each response
// narrows the bounds of the difference. If new bounds contradict the old ones, for example after this machine was
// suspended, discard the old ones. Before the first response, the difference is 0.
export const clock = {
  least: -Infinity,
  most: Infinity,
  read(headers, sent, received) {
    const date = Date.parse(headers.get("Date")) + 1000 * headers.get("Age");
    if (Number.isNaN(date)) return;
    const [least, most] = [date - received, date + 1000 - sent];
    const agree = least <= this.most && most >= this.least;
    this.least = agree ? Math.max(this.least, least) : least;
    this.most = agree ? Math.min(this.most, most) : most;
  },
  now() {
    const difference = (this.least + this.most) / 2;
    return local() + (Number.isFinite(difference) ? difference : 0);
  },
};

// Send a request. Return the response, or null if there is none, or if it does not come from the shop.
export async function ask(address, options = {}) {
  try {
    const sent = local();
    const signal = AbortSignal.timeout(ANSWER_WITHIN);
    const response = await fetch(address, { cache: "no-store", signal, ...options });
    const { status, headers } = response;
    clock.read(headers, sent, local());
    const body = await response.json().catch(() => null);
    return body || status >= 500 ? { status, headers, body } : null;
  } catch {
    return null;
  }
}

// Return the pause in milliseconds that a response asks for, at most `LONGEST_WAIT`. Return 0 if Retry-After does not
// contain a number of seconds. A CDN or a firewall may send a date instead, or a pause that is too long for a buyer.
export function retryAfter(headers) {
  const seconds = headers.get("Retry-After");
  return /^\d+$/.test(seconds) ? Math.min(LONGEST_WAIT, 1000 * seconds) : 0;
}
