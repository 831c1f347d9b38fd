// A plugin of Swagger UI that repairs its HTML for screen readers: all content is in landmarks, no level of headings is
// missing, and each field and button has a name.

const forScreenReaders = ({ React: { createElement, Fragment } }) => {
  // Put a component into an element with these attributes, and change attributes of the elements inside it. `changes`
  // has the new attributes by the selectors of those elements.
  const within = (tag, attributes, changes = {}) => (Component) => (props) =>
    createElement(tag, { ...attributes, ref: (box) => box && change(box, changes) }, createElement(Component, props));
  return {
    wrapComponents: {
      InfoContainer: within("section", { "aria-label": "About this API" }),
      operations: (Operations) => (props) =>
        createElement(
          Fragment,
          null,
          createElement("h2", { className: "for-screen-readers" }, "Operations"),
          createElement(Operations, props),
        ),
      ExamplesSelect: within("div", {}, { select: { "aria-label": "Example" } }),
      TextArea: (TextArea) => (props) => createElement(TextArea, { "aria-label": "Body of the request", ...props }),
      authorizationPopup: within(
        "div",
        { role: "dialog", "aria-modal": true, "aria-label": "Available authorizations" },
        { h3: { "aria-level": 2 }, h4: { "aria-level": 3 }, ".close-modal": { "aria-label": "Close" } },
      ),
      // A button's name is its text. Swagger UI names some buttons differently: "Apply credentials" for "Authorize".
      Button: (Button) => ({ "aria-label": otherName, ...props }) => createElement(Button, props),
    },
  };
};

function change(box, changes) {
  for (const [selector, attributes] of Object.entries(changes)) {
    for (const element of box.querySelectorAll(selector)) {
      for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    }
  }
}

// drf-spectacular's script, which the page loads after this one, calls `SwaggerUIBundle` with its own settings. Deep links
// would put a link into the button of each operation, and a screen reader cannot reach a link inside a button.
const bundle = window.SwaggerUIBundle;
window.SwaggerUIBundle = Object.assign(
  (settings) => bundle({ ...settings, plugins: [...settings.plugins, forScreenReaders], deepLinking: false }),
  bundle,
);
