// The reader checks: `node check.mjs BOOK CHROMIUM`, where BOOK is the folder of the built HTML. Exit status 1 for a
// finding that baseline.json does not know. `make check-book` calls this.
import { readFileSync } from "node:fs";
import path from "node:path";
import { brokenLinks } from "./links.mjs";
import { checkPage } from "./page_checks.mjs";
import { openBrowser, pagesOf, serve } from "./site.mjs";
import { checkTouch } from "./touch_checks.mjs";

const TABS = 3; // pages at the same time
const SHOWN = 60; // findings

const [folder, program] = process.argv.slice(2);
const book = path.resolve(folder);
const { budget, known } = JSON.parse(readFileSync(new URL("./baseline.json", import.meta.url), "utf8"));
const began = Date.now();
const site = await serve(book);
const browser = await openBrowser(program);
let findings, names;
try {
  names = await pagesOf(book);
  const results = await checkAll(names);
  findings = results.flatMap((result) => result.findings);
  findings.push(...brokenLinks(results.map((result) => result.facts), site.base, book));
  findings.push(...(await checkTouch(browser, site.base)));
} finally {
  await browser.close();
  site.close();
}
report();

/** A few tabs take the pages in turn. */
async function checkAll(waiting) {
  const results = [], queue = [...waiting];
  const tab = async () => {
    for (let name = queue.shift(); name !== undefined; name = queue.shift()) {
      results.push(await checkPage(browser, site.base, name, budget));
    }
  };
  await Promise.all(Array.from({ length: TABS }, tab));
  return results;
}

/** The entry of the baseline that explains a finding, if any. */
function explained(finding) {
  return known.find((entry) => entry.rule === finding.rule && new RegExp(entry.where).test(finding.where));
}

function report() {
  const fresh = findings.filter((finding) => !explained(finding));
  const told = new Set();
  for (const { page, view, rule, where, what } of fresh) {
    const line = `${page}: ${rule} (${view}): ${where}${what ? `: ${what}` : ""}`;
    if (told.size < SHOWN) told.add(line);
  }
  for (const line of told) console.log(line);
  const stale = known.filter((entry) => !findings.some((finding) => explained(finding) === entry));
  for (const entry of stale) console.log(`baseline: nothing is explained any more by ${entry.rule} at ${entry.where}: drop it`);
  const seconds = Math.round((Date.now() - began) / 1000);
  console.log(`${names.length} pages, ${findings.length - fresh.length} known findings, ${fresh.length} new ones, ${seconds} s`);
  process.exitCode = fresh.length || !names.length ? 1 : 0;
}
