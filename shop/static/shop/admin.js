// Add roles and names for screen readers that the theme of the admin leaves out.

document.addEventListener("DOMContentLoaded", () => {
  // Each page has one main part. Its id differs on the log-in page, which has no sidebar.
  (document.getElementById("main") ?? document.getElementById("page"))?.setAttribute("role", "main");
  // Add this listener here, so that it runs after the listeners that add these elements.
  addEventListener("load", () => {
    for (const tip of document.querySelectorAll(".help-tooltip[aria-label]")) tip.setAttribute("role", "img");
    const scrolled = document.querySelectorAll(".simplebar-content-wrapper[role=region]");
    scrolled.forEach((each, at) => each.setAttribute("aria-label", `scrollable content ${at + 1}`));
  });
});
