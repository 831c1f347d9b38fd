// The script of the order form. The form also works without this script. With the script, the form and the button of
// the sale's page share one idempotency key: if the button has sent an order that has no result yet, the form sends the
// same key. So the buyer does not buy twice. The script is not a module, so that it is ready before the form is shown.

const intents = import("./intents.js");
intents.catch(() => {}); // Each press handles the error; this only prevents an unhandled-rejection warning.
const WAIT_TIMEOUT = 5000; // milliseconds for which a press waits for the module

document.addEventListener("submit", async (event) => {
  const form = event.target;
  const { intent: name, sale } = form.dataset;
  if (!name) return;
  event.preventDefault();
  const { product, quantity, price, key } = form.elements;
  const items = [{ product: Number(product.value), quantity: Number(quantity.value), price: price.value }];
  // `done`: the page of the sale must not send this order by itself, because the form may be refused.
  const own = { key: key.value, body: { sale: Number(sale), items }, done: true };
  try {
    const late = new Promise((_, reject) => setTimeout(reject, WAIT_TIMEOUT));
    const { keep, tabs } = await Promise.race([intents, late]);
    const intent = await keep(name, (kept) => (kept && !kept.done ? kept : own));
    key.value = intent.key;
    tabs.postMessage(name);
  } catch {
    // This browser cannot store the intent, or the module did not load. So the form buys with its own key.
  }
  form.submit();
});
