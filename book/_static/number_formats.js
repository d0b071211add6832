/* A number, as its bits in several formats and what rounding does to it.

   The arithmetic is that of speedlab.number_formats; a test holds the two against each other. Widths of exponent and
   fraction come with the page, from the package. */
(function () {
  "use strict";
  const speedlab = (globalThis.speedlab ??= {});
  speedlab.pieces ??= {};

  /* The exponent of the largest power of two that is not above |value|; exact, which Math.log2 is not. */
  function exponentOf(value) {
    const view = new DataView(new ArrayBuffer(8));
    view.setFloat64(0, value);
    const stored = (view.getUint32(0) >>> 20) & 0x7ff;
    return stored ? stored - 1023 : exponentOf(value * 2 ** 64) - 64;
  }

  /* Ties go to the even neighbour. */
  function roundHalfEven(value) {
    const low = Math.floor(value);
    const rest = value - low;
    return rest < 0.5 || (rest === 0.5 && low % 2 === 0) ? low : low + 1;
  }

  const bias = (form) => 2 ** (form.exponent_bits - 1) - 1;
  const smallestExponent = (form) => 1 - bias(form);

  speedlab.largestValue = (form) => (form.infinity
    ? (2 - 2 ** -form.fraction_bits) * 2 ** bias(form)
    : (2 - 2 ** (1 - form.fraction_bits)) * 2 ** (bias(form) + 1));

  /* The nearest value of the format; too large is infinity, or NaN where the format has none. */
  speedlab.roundTo = function (value, form) {
    if (value === 0 || Number.isNaN(value)) return value;
    let size = Math.abs(value);
    if (size !== Infinity) {
      const step = 2 ** (Math.max(exponentOf(size), smallestExponent(form)) - form.fraction_bits);
      size = roundHalfEven(size / step) * step;
    }
    if (size > speedlab.largestValue(form)) size = form.infinity ? Infinity : NaN;
    return value < 0 ? -size : size;
  };

  /* [sign, exponent, fraction] as text, of a value that the format holds. */
  speedlab.bitPattern = function (value, form) {
    const binary = (number, bits) => number.toString(2).padStart(bits, "0");
    const size = Math.abs(value);
    let exponent, fraction;
    if (Number.isNaN(value)) [exponent, fraction] = [2 ** form.exponent_bits - 1, 2 ** form.fraction_bits - 1];
    else if (size === Infinity) [exponent, fraction] = [2 ** form.exponent_bits - 1, 0];
    else if (size < 2 ** smallestExponent(form)) {
      [exponent, fraction] = [0, size / 2 ** (smallestExponent(form) - form.fraction_bits)];
    } else {
      const power = exponentOf(size);
      [exponent, fraction] = [power + bias(form), (size / 2 ** power - 1) * 2 ** form.fraction_bits];
    }
    const sign = value < 0 || Object.is(value, -0) ? "1" : "0";
    return [sign, binary(exponent, form.exponent_bits), binary(fraction, form.fraction_bits)];
  };

  /* What rounding did, in a few words. */
  speedlab.roundingWords = function (value, held, form) {
    if (Number.isNaN(held)) return "too large: NaN, for want of an infinity";
    if (Math.abs(held) === Infinity) return Math.abs(value) === Infinity ? "exact" : "too large: infinity";
    if (held === value) return "exact";
    if (held === 0) return "too small: zero";
    const percent = (100 * Math.abs(held - value)) / Math.abs(value);
    const below = Math.abs(held) < 2 ** smallestExponent(form) ? ", below the normal range" : "";
    return `off by ${speedlab.minus(Number(percent.toPrecision(2)))} %${below}`;
  };

  speedlab.pieces["number-formats"] = function (place, data) {
    const { element } = speedlab;
    const input = element("input", {
      type: "text", inputmode: "decimal", autocomplete: "off", spellcheck: "false", value: data.value, oninput: () => draw(),
    });
    const examples = data.examples.map(([value, why]) => element("button", {
      type: "button", title: why, onclick: () => { input.value = value; draw(); },
    }, value));
    const problem = element("p", { class: "touch-status", "aria-live": "polite" });
    const shown = element("div");
    place.append(
      element("div", { class: "touch-controls" }, speedlab.labelled("A number", input),
        element("div", { class: "touch-examples", role: "group", "aria-label": "Numbers to try" }, ...examples)),
      problem, shown,
      element("p", { class: "touch-key-line" }, "Bits: ", element("span", { class: "touch-sign" }, "sign"), " ",
        element("span", { class: "touch-exponent" }, "exponent"), " ",
        element("span", { class: "touch-fraction" }, "fraction"), ", in this order."));

    function draw() {
      const words = input.value.trim().replace("\u2212", "-");
      const value = words === "" ? NaN : Number(words);
      const bad = Number.isNaN(value);
      input.setAttribute("aria-invalid", String(bad));
      problem.textContent = bad ? `\u201c${input.value}\u201d is no number: try 0.1, -2.5 or 1e-8.` : "";
      if (!bad) shown.replaceChildren(tableOf(value));
    }

    function tableOf(value) {
      return speedlab.table(`${speedlab.minus(value)} in each format`, ["format", "holds", "rounding", "bits"],
        data.formats.map((form) => {
          const held = speedlab.roundTo(value, form);
          const bits = speedlab.bitPattern(held, form);
          const parts = ["sign", "exponent", "fraction"].flatMap((name, at) =>
            [element("span", { class: `touch-${name}` }, bits[at]), " "]);
          return [form.name, speedlab.minus(Number.isFinite(held) ? Number(held.toPrecision(9)) : held),
            speedlab.roundingWords(value, held, form), element("code", { class: "touch-bits" }, ...parts)];
        }));
    }
    draw();
  };
})();
