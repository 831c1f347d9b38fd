// Keeps the focus and the latest step in sight when htmx has put in what a choice led to.

document.body.addEventListener("htmx:afterSettle", () => {
  const picture = document.querySelector("#play .lanes-and-steps");
  if (picture) picture.scrollTop = picture.scrollHeight;
  if (document.activeElement === document.body) document.getElementById("status").focus({ preventScroll: true });
});

// What is refused is a page too, and says what to do.
document.body.addEventListener("htmx:responseError", (event) => {
  window.location.assign(event.detail.pathInfo.requestPath);
});
