/* Starts the pieces of the book that can be touched, and holds the few helpers that they share.

   A piece is a <section class="touch" data-touch="NAME"> with its data as JSON inside; a file of its own puts a function
   into speedlab.pieces[NAME]. Nothing is fetched and nothing is kept. Without scripts the section says so, and the table
   below it holds the same numbers. */
(function () {
  "use strict";
  const speedlab = (globalThis.speedlab ??= {});
  speedlab.pieces ??= {};

  /* An element with attributes, listeners (on...) and children; text is never read as HTML. */
  speedlab.element = function (tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (value !== false && value !== null) made.setAttribute(name, value === true ? "" : value);
    }
    made.append(...children.filter((child) => child !== null));
    return made;
  };

  let controls = 0;

  /* A label and its control, tied to each other. */
  speedlab.labelled = function (label, control) {
    control.id ||= `touch-control-${++controls}`;
    return speedlab.element("div", { class: "touch-field" },
      speedlab.element("label", { for: control.id }, label), control);
  };

  /* A drop-down list. options: [[value, words], ...] */
  speedlab.choice = function (label, options, chosen, change) {
    const list = speedlab.element("select", { onchange: () => change(list.value) });
    speedlab.fill(list, options, chosen);
    return { list, field: speedlab.labelled(label, list) };
  };

  speedlab.fill = function (list, options, chosen) {
    list.replaceChildren(...options.map(([value, words]) =>
      speedlab.element("option", { value, selected: String(value) === String(chosen) }, words)));
  };

  /* A table that scrolls by itself where it is too wide. rows: lists of nodes or text, the first of each a heading. */
  speedlab.table = function (caption, columns, rows) {
    const { element } = speedlab;
    const cell = (tag, attributes) => (content) => element(tag, attributes, content);
    const table = element("table", {}, element("caption", {}, caption),
      element("thead", {}, element("tr", {}, ...columns.map(cell("th", { scope: "col" })))),
      element("tbody", {}, ...rows.map(([first, ...others]) =>
        element("tr", {}, element("th", { scope: "row" }, first), ...others.map(cell("td", {}))))));
    return element("div", { class: "touch-scroll", tabindex: "0", role: "group", "aria-label": caption }, table);
  };

  /* A bar from zero, of a share of its cell; the number beside it says the same. */
  speedlab.bar = function (share, kind = "measured") {
    const bar = speedlab.element("span", { class: `touch-bar touch-${kind}`, "aria-hidden": "true" });
    bar.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
    return speedlab.element("span", { class: "touch-track" }, bar);
  };

  speedlab.minus = (words) => String(words).replace(/-/g, "\u2212");

  if (typeof document === "undefined") return; // a test that wants the arithmetic only

  function start() {
    for (const section of document.querySelectorAll("section.touch[data-touch]")) {
      const build = speedlab.pieces[section.dataset.touch];
      const place = speedlab.element("div", { class: "touch-body" });
      try {
        build(place, JSON.parse(section.querySelector("script[type='application/json']").textContent));
        section.querySelector(".touch-without-script").remove();
        section.append(place);
        section.dataset.ready = "yes";
      } catch (error) {
        section.querySelector(".touch-without-script").textContent =
          `This piece does not work in this browser (${error.message}). The table below holds the same numbers.`;
        throw error;
      }
    }
  }
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
