// Takes the pictures of the README from a running demo: the editor, and the page that visitors see. Usage, beside
// `make demo`:
//   LOGIN_LINK=$(cat tympan-demo/author/login-link) node ui/tests/pictures.mjs docs/pictures
// AUTHOR and DISPATCHER name other addresses of the demo, CHROMIUM another browser.
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { chromium } from 'playwright-core';

const folder = process.argv[2] ?? 'docs/pictures';
const { LOGIN_LINK, AUTHOR = 'http://127.0.0.1:4502', DISPATCHER = 'http://127.0.0.1:8080' } = process.env;
const page = '/content/wayfare/en/journal/night-train-to-lisbon.html';
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  args: ['--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-background-networking'],
});

/** Writes what a tab shows as WebP, which Playwright's own screenshots cannot. */
async function take(tab, name) {
  await tab.evaluate(() => document.fonts.ready);
  const session = await tab.context().newCDPSession(tab);
  const { data } = await session.send('Page.captureScreenshot', { format: 'webp', quality: 80 });
  await writeFile(join(folder, name), Buffer.from(data, 'base64'));
}

try {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, locale: 'en-US', reducedMotion: 'reduce' });
  const editor = await context.newPage();
  await editor.goto(LOGIN_LINK);
  await editor.waitForURL(/\/sites\.html/);
  await editor.goto(`${AUTHOR}/editor.html${page}`);
  await editor.getByLabel(/^Title\b(?! in)/).first().waitFor();
  await editor.waitForLoadState('networkidle');
  await take(editor, 'editor.webp');
  const site = await context.newPage();
  await site.goto(DISPATCHER + page, { waitUntil: 'networkidle' });
  await take(site, 'site.webp');
} finally {
  await browser.close();
}
