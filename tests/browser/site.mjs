// Serves a built book on this machine alone, and opens it in Chromium. It judges nothing.
import { createServer } from "node:http";
import { readFile, readdir } from "node:fs/promises";
import path from "node:path";
import { chromium } from "playwright-core";

const TYPES = {
  ".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml",
  ".png": "image/png", ".json": "application/json", ".woff2": "font/woff2", ".ico": "image/x-icon",
};

// What no reader visits: indexes that Sphinx makes, and pages that only hold code.
const NOT_PAGES = /^(genindex|py-modindex|search)\.html$|^_/;

/** Serve `folder` and return {base, sizes, close}; `base` ends with a slash, sizes: bytes of every file sent, by path. */
export async function serve(folder) {
  const sizes = new Map();
  const server = createServer(async (request, response) => {
    const name = decodeURIComponent(new URL(request.url, "http://book").pathname);
    const file = path.join(folder, path.normalize(name));
    try {
      const content = await readFile(file);
      sizes.set(new URL(request.url, "http://book").pathname, content.length);
      const type = TYPES[path.extname(file)] ?? "application/octet-stream";
      response.writeHead(200, { "content-type": type, "cache-control": "max-age=3600" }).end(content);
    } catch {
      response.writeHead(404).end();
    }
  });
  await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
  return { base: `http://127.0.0.1:${server.address().port}/`, sizes, close: () => server.close() };
}

/** Names of all pages below `folder`, sorted: "index.html", "chapters/01_causal_mask.html", ... */
export async function pagesOf(folder) {
  const files = (await readdir(folder, { recursive: true })).map((name) => name.split(path.sep).join("/"));
  const names = files.filter((name) => name.endsWith(".html") && !NOT_PAGES.test(name)).sort();
  const texts = await Promise.all(names.map((name) => readFile(path.join(folder, name), "utf8")));
  return names.filter((_, at) => !/<meta http-equiv="refresh"/i.test(texts[at])); // index.html only leads to the first page
}

/** Chromium with its own traffic switched off, which reaches this machine and nothing else; `program` is its path. */
export function openBrowser(program) {
  return chromium.launch({
    executablePath: program,
    args: ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
      "--disable-component-update", "--disable-sync", "--disable-quic",
      "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"],
  });
}

/** Note every request of a page that leaves the book, every file that is missing, every script error, and what was sent.
 * Nothing is stopped here: a browser of `openBrowser` reaches no other host, and stopping would cost it its cache. */
export function watch(page, site) {
  const seen = { external: new Set(), missing: new Set(), errors: new Set(), bytes: new Map() };
  page.on("request", (request) => {
    const url = request.url();
    if (!url.startsWith(site.base) && !/^(data|blob|about):/.test(url)) seen.external.add(url);
  });
  page.on("response", (response) => {
    if (response.status() >= 400 && !response.url().endsWith("/favicon.ico")) seen.missing.add(response.url());
    else seen.bytes.set(response.url(), site.sizes.get(new URL(response.url()).pathname) ?? 0);
  });
  page.on("pageerror", (error) => seen.errors.add(error.message));
  return seen;
}
