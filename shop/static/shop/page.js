// The data that the server has put into the page for its scripts, and helpers to write texts into the page.

const data = document.querySelector("script[type='application/json']");
export const page = JSON.parse(data?.textContent ?? "{}"); // URLs, and texts in the language of the page

// Replace the parts in braces in a text.
export const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) => values[name]);

// Return the text for an estimated wait.
export const about = (seconds) =>
  seconds < 60 ? page.wait.soon : fill(page.wait.minutes, { minutes: Math.ceil(seconds / 60) });

// Write a text only if it has changed, because a screen reader reads out every change.
export function show(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Return a random pause in milliseconds before the next poll, after a change for everybody in the waiting room. It is
// at least two seconds, because a web server may not know of the change for a second. The pauses spread the polls of a
// room: about 500 per second, but all within 30 seconds, as at the opening.
export const pollPause = (entered) => 2000 + 1000 * Math.random() * Math.min(30, entered / 500);
