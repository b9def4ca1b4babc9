// What is warm in a snapshot: `browser`, and `page`, which is open in it.
//
// The VM is the sandbox, so Chromium needs none of its own; and there is no GPU.
const { chromium } = require('playwright-core');

const ARGUMENTS = ['--no-sandbox', '--no-zygote', '--disable-gpu', '--disable-dev-shm-usage'];
// Under emulation everything takes its time.
const PATIENCE_MS = 300_000;

// A page's own generator is as old as its process, and so the same in every fork.
function drawAnew() {
  const drawn = new Uint32Array(2);
  Math.random = () => {
    crypto.getRandomValues(drawn);
    return ((drawn[0] >>> 5) * 67108864 + (drawn[1] >>> 6)) / 9007199254740992;
  };
}

// Awaited by whoever loads this file.
module.exports = (async () => {
  const browser = await chromium.launch({
    executablePath: '/usr/bin/chromium-headless-shell',
    args: ARGUMENTS,
    timeout: PATIENCE_MS,
  });
  const context = await browser.newContext({ viewport: { width: 800, height: 600 } });
  context.setDefaultTimeout(PATIENCE_MS);
  await context.addInitScript(drawAnew);
  globalThis.page = await context.newPage();
  // Everything that a first page needs has been used once.
  await page.goto('data:text/html,<title>warm</title><h1>warm</h1>');
  await page.screenshot();
  return browser;
})();
