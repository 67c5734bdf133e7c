// Drives one Chromium over the pipe of its DevTools protocol: a command a line on standard input, an answer a line on standard output.
// {"method": ..., "params": {...}} is sent to the page, and answered with {"result": ...} or {"error": ...};
// {"events": NAME} is answered with the parameters of the events of that name so far.
import {spawn} from 'node:child_process';
import {createInterface} from 'node:readline';

const [program, folder] = process.argv.slice(2);
const browser = spawn(program, ['--headless', '--hide-scrollbars', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--no-first-run',
  '--disable-background-networking', '--disable-component-update', '--remote-debugging-pipe', `--user-data-dir=${folder}`, 'about:blank'],
  {stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe']});
const [, , , toBrowser, fromBrowser] = browser.stdio;
const waiting = new Map(), events = [];
let last = 0, rest = '';

fromBrowser.on('data', data => {
  rest += data;
  for (let end; (end = rest.indexOf('\0')) >= 0; rest = rest.slice(end + 1)) {
    const message = JSON.parse(rest.slice(0, end));
    if (message.id) { waiting.get(message.id)(message); waiting.delete(message.id); } else events.push(message);
  }
});

function send(method, params = {}, sessionId = undefined) {
  return new Promise(answer => {
    waiting.set(++last, answer);
    toBrowser.write(JSON.stringify({id: last, method, params, sessionId}) + '\0');
  });
}

const {targetId} = (await send('Target.createTarget', {url: 'about:blank'})).result;
const {sessionId} = (await send('Target.attachToTarget', {targetId, flatten: true})).result;
for (const domain of ['Page', 'Runtime', 'Log', 'Network', 'Audits']) await send(`${domain}.enable`, {}, sessionId);
console.log(JSON.stringify({ready: true}));
for await (const line of createInterface({input: process.stdin})) {
  const request = JSON.parse(line);
  if (request.events) {
    console.log(JSON.stringify({result: events.filter(one => one.method === request.events).map(one => one.params)}));
  } else {
    const {result, error} = await send(request.method, request.params, sessionId);
    console.log(JSON.stringify(error ? {error: error.message} : {result}));
  }
}
await Promise.race([send('Browser.close'), new Promise(wait => setTimeout(wait, 3000))]);
browser.kill();
process.exit(0);
