'use strict';
// What all pictures share: the data, elements, numbers in words, colours with patterns, and the state that they follow.

const data = JSON.parse(document.getElementById('data').textContent);
const page = document.getElementById('page');
const PATTERNS = 10;
/** Behind the patterns of owners: what is no owner or one of many, plain and striped. */
const PLAIN = 8, STRIPED = 9;

/** An element with attributes and children; text is text, never markup. */
function el(tag, attributes = {}, ...children) {
  const found = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith('on')) found.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== false) found.setAttribute(key, value === true ? '' : value);
  }
  found.append(...children.filter(child => child !== ''));
  return found;
}

/** A section with its title, how to read it, and a body. */
function section(id, title, how) {
  const body = el('div', {class: 'body'});
  page.append(el('section', {id, 'aria-label': title}, el('h2', {}, title), el('p', {class: 'how'}, how), body));
  return body;
}

/** Says why a picture is not there, or what it lacks. */
function cannot(body, why) {
  body.append(el('p', {class: 'cannot'}, why));
}

function bytes(n) {
  const sign = n < 0 ? '−' : '';
  let value = Math.abs(n), step = 0;
  while (value >= 1024 && step < 4) { value /= 1024; step++; }
  return sign + (step ? value.toLocaleString('en', {minimumFractionDigits: 1, maximumFractionDigits: 1}) : Math.round(value))
    + ' ' + ['B', 'KiB', 'MiB', 'GiB', 'TiB'][step];
}

function count(n) { return Math.round(n).toLocaleString('en'); }

function share(n, of) { return of ? (100 * n / of).toFixed(1) + ' %' : ''; }

/** Microseconds as exact seconds: 1234500 -> 1.2345. */
function seconds(us) {
  const whole = Math.floor(us / 1e6), rest = String(us - whole * 1e6).padStart(6, '0').replace(/0+$/, '');
  return rest ? `${whole}.${rest}` : String(whole);
}

function octets(text) { return Uint8Array.from(atob(text), character => character.charCodeAt(0)); }

/** Numbers of 7 bits a byte, the lowest first. */
function varints(text) {
  const found = [], raw = octets(text);
  let value = 0, scale = 1;
  for (const one of raw) {
    value += (one & 127) * scale;
    if (one & 128) { scale *= 128; } else { found.push(value); value = 0; scale = 1; }
  }
  return found;
}

function variable(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

function colour(n) { return variable(`--c${n % PATTERNS}`); }

const tiles = [];
/** A colour with lines or dots on it, so that it differs from the others without colours. */
function pattern(context, n) { return context.createPattern(tiles[n % PATTERNS], 'repeat'); }

/** The pattern of an owner, which is the same in all pictures: the largest own lines have one each. */
const owners = new Map();
for (const { labels } of Object.values(data.time?.views ?? {})) {
  labels.forEach((label, at) => { if (label !== '(others)' && !owners.has(label)) owners.set(label, at % PLAIN); });
}
function look(name) { return owners.get(name) ?? PLAIN; }

function tileOf(n) {
  const tile = document.createElement('canvas');
  tile.width = tile.height = 8;
  const g = tile.getContext('2d');
  g.fillStyle = colour(n);
  g.fillRect(0, 0, 8, 8);
  g.strokeStyle = g.fillStyle = variable('--hatch');
  g.beginPath();
  const kind = n % PATTERNS;
  if (kind === 1 || kind === 5 || kind === STRIPED) { g.moveTo(-2, 6); g.lineTo(6, -2); g.moveTo(2, 10); g.lineTo(10, 2); }
  if (kind === 2 || kind === 5) { g.moveTo(-2, 2); g.lineTo(6, 10); g.moveTo(2, -2); g.lineTo(10, 6); }
  if (kind === 3 || kind === 7) { g.moveTo(0, 4); g.lineTo(8, 4); }
  if (kind === 4 || kind === 7) { g.moveTo(4, 0); g.lineTo(4, 8); }
  if (kind === 6) { g.fillRect(1, 1, 2, 2); g.fillRect(5, 5, 2, 2); }
  g.stroke();
  return tile;
}

/** The same pattern as the background of an element; it follows the colours. */
function background(n) { return `var(--p${n % PATTERNS})`; }

/** A small sample of a pattern for legends. */
function swatch(n) {
  const found = el('span', {class: 'swatch', 'aria-hidden': 'true'});
  found.style.background = background(n);
  return found;
}

/** A canvas as sharp as the screen; draw(context, width, height) is called again when size or colours change. */
function sharp(height, draw, attributes = {}) {
  const found = el('canvas', {...attributes});
  found.style.height = height + 'px';
  found.redraw = () => {
    const width = found.clientWidth || 1100, ratio = window.devicePixelRatio || 1;
    const tall = parseFloat(found.style.height);
    found.width = Math.round(width * ratio);
    found.height = Math.round(tall * ratio);
    const g = found.getContext('2d');
    g.scale(ratio, ratio);
    draw(g, width, tall);
  };
  redrawn(found.redraw);
  return found;
}

/** The line in which what the pointer or the keyboard is at is read. */
function reader() { return el('p', {class: 'said', 'aria-live': 'polite'}, ' '); }

// -- what pictures follow -----------------------------------------------------------------------------------------

const drawn = [];
/** Calls it now (when the page is laid out) and whenever the colours or the width change. */
function redrawn(draw) { drawn.push(draw); }
function redraw() {
  for (let n = 0; n < PATTERNS; n++) {
    tiles[n] = tileOf(n);
    document.documentElement.style.setProperty(`--p${n}`, `url(${tiles[n].toDataURL()})`);
  }
  for (const draw of drawn) draw();
}
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
let resizing = 0;
addEventListener('resize', () => { cancelAnimationFrame(resizing); resizing = requestAnimationFrame(redraw); });

const WEIGHTS = data.weights ?? [['resident', 'still resident'], ['brought', 'brought'], ['from_disk', 'from disk']];
/** Whether the trace tells which pages are there; without that, no number stands for them. */
const pagesKnown = !data.why?.pages;
/** weight, view: what is shown; from, to: the columns of the brush, to past the last one; null = all. */
const state = {weight: WEIGHTS[pagesKnown ? 0 : 1][0], view: 'line', from: null, to: null};
const followers = [];
function follow(react) { followers.push(react); }
function change(some) {
  Object.assign(state, some);
  for (const react of followers) react(Object.keys(some));
}

/** Buttons of which one is pressed. */
function choice(label, options, key) {
  const group = el('span', {role: 'group', 'aria-label': label, class: 'choice'}, el('span', {}, label + ' '));
  const buttons = options.map(([value, text]) =>
    el('button', {type: 'button', 'data-choice': value, onclick: () => change({[key]: value})}, text));
  const press = () => buttons.forEach((one, at) => one.setAttribute('aria-pressed', state[key] === options[at][0]));
  follow(press);
  press();
  group.append(...buttons);
  return group;
}

/** The choice of who owners are; views: value -> text. */
function viewChoice(views) {
  const options = Object.entries(views).map(([value, text]) => el('option', {value, selected: value === state.view}, text));
  return el('label', {}, 'by ', el('select', {'aria-label': 'Owners are', onchange: event => change({view: event.target.value})}, ...options));
}

/** The last line; from now on the page can be read. */
function finish() {
  page.append(el('footer', {}, 'Made by wstrace from its own analysis; the file needs no network.'));
  redraw();
  document.documentElement.dataset.ready = 'yes';
}

/** A table of numbers with names at the end; cells are [text, exact value] or text. */
function table(heads, rows, name) {
  const body = el('tbody', {}, ...rows.map(cells => el('tr', {}, ...cells.map((cell, at) => {
    if (cell instanceof Node) return el('td', {}, cell);
    const [text, value] = Array.isArray(cell) ? cell : [cell];
    return el('td', {class: at < cells.length - 1 ? 'number' : 'name', 'data-value': value, title: value === undefined ? text : undefined}, text);
  }))));
  return el('table', {class: 'figures', 'aria-label': name},
    el('thead', {}, el('tr', {}, ...heads.map(head => el('th', {scope: 'col'}, head)))), body);
}
