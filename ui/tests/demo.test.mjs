// The whole path against a running demo: log in by the link, edit a page in its form, publish, and see the change
// as a visitor; then rename the live page, while a visitor asks for its old address all the time. Started by the program's own tests with AUTHOR, DISPATCHER and LOGIN_LINK set.
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
  // Publishing saves what was typed last, and takes along what the page needs and visitors lack.
  await tab.getByRole('button', { name: 'Publish', exact: true }).first().click();
  await tab.getByText(/^Publishing started/).first().waitFor();
  await shot('published');

  const visitor = await browser.newPage();
  for (const begin = performance.now(); ; ) {
    await visitor.goto(`${DISPATCHER}${page}.html`);
    if ((await visitor.content()).includes(title)) break;
    assert.ok(performance.now() - begin < 60_000, 'the visitor never saw the edit');
  }
  if (SHOTS) await visitor.screenshot({ path: `${SHOTS}/visitor.png`, fullPage: true });

  const renamed = `${page}-${process.pid}`;
  const statuses = new Map();
  let isWatching = true;
  const watch = async () => {
    while (isWatching) {
      const { status } = await fetch(`${DISPATCHER}${page}.html`, { redirect: 'manual' });
      statuses.set(status, (statuses.get(status) ?? 0) + 1);
    }
  };
  const watching = watch();
  await tab.getByRole('button', { name: 'More actions' }).first().click();
  await tab.getByRole('menuitem', { name: 'Move or rename…' }).click();
  await tab.getByRole('dialog').getByLabel('Name in the address').fill(renamed.split('/').at(-1));
  await shot('rename');
  await tab.getByRole('dialog').getByRole('button', { name: 'Move' }).click();
  await tab.waitForURL((url) => decodeURIComponent(url.pathname) === `/editor.html${renamed}.html`);
  for (const begin = performance.now(); ; ) {
    const answer = await fetch(`${DISPATCHER}${page}.html`, { redirect: 'manual' });
    const target = answer.headers.get('location') ?? '';
    if (target.includes(renamed) && (await fetch(new URL(target, DISPATCHER))).status === 200) break;
    assert.ok(performance.now() - begin < 60_000, `the old address never led to the new one: ${[...statuses]}`);
  }
  isWatching = false;
  await watching;
  console.log(`a visitor got ${[...statuses].map(([status, count]) => `${status} ${count} times`).join(', ')}`);
  assert.ok([...statuses.keys()].every((status) => status < 400), 'the page was gone for a moment');
  assert.deepEqual(faults, [], 'the interface raised errors');
  console.log('1 passed, 0 failed');
} finally {
  await browser.close();
}
