// The book as one PDF: `node print_pdf.mjs BOOK CHROMIUM OUT`. Chromium prints all pages, put one behind the other in
// the order of the contents, each from a new sheet; folded parts are opened. Links between pages become links inside.
import path from "node:path";
import { openBrowser, serve, watch } from "./site.mjs";

const [folder, program, out] = process.argv.slice(2);
const site = await serve(path.resolve(folder));
const browser = await openBrowser(program);
try {
  const page = await (await browser.newContext({ colorScheme: "light", reducedMotion: "reduce" })).newPage();
  const seen = watch(page, site);
  await page.goto(`${site.base}index.html`, { waitUntil: "load" });
  await page.waitForURL((url) => !url.pathname.endsWith("/index.html")); // it leads to the first page
  await page.waitForLoadState("load");
  const count = await page.evaluate(gather);
  await page.evaluate(() => Promise.all([...document.images].map((image) => image.decode().catch(() => null))));
  await page.pdf({ path: out, format: "A4", outline: true, tagged: true, printBackground: true, scale: 0.8,
    margin: { top: "15mm", bottom: "15mm", left: "14mm", right: "14mm" } });
  if (seen.missing.size || seen.external.size) throw new Error(`not in the book: ${[...seen.missing, ...seen.external].join(", ")}`);
  console.log(`${count} pages of the book in ${out}`);
} finally {
  await browser.close();
  site.close();
}

/* Inside the page: its body becomes the articles of all pages that the contents name. Returns how many. */
async function gather() {
  const first = new URL(location.href);
  const links = [...document.querySelectorAll("nav.bd-links a[href], .navbar-brand[href]")].map((link) => new URL(link.href));
  const pages = [...new Set([first, ...links].filter((url) => url.origin === first.origin).map((url) => url.origin + url.pathname))];
  const anchor = (url) => `page-${pages.indexOf(url.origin + url.pathname)}`;
  const articles = [];
  for (const [at, address] of pages.entries()) {
    const text = await (await fetch(address)).text();
    const article = new DOMParser().parseFromString(text, "text/html").querySelector("article");
    for (const element of article.querySelectorAll("[src]")) element.setAttribute("src", new URL(element.getAttribute("src"), address).href);
    for (const unwanted of article.querySelectorAll(".headerlink, .touch, script")) unwanted.remove();
    for (const fold of article.querySelectorAll("details")) fold.open = true;
    for (const element of article.querySelectorAll("[id]")) element.id = `page-${at}-${element.id}`;
    for (const link of article.querySelectorAll("a[href]")) {
      const url = new URL(link.getAttribute("href"), address);
      const inside = pages.includes(url.origin + url.pathname);
      link.setAttribute("href", inside ? `#${anchor(url)}${url.hash ? `-${url.hash.slice(1)}` : ""}` : url.href);
    }
    const section = document.createElement("section");
    section.id = `page-${at}`;
    section.style.breakBefore = at ? "page" : "auto";
    section.append(document.adoptNode(article));
    articles.push(section);
  }
  document.body.replaceChildren(...articles);
  document.title = document.title.split(" \u2014 ").pop();
  return pages.length;
}
