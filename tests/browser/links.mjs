// Every link inside the book must lead to a page that is there, and to a place that is on it.
import { existsSync } from "node:fs";
import path from "node:path";

/** facts: of each page, as page_checks returns them. Links to other hosts are not followed. */
export function brokenLinks(facts, base, folder) {
  const ids = new Map(facts.map((page) => [page.name, new Set(page.ids)]));
  const findings = [];
  for (const page of facts) {
    for (const [address, written] of page.links) {
      if (!address.startsWith(base)) continue;
      const url = new URL(address);
      const name = decodeURIComponent(url.pathname.slice(1)) || "index.html";
      const place = decodeURIComponent(url.hash.slice(1));
      const add = (what) => findings.push({ page: page.name, view: "any", rule: "broken-link", where: written, what });
      if (!existsSync(path.join(folder, name))) add("no such file");
      else if (place && ids.has(name) && !ids.get(name).has(place)) add(`no place "${place}" on ${name}`);
    }
  }
  return findings;
}
