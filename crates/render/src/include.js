// Fills the places of a page that hold something for this visitor alone. What cannot be had stays empty.
for (const place of document.querySelectorAll("[data-tympan-include]")) {
  fetch(place.dataset.tympanInclude, { credentials: "same-origin", headers: { Accept: "text/html" } })
    .then((answer) => (answer.ok && !answer.redirected ? answer.text() : ""))
    .then((text) => {
      // Parsed as a template: scripts in it do not run.
      const template = document.createElement("template");
      template.innerHTML = text;
      place.replaceWith(template.content);
    })
    .catch(() => {});
}
