/* A fold's button has words of its own ("Show code cell source"); the label that the theme adds hides them from a
 * screen reader and from people who speak to their browser. */
(function () {
  "use strict";
  if (typeof document === "undefined") return;
  addEventListener("DOMContentLoaded", function () {
    for (const button of document.querySelectorAll("details > summary[aria-label]:has(p, span)")) button.removeAttribute("aria-label");
  });
})();
