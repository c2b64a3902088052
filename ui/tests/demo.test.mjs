// The whole path against a running demo: log in by the link, edit a page in its form, publish, and see the change
// as a visitor. Started by the program's own tests with AUTHOR, DISPATCHER and LOGIN_LINK set.
import assert from 'node:assert/strict';
import { chromium } from 'playwright-core';

const { AUTHOR, DISPATCHER, LOGIN_LINK, SHOTS } = process.env;
const page = '/content/wayfare/en/journal/night-train-to-lisbon';
const title = `Edited in the browser ${process.pid}`;

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  args: [
    '--no-sandbox',
    '--disable-gpu',
    '--disable-quic',
    '--no-first-run',
    '--disable-background-networking',
    '--disable-component-update',
    '--disable-sync',
  ],
});
try {
  const tab = await browser.newPage({ viewport: { width: 1440, height: 900 } });
  const faults = [];
  tab.on('pageerror', (error) => faults.push(String(error)));
  const shot = (name) => (SHOTS ? tab.screenshot({ path: `${SHOTS}/${name}.png` }) : undefined);

  await tab.goto(LOGIN_LINK);
  await tab.waitForURL(/\/sites\.html/);
  await tab.getByText('Wayfare', { exact: false }).first().waitFor();
  await shot('sites');

  await tab.goto(`${AUTHOR}/editor.html${page}.html`);
  const field = tab.getByLabel(/^Title\b(?! in)/).first();
  await field.waitFor();
  await shot('editor');
  await field.fill(title);
  // Publishing saves what was typed last, and lists what the page needs and visitors lack.
  await tab.getByRole('button', { name: 'Publish', exact: true }).first().click();
  const along = tab.getByRole('button', { name: /^Publish with/ });
  const started = tab.getByText(/^Publishing started/);
  await along.or(started).first().waitFor();
  if (await along.isVisible()) await along.click();
  await started.first().waitFor();
  await shot('published');

  const visitor = await browser.newPage();
  for (let attempt = 0; ; attempt += 1) {
    await visitor.goto(`${DISPATCHER}${page}.html`);
    if ((await visitor.content()).includes(title)) break;
    assert.ok(attempt < 200, 'the visitor never saw the edit');
  }
  if (SHOTS) await visitor.screenshot({ path: `${SHOTS}/visitor.png`, fullPage: true });
  assert.deepEqual(faults, [], 'the interface raised errors');
  console.log('1 passed, 0 failed');
} finally {
  await browser.close();
}
