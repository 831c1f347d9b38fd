// Roles and names that the theme of the admin leaves out, for screen readers.

document.addEventListener("DOMContentLoaded", () => {
  // Each page has one main part. The page of the log-in has no sidebar beside it.
  (document.getElementById("main") ?? document.getElementById("page"))?.setAttribute("role", "main");
  // Add this listener here, after those of the scripts that add these elements.
  addEventListener("load", () => {
    for (const tip of document.querySelectorAll(".help-tooltip[aria-label]")) tip.setAttribute("role", "img");
    const scrolled = document.querySelectorAll(".simplebar-content-wrapper[role=region]");
    scrolled.forEach((each, at) => each.setAttribute("aria-label", `scrollable content ${at + 1}`));
  });
});
