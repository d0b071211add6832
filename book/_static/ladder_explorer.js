/* The ladder explorer: one card's climb by one figure. Rows come from committed records, or from a published account
   that is named beside them; the two never stand in one table. */
(function () {
  "use strict";
  const speedlab = (globalThis.speedlab ??= {});
  speedlab.pieces ??= {};

  const METRICS = [
    ["tokens_per_s", "tokens/s", (value) => Math.round(value).toLocaleString("en-US")],
    ["step_ms", "ms per step", (value) => value.toPrecision(4)],
    ["ms_per_1000_tokens", "ms per 1,000 tokens", (value) => value.toPrecision(4)],
    ["reserved_gib", "GiB reserved", (value) => value.toFixed(2)],
    ["speedup_total", "speed-up so far", (value) => `${value.toPrecision(3)}x`],
    ["speedup_step", "speed-up of this step", (value) => `${value.toFixed(2)}x`],
  ];
  const ORDERS = [["ladder", "as the ladder stacks them"], ["most", "largest number first"], ["least", "smallest number first"]];

  /* The rows in the order asked for; rows without this number come last, in the order of the ladder. */
  speedlab.orderedRows = function (rows, metric, order) {
    if (order === "ladder") return rows;
    const sign = order === "most" ? -1 : 1;
    const known = rows.filter((row) => row[metric] !== null).sort((a, b) => sign * (a[metric] - b[metric]));
    return [...known, ...rows.filter((row) => row[metric] === null)];
  };

  speedlab.pieces["ladder-explorer"] = function (place, data) {
    const { element } = speedlab;
    const titles = [...new Set(data.groups.map((group) => group.card))];
    const state = { card: titles[0], metric: METRICS[0][0], order: "ladder", group: data.groups[0] };
    const ladders = () => data.groups.filter((group) => group.card === state.card);
    const listed = () => ladders().map((group) => [data.groups.indexOf(group), group.ladder]);

    const card = speedlab.choice("Card", titles.map((title) => [title, title]), state.card, (title) => {
      const before = state.group.ladder;
      state.card = title;
      state.group = ladders().find((group) => group.ladder === before) ?? ladders()[0];
      speedlab.fill(ladder.list, listed(), data.groups.indexOf(state.group));
      draw();
    });
    const ladder = speedlab.choice("Ladder", listed(), 0, (at) => { state.group = data.groups[at]; draw(); });
    const metric = speedlab.choice("Show", METRICS.map(([name, words]) => [name, words]), state.metric, (name) => {
      state.metric = name;
      draw();
    });
    const order = speedlab.choice("Order", ORDERS, state.order, (name) => { state.order = name; draw(); });
    const source = element("p", { class: "touch-status", "aria-live": "polite" });
    const shown = element("div");
    place.append(element("div", { class: "touch-controls" }, card.field, ladder.field, metric.field, order.field), source, shown);

    function draw() {
      const { group } = state;
      const [name, words, format] = METRICS.find(([key]) => key === state.metric);
      const rows = speedlab.orderedRows(group.rows, name, state.order);
      const largest = Math.max(...rows.map((row) => row[name] ?? 0));
      const label = group.published ? "Published, not measured by this project" : "Measured";
      source.replaceChildren(element("strong", {}, label), `: ${group.source}. `,
        largest ? "" : `It says nothing about ${words}.`);
      if (group.url) source.append(element("a", { href: group.url }, "Its source"));
      shown.replaceChildren(speedlab.table(`${group.ladder} on ${group.card}: ${words}`, ["step", "", words], rows.map((row) => {
        const value = row[name];
        const unclear = name.startsWith("speedup") && value !== null && row[`${name}_clear`] === false;
        return [row.title, value === null ? "" : speedlab.bar(value / largest, group.published ? "published" : "measured"),
          unclear ? "no clear difference" : value === null ? row.reason ?? "\u2013" : format(value)];
      })));
      shown.querySelector("thead th:nth-child(2)").append(element("span", { class: "touch-hidden" }, "bar"));
    }
    draw();
  };
})();
