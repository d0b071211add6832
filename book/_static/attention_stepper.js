/* FlashAttention's running softmax, one tile of keys at a time.

   Every running number comes from the package's own walk over the keys, made when the book was built. This file adds
   only the plain softmax over the keys seen so far, by the other formula, to hold against them. */
(function () {
  "use strict";
  const speedlab = (globalThis.speedlab ??= {});
  speedlab.pieces ??= {};

  /* softmax(scores) times values, all at once. */
  speedlab.plainAttention = function (scores, values) {
    const largest = Math.max(...scores);
    const weights = scores.map((score) => Math.exp(score - largest));
    const sum = weights.reduce((total, weight) => total + weight, 0);
    return weights.reduce((total, weight, key) => total + weight * values[key], 0) / sum;
  };

  const show = (value) => (value === null ? "\u2212\u221e" : speedlab.minus(Number(value.toFixed(4))));

  speedlab.pieces["attention-stepper"] = function (place, data) {
    const { element, table } = speedlab;
    const state = { tile: String(data.tile), done: 0 };
    const steps = () => data.steps[state.tile];
    const tiles = Object.keys(data.steps).map((tile) => [tile, `${tile} key${tile === "1" ? "" : "s"}`]);
    const size = speedlab.choice("Keys in a tile", tiles, state.tile, (tile) => {
      Object.assign(state, { tile, done: 0 });
      draw();
    });
    const move = (to) => () => {
      state.done = Math.max(0, Math.min(steps().length, to(state.done)));
      draw();
    };
    // aria-disabled instead of disabled: a button that has the focus keeps it at the last tile.
    const button = (words, to) => element("button", { type: "button", onclick: move(to) }, words);
    const again = button("Start over", () => 0);
    const back = button("Back", (done) => done - 1);
    const next = button("Next tile", (done) => done + 1);
    const keys = element("div");
    const running = element("div");
    const words = element("p", { class: "touch-status", "aria-live": "polite" });
    const check = element("p", { class: "touch-check" });
    place.append(element("div", { class: "touch-controls" }, size.field, again, back, next), words, keys, running, check);

    function draw() {
      const step = state.done ? steps()[state.done - 1] : null;
      const seen = step ? step.first + step.scores.length : 0;
      for (const [control, off] of [[again, !step], [back, !step], [next, state.done === steps().length]]) {
        control.setAttribute("aria-disabled", String(off));
      }
      words.textContent = told(step);
      keys.replaceChildren(keyTable(step, seen));
      running.replaceChildren(runningTable(step));
      check.replaceChildren(...checked(step, seen));
    }

    function told(step) {
      if (!step) return `Nothing seen yet. ${data.scores.length} keys wait in ${steps().length} tiles.`;
      const where = `Tile ${state.done} of ${steps().length}. `;
      if (step.old_max === null) return `${where}The first maximum is ${show(step.new_max)}.`;
      return where + (step.new_max > step.old_max
        ? `A larger score came: all sums so far are multiplied by e^(${show(step.old_max)} \u2212 ${show(step.new_max)}) ` +
          `= ${show(step.rescale)}.`
        : `No larger score: the maximum stays ${show(step.new_max)}, and nothing is rescaled.`);
    }

    function keyTable(step, seen) {
      const kind = (key) => (!step || key >= seen ? "waiting" : key >= step.first ? "now" : "past");
      const row = (name, of) => [name, ...data.scores.map((_, key) =>
        element("span", { class: `touch-key touch-${kind(key)}` }, of(key)))];
      const names = { waiting: "later", now: "on chip", past: "gone" };
      return table("Keys of one query row", ["", ...data.scores.map((_, key) => `key ${key + 1}`)].map(named), [
        row("score s", (key) => show(data.scores[key])),
        row("value v", (key) => show(data.values[key])),
        row("weight e^(s \u2212 m)", (key) => (kind(key) === "now" ? show(step.weights[key - step.first]) : "\u00b7")),
        row("where", (key) => names[kind(key)]),
      ]);
    }

    function runningTable(step) {
      const old = step ?? { old_max: null, new_max: null, old_sum: 0, new_sum: 0, old_output: 0, new_output: 0 };
      const plus = step ? step.weights.map((weight) => ` + ${show(weight)}`).join("") : "";
      const times = step
        ? step.weights.map((weight, at) => ` + ${show(weight)} \u00d7 ${show(data.values[step.first + at])}`).join("") : "";
      const scale = step ? ` \u00d7 ${show(step.rescale)}` : "";
      return table("All that is kept", ["kept", "before", "now", "how"], [
        ["maximum m", show(old.old_max), show(old.new_max), step ? `max(m, ${step.scores.map(show).join(", ")})` : ""],
        ["sum l", show(old.old_sum), show(old.new_sum), step ? show(old.old_sum) + scale + plus : ""],
        ["output o", show(old.old_output), show(old.new_output), step ? show(old.old_output) + scale + times : ""],
      ]);
    }

    function checked(step, seen) {
      if (!step) return ["The check against a plain softmax begins with the first tile."];
      const tiled = step.new_output / step.new_sum;
      const plain = speedlab.plainAttention(data.scores.slice(0, seen), data.values.slice(0, seen));
      const same = Math.abs(tiled - plain) <= 1e-12 * Math.abs(plain);
      check.dataset.same = same ? "yes" : "no";
      return [`Tiled, o / l = ${tiled.toFixed(6)}. Plain softmax over the ${seen} keys seen, computed by this page: ` +
        `${plain.toFixed(6)}. `, element("strong", {}, same ? "The same." : "They differ: please report this.")];
    }

    const named = (name) => name || element("span", { class: "touch-hidden" }, "what");
    draw();
  };
})();
