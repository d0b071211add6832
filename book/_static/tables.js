/* A table or chart that is wider than its page scrolls inside its own frame; this lets the keyboard scroll it too. */
(function () {
  "use strict";
  if (typeof document === "undefined") return;

  const FRAMES = ".pst-scrollable-table-container, .touch-scroll, div.output:has(> img.chart)";

  function mark() {
    for (const frame of document.querySelectorAll(FRAMES)) {
      const wide = frame.scrollWidth > frame.clientWidth;
      if (wide === frame.hasAttribute("tabindex")) continue;
      if (wide) {
        frame.setAttribute("tabindex", "0");
        frame.setAttribute("role", "group");
        frame.setAttribute("aria-label", frame.querySelector("img") ? "a wide chart, scrolls sideways" : "a wide table, scrolls sideways");
      } else for (const name of ["tabindex", "role", "aria-label"]) frame.removeAttribute(name);
    }
  }

  addEventListener("load", mark);
  addEventListener("resize", mark);
})();
