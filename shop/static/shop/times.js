// Times on pages. The server writes them in UTC; here they are shown where the reader is, with the zone, in 24 hours.

import { show } from "./page.js";

const language = document.documentElement.lang;
// The language of the page chooses the words. "en" alone would be the order of month and day in the United States.
const dates = new Intl.DateTimeFormat(language === "en" ? "en-GB" : language, { dateStyle: "medium" });
const times = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", timeZoneName: "short" });
const between = language === "en" ? ", " : " ";

// Return a moment in words.
export const written = (moment) => [dates, times].map((format) => format.format(new Date(moment))).join(between);

// Show a moment in a `time` element.
export function showTime(element, moment) {
  element.dateTime = moment;
  show(element, written(moment));
}

export function showTimes(root) {
  for (const each of root.querySelectorAll("time")) showTime(each, each.dateTime);
}

showTimes(document);
