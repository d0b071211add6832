// The reader checks: `node check.mjs BOOK CHROMIUM [PATTERN]`, where BOOK is the folder of the built HTML and PATTERN
// chooses pages by name (then links are not followed). Exit status 1 for a finding that baseline.json does not know,
// which is told as soon as its page was looked at. `make check-book` calls this.
import { readFileSync } from "node:fs";
import { availableParallelism } from "node:os";
import path from "node:path";
import { brokenLinks } from "./links.mjs";
import { checkPage } from "./page_checks.mjs";
import { openBrowser, pagesOf, serve, watch } from "./site.mjs";
import { checkTouch } from "./touch_checks.mjs";

const TABS = Math.max(2, availableParallelism()); // pages at the same time
const SHOWN = 60; // findings of one page

const [folder, program, pattern] = process.argv.slice(2);
const book = path.resolve(folder);
const { budget, known } = JSON.parse(readFileSync(new URL("./baseline.json", import.meta.url), "utf8"));
const began = Date.now();
const site = await serve(book);
const browser = await openBrowser(program);
const findings = [];
let names;
try {
  names = (await pagesOf(book)).filter((name) => new RegExp(pattern ?? "").test(name));
  const facts = await checkAll([...names]);
  if (!pattern) tell(brokenLinks(facts, site.base, book));
  tell(await checkTouch(browser, site));
} finally {
  await browser.close();
  site.close();
}
const fresh = findings.filter((finding) => !explained(finding));
const stale = pattern ? [] : known.filter((entry) => !findings.some((finding) => explained(finding) === entry));
for (const entry of stale) console.log(`baseline: nothing is explained any more by ${entry.rule} at ${entry.where}: drop it`);
console.log(`${names.length} pages, ${findings.length - fresh.length} known findings, ${fresh.length} new ones, ` +
  `${Math.round((Date.now() - began) / 1000)} s`);
process.exitCode = fresh.length || !names.length ? 1 : 0;

/** A few tabs take the pages in turn. Returns what the pages hold. */
async function checkAll(queue) {
  const facts = [], judged = new Set();
  // One context for all: scripts and styles that every page loads are fetched and compiled once.
  const context = await browser.newContext({ colorScheme: "light", reducedMotion: "reduce" });
  const tab = async () => {
    const page = await context.newPage();
    const seen = watch(page, site);
    for (let name = queue.shift(); name !== undefined; name = queue.shift()) {
      const result = await checkPage({ page, seen }, site.base, name, budget, judged);
      facts.push(result.facts);
      tell(result.findings);
    }
  };
  await Promise.all(Array.from({ length: TABS }, tab));
  await context.close();
  return facts;
}

/** The entry of the baseline that explains a finding, if any. */
function explained(finding) {
  return known.find((entry) => entry.rule === finding.rule && new RegExp(entry.where).test(finding.where));
}

/** Keep findings, and print the new ones. */
function tell(found) {
  findings.push(...found);
  for (const { page, view, rule, where, what } of found.filter((finding) => !explained(finding)).slice(0, SHOWN)) {
    console.log(`${page}: ${rule} (${view}): ${where}${what ? `: ${what}` : ""}`);
  }
}
