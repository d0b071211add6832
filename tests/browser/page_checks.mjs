// What is asked of every page: axe, no sideways scrolling, no request to elsewhere, words for pictures, weight.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { watch } from "./site.mjs";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"];
// After a change of size the theme waits 300 ms until it makes wide code reachable by keyboard.
const SETTLED_MS = 600;
const SIZES = [{ width: 1280, height: 900 }, { width: 375, height: 740 }];

/** Look at one page in both sizes and themes. Returns {findings: [{page, view, rule, where, what}], facts}. */
export async function checkPage(browser, base, name, budget) {
  const findings = [];
  const context = await browser.newContext({ viewport: SIZES[0], colorScheme: "light", reducedMotion: "reduce" });
  const page = await context.newPage();
  const seen = await watch(page, base);
  const add = (view, rule, where, what) => findings.push({ page: name, view, rule, where, what });
  await page.goto(base + name, { waitUntil: "load" });
  await page.evaluate(AXE);
  const facts = { name, ...(await page.evaluate(readFacts)) };
  for (const viewport of SIZES) {
    await page.setViewportSize(viewport);
    await page.waitForTimeout(SETTLED_MS);
    const over = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
    if (over > 0) add(`${viewport.width} px`, "overflow", "html", `${over} px wider than the window`);
    for (const theme of ["light", "dark"]) {
      await page.evaluate((mode) => { document.documentElement.dataset.theme = mode; }, theme);
      for (const run of axeRuns(theme, viewport)) {
        for (const found of await page.evaluate(runAxe, run)) add(`${theme}, ${viewport.width} px`, found.rule, found.where, found.what);
      }
    }
  }
  for (const url of seen.external) add("any", "external-request", url, "a page must not ask another host");
  for (const url of seen.missing) add("any", "missing-file", url.slice(base.length), "not in the book");
  for (const error of seen.errors) add("any", "script-error", error, "");
  for (const { where, what } of facts.alts) add("any", "alt-text", where, what);
  for (const problem of weigh(seen.bytes, base, budget, name)) add("any", "weight", name, problem);
  await context.close();
  return { findings, facts };
}

/** Only colours depend on the theme, so the second look is for them alone. Those of code and tables do not depend on the
 * width, and are most of the work: they are looked at once for each theme. */
function axeRuns(theme, viewport) {
  const colours = { options: { runOnly: ["color-contrast"] }, exclude: viewport.width < 1000 ? ["div.highlight", "table.table"] : [] };
  const others = { options: { runOnly: TAGS, rules: { "color-contrast": { enabled: false } } }, exclude: [] };
  return theme === "light" ? [others, colours] : [colours];
}

/** The page's own bytes, and those of what every page loads, against the budget. */
function weigh(bytes, base, budget, name) {
  let own = 0, shared = 0;
  for (const [url, amount] of bytes) {
    if (url?.startsWith(base) && !url.slice(base.length).startsWith("_static/")) own += amount;
    else shared += amount;
  }
  const allowed = budget.heavy_pages.includes(name) ? budget.own_bytes_of_heavy_pages : budget.own_bytes;
  const problems = [];
  if (own > allowed) problems.push(`${own} bytes of its own, the budget is ${allowed}`);
  if (shared > budget.shared_bytes) problems.push(`${shared} bytes of scripts, styles and fonts, the budget is ${budget.shared_bytes}`);
  return problems;
}

/* The two functions below run inside the page. */

async function runAxe({ options, exclude }) {
  const result = await axe.run({ include: [["html"]], exclude: exclude.map((selector) => [selector]) }, { ...options, iframes: false, resultTypes: ["violations"] });
  return result.violations.flatMap((violation) => violation.nodes.map((node) => ({
    rule: violation.id, where: node.target.join(" "), what: (node.any[0] ?? node.all[0] ?? node.none[0])?.message ?? violation.help,
  })));
}

function readFacts() {
  const alts = [];
  for (const picture of document.querySelectorAll("article img, article svg[role='img']")) {
    const words = (picture.getAttribute("alt") ?? picture.getAttribute("aria-label") ??
      picture.querySelector("title")?.textContent ?? "").trim();
    const source = picture.getAttribute("src") ?? "";
    const where = source.startsWith("data:") ? `picture "${words.slice(0, 40)}"` : source || "svg";
    if (words.length < 20) alts.push({ where, what: `its words are too few: "${words}"` });
    else if (/^(image|picture|figure) of\b/i.test(words)) alts.push({ where, what: `say what is seen: "${words}"` });
    else if (/\.(png|svg|jpe?g)$/i.test(words)) alts.push({ where, what: "a file's name is no description" });
  }
  return {
    alts,
    ids: [...document.querySelectorAll("[id], a[name]")].map((element) => element.id || element.name),
    links: [...document.querySelectorAll("a[href]")].map((link) => [link.href, link.getAttribute("href")]),
  };
}
