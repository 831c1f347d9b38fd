// What the server has put into the page for its scripts, and how they write into the page.

const data = document.querySelector("script[type='application/json']");
export const page = JSON.parse(data?.textContent ?? "{}"); // addresses, and texts in the language of the page

// Fill the parts in braces into a text.
export const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) => values[name]);

// Name an estimated wait.
export const about = (seconds) =>
  seconds < 60 ? page.wait.soon : fill(page.wait.minutes, { minutes: Math.ceil(seconds / 60) });

// Write a text only if it has changed: a screen reader reads out every change.
export function show(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Return after how many milliseconds to look at a place when something has changed for everybody in the room. A web
// server may not know of it for a second. The shop spreads the looks at the opening in the same way: about 500 in a
// second, and all within 30 seconds.
export const spread = (entered) => 2000 + 1000 * Math.random() * Math.min(30, entered / 500);
