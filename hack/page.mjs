// Looks at web pages in Chromium, which is spoken to by a pipe. `hack/page` says what for.
//   node hack/page.mjs CHROMIUM AXE URL...
import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const [browser, axe, ...urls] = process.argv.slice(2);
const SCREENS = [
  { name: 'wide', width: 1280, height: 900, scheme: 'light' },
  { name: 'narrow', width: 390, height: 844, scheme: 'light' },
  { name: 'dark', width: 1280, height: 900, scheme: 'dark' },
];
const RULES = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'];
const LONGEST = 120_000;

for (const url of urls) {
  if (!/^(127\.\d+\.\d+\.\d+|localhost|\[::1\])$/.test(new URL(url).hostname)) throw new Error(`${url} is not on loopback`);
}

const home = mkdtempSync(join(tmpdir(), 'clusterstack-page-'));
const chromium = spawn(browser, [
  '--headless=new', '--remote-debugging-pipe', `--user-data-dir=${home}`, '--disable-gpu', '--disable-dev-shm-usage',
  '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync', '--disable-extensions',
  '--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.*, EXCLUDE localhost, EXCLUDE [::1]',
  // Chromium's own sandbox can't be made by root; the pages have no scripts.
  ...(process.getuid() === 0 ? ['--no-sandbox'] : []),
  'about:blank',
], { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] });
const [, , , into, from] = chromium.stdio;

// Processes of the browser outlive it for a moment, and write.
const remove = (code, tries) => {
  try {
    rmSync(home, { recursive: true, force: true });
  } catch (error) {
    if (tries > 0) return setTimeout(() => remove(code, tries - 1), 200);
    console.error(`${home} is left: ${error.message}`);
  }
  process.exit(code);
};
const end = (code) => {
  chromium.once('exit', () => remove(code, 50));
  chromium.kill('SIGKILL');
};
const late = setTimeout(() => { console.error('the browser took too long'); end(1); }, LONGEST);
chromium.once('error', (error) => { console.error(`${browser}: ${error.message}`); process.exit(1); });

const waiting = new Map();
const listeners = new Set();
let last = 0;
let rest = '';
from.on('data', (data) => {
  const parts = (rest + data).split('\0');
  rest = parts.pop();
  for (const part of parts) {
    const message = JSON.parse(part);
    const waiter = waiting.get(message.id);
    waiting.delete(message.id);
    if (waiter) message.error ? waiter.reject(new Error(message.error.message)) : waiter.resolve(message.result);
    else for (const listener of listeners) listener(message);
  }
});
const send = (method, params = {}, sessionId) => new Promise((resolve, reject) => {
  waiting.set(++last, { resolve, reject });
  into.write(`${JSON.stringify({ id: last, method, params, sessionId })}\0`);
});
const event = (name, of = () => true) => new Promise((resolve) => {
  const listener = (message) => {
    if (message.method !== name || !of(message.params)) return;
    listeners.delete(listener);
    resolve(message.params);
  };
  listeners.add(listener);
});

const failures = [];

async function look(url, screen) {
  const fail = (what) => failures.push(`${url} (${screen.name}): ${what}`);
  const { targetId } = await send('Target.createTarget', { url: 'about:blank' });
  const { sessionId } = await send('Target.attachToTarget', { targetId, flatten: true });
  const ask = (method, params) => send(method, params, sessionId);
  const heard = ({ sessionId: of, method, params }) => {
    if (of !== sessionId) return;
    if (method === 'Log.entryAdded') fail(`console: ${params.entry.level}: ${params.entry.text}`);
    if (method === 'Runtime.consoleAPICalled') fail(`console: ${JSON.stringify(params.args)}`);
    if (method === 'Runtime.exceptionThrown') fail(`exception: ${params.exceptionDetails.text}`);
    if (method === 'Audits.issueAdded') fail(`issue: ${JSON.stringify(params.issue)}`);
    if (method === 'Network.requestWillBeSent' && params.type !== 'Document') fail(`it loads ${params.request.url}`);
    if (method === 'Network.responseReceived' && params.response.status !== 200) fail(`status ${params.response.status}`);
  };
  listeners.add(heard);
  for (const domain of ['Page', 'Runtime', 'Log', 'Network', 'Audits']) await ask(`${domain}.enable`);
  await ask('Emulation.setDeviceMetricsOverride', { width: screen.width, height: screen.height, deviceScaleFactor: 1, mobile: false });
  await ask('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value: screen.scheme }] });
  const loaded = event('Page.loadEventFired');
  const { errorText } = await ask('Page.navigate', { url });
  if (errorText) throw new Error(`${url}: ${errorText}`);
  await loaded;
  const value = async (expression) => {
    const { result, exceptionDetails } = await ask('Runtime.evaluate', { expression, awaitPromise: true, returnByValue: true });
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
    return result.value;
  };
  if (await value('document.scripts.length') !== 0) fail('it has scripts');
  const [content, room] = await value('[document.documentElement.scrollWidth, innerWidth]');
  if (content > room) fail(`it is wider than the screen: ${content} of ${room}`);
  // By colour and font of what is there: a style that the policy refuses would leave both as they are.
  if (await value('getComputedStyle(document.body).maxWidth') === 'none') fail('it has no style');
  const text = await value('document.body.innerText');
  await value(`${readFileSync(axe, 'utf8')}; 0`);
  const rules = JSON.stringify({ runOnly: RULES, resultTypes: ['violations'] });
  const found = await value(`axe.run(document, ${rules}).then(({ violations }) => violations.map(
    ({ id, help, nodes }) => id + ': ' + help + ': ' + nodes.slice(0, 3).map((node) => node.html.slice(0, 200)).join(' | ')))`);
  found.forEach((violation) => fail(`axe: ${violation}`));
  if (process.env.PAGE_SCREENSHOTS) {
    const { data } = await ask('Page.captureScreenshot', { captureBeyondViewport: true });
    const name = `${new URL(url).pathname.split('/').filter(Boolean).join('-') || 'list'}-${screen.name}.png`;
    writeFileSync(join(process.env.PAGE_SCREENSHOTS, name), Buffer.from(data, 'base64'));
  }
  listeners.delete(heard);
  await send('Target.closeTarget', { targetId });
  return text;
}

try {
  for (const url of urls) {
    let text = '';
    for (const screen of SCREENS) text = await look(url, screen);
    console.log(`== ${url}\n${text}\n`);
  }
} catch (error) {
  failures.push(error.message);
}
clearTimeout(late);
failures.forEach((failure) => console.error(failure));
end(failures.length === 0 ? 0 : 1);
