// What is asked of every page: axe, no sideways scrolling, no request to elsewhere, words for pictures, weight.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { watch } from "./site.mjs";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"];
// Only colours depend on the theme, so the look at the dark one is for them alone.
const OTHERS = { options: { runOnly: TAGS, rules: { "color-contrast": { enabled: false } } } };
const COLOURS = { options: { runOnly: ["color-contrast"] } };
// After a change of size the theme waits 300 ms until it makes wide code reachable by keyboard.
const SETTLED_MS = 400;
const SIZES = [{ width: 1280, height: 900 }, { width: 375, height: 740 }];

/** Look at one page in both sizes and themes, in a tab that has shown others before. Returns {findings, facts}, where a
 * finding is {page, view, rule, where, what}. judged: kinds of text whose colours were judged on any page, a Set that
 * grows; it makes the check several times as fast. */
export async function checkPage(tab, base, name, budget, judged) {
  const { page, seen } = tab;
  const findings = [];
  const add = (view, rule, where, what) => findings.push({ page: name, view, rule, where, what });
  for (const kept of Object.values(seen)) kept.clear();
  await page.setViewportSize(SIZES[0]);
  await page.goto(base + name, { waitUntil: "load" });
  await page.evaluate(AXE);
  const facts = { name, ...(await page.evaluate(readFacts)) };
  for (const viewport of SIZES) {
    const view = `${viewport.width} px`;
    await page.setViewportSize(viewport);
    await page.evaluate(settled, SETTLED_MS);
    const over = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
    if (over > 0) add(view, "overflow", "html", `${over} px wider than the window`);
    for (const { where, what } of await page.evaluate(brokenWords)) add(view, "broken-words", where, what);
    for (const found of await page.evaluate(runAxe, OTHERS)) add(view, found.rule, found.where, found.what);
    for (const theme of ["light", "dark"]) {
      await page.evaluate(turnTo, theme);
      const fresh = (await page.evaluate(kindsOfText)).filter((kind) => !judged.has(kind));
      if (!fresh.length) continue;
      for (const kind of fresh) judged.add(kind);
      for (const found of await page.evaluate(runAxe, { ...COLOURS, kinds: fresh })) add(`${theme}, ${view}`, found.rule, found.where, found.what);
    }
  }
  for (const url of seen.external) add("any", "external-request", url, "a page must not ask another host");
  for (const url of seen.missing) add("any", "missing-file", url.slice(base.length), "not in the book");
  for (const error of seen.errors) add("any", "script-error", error, "");
  for (const { where, what } of facts.alts) add("any", "alt-text", where, what);
  for (const problem of weigh(seen.bytes, base, budget, name)) add("any", "weight", name, problem);
  return { findings, facts };
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

/* The functions below run inside the page. */

async function runAxe({ options, kinds }) {
  const context = kinds ? { include: kinds.map((kind) => window.speedlabKinds.get(kind)) } : document;
  const result = await axe.run(context, { ...options, iframes: false, resultTypes: ["violations"] });
  return result.violations.flatMap((violation) => violation.nodes.map((node) => ({
    rule: violation.id, where: node.target.join(" "), what: (node.any[0] ?? node.all[0] ?? node.none[0])?.message ?? violation.help,
  })));
}

/* One visible element for each kind of text: the same names of element and class all the way up, and the same colour, font
 * and backgrounds. A stylesheet cannot tell such texts apart, and their contrast is the same. Returns a short name of each
 * kind, and leaves the elements in window.speedlabKinds. */
function kindsOfText() {
  const known = new Map([[document.body, ""]]);
  const short = (text) => {
    let [one, two] = [0x811c9dc5, 5381];
    for (let at = 0; at < text.length; at++) {
      one = Math.imul(one ^ text.charCodeAt(at), 0x01000193);
      two = Math.imul(two, 33) ^ text.charCodeAt(at);
    }
    return `${one >>> 0}-${two >>> 0}`;
  };
  const above = (element) => {
    if (!known.has(element)) {
      const { backgroundColor, backgroundImage, opacity, position } = getComputedStyle(element);
      known.set(element, short([above(element.parentElement), element.localName, element.className, backgroundColor, backgroundImage, opacity, position].join()));
    }
    return known.get(element);
  };
  window.speedlabKinds = new Map();
  for (const element of document.body.querySelectorAll(":not(script, style)")) {
    if (![...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim())) continue;
    if (!element.checkVisibility({ visibilityProperty: true })) continue;
    const { color, fontSize, fontWeight } = getComputedStyle(element);
    const kind = short([above(element), color, fontSize, fontWeight].join());
    if (!window.speedlabKinds.has(kind)) window.speedlabKinds.set(kind, element);
  }
  return [...window.speedlabKinds.keys()];
}

/* Cells of tables so narrow that words are broken into bits of a few letters. A long name may be broken into long ones. */
function brokenWords() {
  const found = [];
  for (const cell of document.querySelectorAll("article :is(td, th)")) {
    const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    for (let text = texts.nextNode(); text; text = texts.nextNode()) {
      const range = document.createRange();
      range.selectNodeContents(text);
      const lines = range.getClientRects().length, letters = text.data.trim().length;
      const pieces = text.data.trim().split(/[\s\-/]+/).length;
      if (lines > pieces && letters / lines < 10) found.push({ where: text.data.trim().slice(0, 50), what: `on ${lines} lines` });
    }
  }
  return found;
}

/* The other theme, without waiting for colours that change slowly. */
function turnTo(theme) {
  document.documentElement.dataset.theme = theme;
  for (const animation of document.getAnimations()) animation.finish();
}

/* Once the page has been drawn in its new size, and what the theme does some time after it is done as well. */
function settled(waitMs) {
  return new Promise((done) => {
    requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, waitMs)));
  });
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
