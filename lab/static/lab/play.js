// Keeps the focus and the latest step in view after htmx has replaced the page's content.

document.body.addEventListener("htmx:afterSettle", () => {
  const picture = document.querySelector("#play .lanes-and-steps");
  if (picture) picture.scrollTop = picture.scrollHeight;
  if (document.activeElement === document.body) document.getElementById("status").focus({ preventScroll: true });
});

// If a request of htmx fails, open its address: a refusal of the server is a page that says what to do next. Without a
// connection, the browser shows its own error page.
for (const failure of ["htmx:responseError", "htmx:sendError"]) {
  document.body.addEventListener(failure, (event) => window.location.assign(event.detail.pathInfo.requestPath));
}
