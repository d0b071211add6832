// Uses the pieces that can be touched as a reader would, by keyboard, and asks the search for a word.
import { watch } from "./site.mjs";

// A piece, the page where it stands, and what a reader does with it. Each returns a problem or null.
const PIECES = [
  ["attention-stepper", "chapters/07_flash_attention.html", stepper],
  ["number-formats", "chapters/05_bfloat16.html", numberFormats],
  ["memory-calculator", "labs/memory_planner.html", calculator],
  ["ladder-explorer", "results.html", explorer],
];
const WORD = "FlashAttention", ITS_PAGE = "07_flash_attention.html";

/** Findings of all pieces, with scripts and without, and of the search. */
export async function checkTouch(browser, site) {
  const findings = [];
  for (const [name, page, use] of PIECES) {
    const add = (what) => findings.push({ page, view: "touched", rule: "touch", where: name, what });
    for (const scripts of [true, false]) {
      const context = await browser.newContext({ javaScriptEnabled: scripts, reducedMotion: "reduce" });
      const tab = await context.newPage();
      await tab.goto(site.base + page);
      const section = tab.locator(`section.touch[data-touch="${name}"]`);
      if ((await section.count()) !== 1) add(`stands ${await section.count()} times on its page`);
      else {
        const problem = scripts ? await use(section, tab) : await withoutScripts(section);
        if (problem) add(problem);
      }
      await context.close();
    }
  }
  return [...findings, ...(await checkSearch(browser, site))];
}

async function withoutScripts(section) {
  return (await section.locator(".touch-without-script").isVisible()) ? null : "says nothing where scripts are off";
}

async function stepper(section, tab) {
  const press = async (name, key) => {
    await section.getByRole("button", { name }).focus();
    await tab.keyboard.press(key);
  };
  const sizes = await section.getByLabel("Keys in a tile").locator("option").evaluateAll((all) => all.map((one) => one.value));
  for (const size of sizes) {
    await section.getByLabel("Keys in a tile").selectOption(size);
    for (let tile = 1; ; tile++) {
      await press("Next tile", tile % 2 ? "Enter" : "Space");
      const check = section.locator(".touch-check");
      if ((await check.getAttribute("data-same")) !== "yes") return `tiles of ${size}, tile ${tile}: ${await check.textContent()}`;
      if (!(await section.locator(".touch-status").textContent()).startsWith(`Tile ${tile} of`)) return "the words do not follow";
      if ((await section.getByRole("button", { name: "Next tile" }).getAttribute("aria-disabled")) === "true") break;
      if (tile > 100) return "there is no last tile";
    }
  }
  await press("Start over", "Enter");
  return (await section.locator(".touch-status").textContent()).startsWith("Nothing seen") ? null : "does not start over";
}

async function numberFormats(section) {
  const input = section.getByLabel("A number");
  const row = (form) => section.locator("tbody tr").filter({ has: section.page().locator(`th:text-is("${form}")`) });
  for (const [typed, form, words] of [
    ["65520", "float16", "infinity"], ["1.001", "bfloat16", "0 01111111 0000000"], ["-2.5", "float32", "exact"],
    ["1e-8", "float16", "zero"], ["449", "float8_e4m3", "448"], ["1e9", "float8_e4m3", "NaN"],
  ]) {
    await input.fill(typed);
    const told = (await row(form).textContent()).replace(/\s+/g, " ");
    if (!told.includes(words)) return `${typed} in ${form}: "${told}" without "${words}"`;
  }
  await input.fill("two");
  return (await section.locator(".touch-status").textContent()).includes("no number") ? null : "takes any word for a number";
}

async function calculator(section) {
  const words = section.locator(".touch-status");
  const data = JSON.parse(await section.locator("script").textContent());
  for (const [at, preset] of data.presets.entries()) {
    await section.getByLabel("Start from").selectOption(String(at));
    const peak = Number(await words.getAttribute("data-peak"));
    if (peak !== preset.peak_bytes) return `${preset.name}: ${peak} bytes, the package says ${preset.peak_bytes}`;
  }
  await section.getByLabel("Card").selectOption(String(data.cards.findIndex((card) => !card.bfloat16)));
  if (!(await words.textContent()).includes("no units for bfloat16")) return "runs bfloat16 where it cannot run";
  await section.getByLabel("Number format").selectOption("float16_autocast");
  if (!/fit/.test(await words.textContent())) return "gives no verdict";
  await section.getByLabel("Heads").fill("5");
  return (await words.textContent()).includes("multiple") ? null : "takes a width that heads cannot share";
}

async function explorer(section) {
  const data = JSON.parse(await section.locator("script").textContent());
  const cards = [...new Set(data.groups.map((group) => group.card))];
  for (const card of cards) {
    await section.getByLabel("Card").selectOption(card);
    for (const option of await section.getByLabel("Ladder").locator("option").all()) {
      const group = data.groups[Number(await option.getAttribute("value"))];
      await section.getByLabel("Ladder").selectOption(await option.getAttribute("value"));
      const label = await section.locator(".touch-status strong").textContent();
      if (label.startsWith("Published") !== group.published) return `${card}: labelled "${label}"`;
      if ((await section.locator("tbody tr").count()) !== group.rows.length) return `${card}: rows are missing`;
      await section.getByLabel("Order").selectOption("most");
      const told = (await section.locator("tbody td:last-child").allTextContents())
        .map((text) => Number(text.replace(/,/g, ""))).filter((value) => !Number.isNaN(value));
      if (told.some((value, at) => at && value > told[at - 1])) return `${card}: not in the order asked for`;
    }
  }
  return null;
}

async function checkSearch(browser, site) {
  const context = await browser.newContext();
  const page = await context.newPage();
  const seen = watch(page, site);
  await page.goto(`${site.base}search.html?q=${WORD}`);
  const found = page.locator(`#search-results a[href*="${ITS_PAGE}"]`).first();
  const problem = await found.waitFor({ timeout: 60_000 }).then(() => null, () => `"${WORD}" does not find ${ITS_PAGE}`);
  await context.close();
  const findings = [...seen.external].map((url) => ["external-request", url, "asked by the search"]);
  if (problem) findings.push(["search", WORD, problem]);
  return findings.map(([rule, where, what]) => ({ page: "search.html", view: "any", rule, where, what }));
}
