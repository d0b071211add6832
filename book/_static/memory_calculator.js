/* The memory calculator: a recipe and a card in, the bytes of a step out. The formulas are in memory_plan.js; before it
   shows anything, it compares them with plans that the package made when the book was built. */
(function () {
  "use strict";
  const speedlab = (globalThis.speedlab ??= {});
  speedlab.pieces ??= {};

  const NUMBERS = [
    ["num_layers", "Layers"], ["embedding_width", "Width"], ["num_heads", "Heads"], ["context_length", "Context, tokens"],
    ["vocab_size", "Vocabulary, ids"], ["micro_batch", "Sequences per pass"], ["accumulation", "Passes per update"],
    ["data_parallel", "GPUs, each a copy"],
  ];
  const gib = (bytes) => `${(bytes / 2 ** 30).toFixed(2)} GiB`;

  /* Names of the reference plans that the formulas of this page do not reproduce to the byte. */
  speedlab.wrongPlans = (data) => data.presets.filter((preset) => {
    const plan = speedlab.planMemory(preset.recipe, data.cards[0].capability, data.known);
    return plan.peakBytes !== preset.peak_bytes || plan.peakAt !== preset.peak_at;
  }).map((preset) => preset.name);

  speedlab.pieces["memory-calculator"] = function (place, data) {
    const { element } = speedlab;
    const wrong = speedlab.wrongPlans(data);
    if (wrong.length) throw new Error(`its formulas differ from the package's for ${wrong.join(", ")}`);
    const start = data.presets[data.preset];
    let recipe = { ...start.recipe };
    let card = data.cards[0];

    const preset = speedlab.choice("Start from", data.presets.map(({ name }, at) => [at, name]), data.preset, (at) => {
      recipe = { ...data.presets[at].recipe };
      for (const [name, control] of Object.entries(controls)) control.value = String(recipe[name]);
      draw();
    });
    const cards = speedlab.choice("Card", data.cards.map(({ title }, at) => [at, title]), 0, (at) => {
      card = data.cards[at];
      draw();
    });
    const controls = {};
    const fields = NUMBERS.map(([name, label]) => {
      const input = element("input", { type: "number", min: "1", step: "1", value: recipe[name], oninput: () => set(name, Number(input.value)) });
      controls[name] = input;
      return speedlab.labelled(label, input);
    });
    const choices = data.choices.map(({ field, label, values }) => {
      const { list, field: labelled } = speedlab.choice(label, values.map((value) => [value, String(value)]), recipe[field],
        (value) => set(field, values.find((known) => String(known) === value)));
      controls[field] = list;
      return labelled;
    });
    const words = element("p", { class: "touch-status", "aria-live": "polite" });
    const shown = element("div");
    place.append(element("div", { class: "touch-controls" }, preset.field, cards.field, ...fields, ...choices), words, shown,
      element("p", { class: "touch-check" }, `The formulas of this page gave the same bytes as the package for all ` +
        `${data.presets.length} recipes of the first list.`));

    function set(name, value) {
      recipe = { ...recipe, [name]: value };
      draw();
    }

    function problem() {
      for (const [name, label] of NUMBERS) {
        if (!Number.isSafeInteger(recipe[name]) || recipe[name] < 1) return `${label}: a whole number of at least 1, please.`;
      }
      if (recipe.embedding_width % recipe.num_heads) return "The width must be a multiple of the number of heads.";
      if (recipe.precision.startsWith("bfloat16") && !card.bfloat16) {
        return `A ${card.title} has no units for bfloat16; this project runs float16_autocast there. Choose that, or float32.`;
      }
      return null;
    }

    function draw() {
      const why = problem();
      shown.hidden = why !== null;
      if (why) {
        words.textContent = why;
        return;
      }
      const plan = speedlab.planMemory(recipe, card.capability, data.known);
      const needed = speedlab.neededBytes(recipe, card, data.known);
      const most = speedlab.largestMicroBatch(recipe, card, data.known);
      const verdict = needed <= card.memory_gib * 2 ** 30 ? "It fits" : "It does not fit";
      words.textContent = `${verdict}: tensors hold ${gib(plan.peakBytes)} at the peak (${plan.peakAt}); with the reserve for ` +
        `allocator and context that asks for ${gib(needed)} of ${gib(card.memory_gib * 2 ** 30)}. ` +
        (most ? `Largest number of sequences that fits: ${most}.` : "Not even one sequence fits.");
      words.dataset.peak = plan.peakBytes;
      const largest = Math.max(...Object.values(plan.parts));
      shown.replaceChildren(speedlab.table(`Bytes at the peak, at the moment "${plan.peakAt}"`, ["part", "share", "GiB"],
        data.components.map((name) => [name, speedlab.bar(plan.parts[name] / largest), (plan.parts[name] / 2 ** 30).toFixed(3)])));
    }
    draw();
  };
})();
