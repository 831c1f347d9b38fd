// Times on pages. The server writes them in UTC; this script shows them in the reader's time zone, from 00:00 to 23:59.

import { show } from "./page.js";

const language = document.documentElement.lang;
// Format dates in the language of the page. Use "en-GB" for English, because "en" would put the month before the day.
const dates = new Intl.DateTimeFormat(language === "en" ? "en-GB" : language, { dateStyle: "medium" });
const times = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", timeZoneName: "short" });
const between = language === "en" ? ", " : " ";

// Return a date and time as a text for the reader.
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
