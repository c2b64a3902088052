// Opens every group of positions with every value in a frame of one page and tells which of them ran a script or could.
// Started by `xss.rs`.
import { createRequire } from 'node:module';

const { CHROMIUM, INTERFACE, ORIGIN, GROUPS, VALUES } = process.env;
const { chromium } = createRequire(`${INTERFACE}/package.json`)('playwright-core');

const browser = await chromium.launch({
  executablePath: CHROMIUM,
  // A machine that builds at the same time starts a browser slowly.
  timeout: 600_000,
  args: ['--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
});
let status = 1;
try {
  const tab = await browser.newPage();
  tab.setDefaultTimeout(600_000);
  await tab.goto(`${ORIGIN}/`);
  const faults = await tab.evaluate(
    async ({ groups, values }) => {
      const faults = [];
      // The address of the case that is open; cases run one after the other within a lane.
      const running = new Map();
      window.ran = (what) => faults.push(`${[...running.keys()].join(' or ')} ran ${what}`);

      const open = (address) =>
        new Promise((resolve) => {
          const frame = document.createElement('iframe');
          frame.addEventListener('load', () => resolve(frame), { once: true });
          frame.src = address;
          document.body.append(frame);
        });
      const dangerous = /^[\u0000-\u0020]*(javascript|vbscript|data)\s*:/i;
      const isLink = (name) => /^(href|xlink:href|src|action|formaction|data|poster|to|from)$/i.test(name);
      const look = (address, view, harmless) => {
        for (const element of view.querySelectorAll('*')) {
          for (const { name, value } of element.attributes) {
            if (/^on/i.test(name)) faults.push(`${address} has the handler ${name}=${value}`);
            if (isLink(name) && dangerous.test(value.replace(/[\t\n\r]/g, ''))) faults.push(`${address} links to ${value}`);
          }
          if (element.protocol === 'javascript:') element.click();
          for (const event of ['mouseover', 'focus', 'error']) element.dispatchEvent(new Event(event));
        }
        // A mark follows each position: one that swallows what follows, or brings a script, shows here.
        const counts = { scripts: view.querySelectorAll('script').length, marks: view.querySelectorAll('hr').length };
        for (const [what, count] of Object.entries(harmless ?? counts)) {
          if (counts[what] !== count) faults.push(`${address} has ${counts[what]} ${what}, not ${count}`);
        }
        return counts;
      };
      const tick = () => new Promise((resolve) => setTimeout(resolve, 0));
      const examine = async (group) => {
        let harmless;
        for (let value = 0; value < values; value += 1) {
          const address = `/g${group}v${value}.html`;
          running.set(address, true);
          const frame = await open(address);
          const counts = look(address, frame.contentDocument, harmless);
          harmless ??= counts;
          await tick();
          await tick();
          frame.remove();
          running.delete(address);
        }
      };
      let next = 0;
      const lane = async () => {
        while (next < groups) await examine(next++);
      };
      await Promise.all([lane(), lane()]);
      return faults;
    },
    { groups: Number(GROUPS), values: Number(VALUES) },
  );
  for (const fault of faults) console.log(fault);
  console.log(`${GROUPS} groups of positions, ${VALUES} values, ${faults.length} faults`);
  status = faults.length === 0 ? 0 : 1;
} finally {
  await browser.close();
}
process.exit(status);
