/* A table that is wider than its page scrolls inside its own frame; this lets the keyboard scroll it too. */
(function () {
  "use strict";
  if (typeof document === "undefined") return;

  function mark() {
    for (const frame of document.querySelectorAll(".pst-scrollable-table-container")) {
      const wide = frame.scrollWidth > frame.clientWidth;
      if (wide === frame.hasAttribute("tabindex")) continue;
      if (wide) {
        frame.setAttribute("tabindex", "0");
        frame.setAttribute("role", "group");
        frame.setAttribute("aria-label", "a wide table, scrolls sideways");
      } else for (const name of ["tabindex", "role", "aria-label"]) frame.removeAttribute(name);
    }
  }

  addEventListener("load", mark);
  addEventListener("resize", mark);
})();
