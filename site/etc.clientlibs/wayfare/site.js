// Small comforts. Every page works without them.

// A search becomes a plain address, /search.html/lisbon, so that its result can be cached.
for (const form of document.querySelectorAll("form[data-search]")) {
  form.addEventListener("submit", (event) => {
    const words = form.elements.q.value.replace(/[\/?#%]+/g, " ").trim().replace(/\s+/g, " ");
    event.preventDefault();
    if (words) location.assign(form.action + "/" + encodeURIComponent(words.toLowerCase()));
    else form.elements.q.focus();
  });
}

// Slideshows and carousels scroll by themselves; the buttons are for those who cannot swipe.
const calm = matchMedia("(prefers-reduced-motion: reduce)");
for (const show of document.querySelectorAll("[data-slideshow]")) {
  const row = show.querySelector(".slides");
  const buttons = show.querySelector(".slide-buttons");
  if (!row || !buttons || row.children.length < 2) continue;
  const [back, on] = buttons.querySelectorAll("button");
  const step = () => row.children[1].offsetLeft - row.children[0].offsetLeft;
  const update = () => {
    back.disabled = row.scrollLeft < 4;
    on.disabled = row.scrollLeft > row.scrollWidth - row.clientWidth - 4;
  };
  for (const button of [back, on]) {
    button.addEventListener("click", () => {
      row.scrollBy({ left: step() * Number(button.dataset.step), behavior: calm.matches ? "auto" : "smooth" });
    });
  }
  row.addEventListener("scroll", update, { passive: true });
  addEventListener("resize", update, { passive: true });
  buttons.hidden = false;
  update();
}
