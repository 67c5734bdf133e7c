// Where: a row a mapping, its pages from left to right, as they are at the counted moment.

const STATES = ['not in memory', 'shared', 'private, of a file', 'private, own'];

/** The cells of a strip: state, share of pages that are there in 1/15, owner, column of the timeline + 1. */
function cellsOf(strip) {
  const raw = varints(strip.cells), found = [];
  for (let at = 0; at < raw.length; at += 4) {
    for (let n = 0; n < raw[at]; n++) found.push([raw[at + 1] & 3, raw[at + 1] >> 2, raw[at + 2], raw[at + 3]]);
  }
  return found;
}

function strips(all) {
  const body = section('strips', 'Where: the pages of each mapping',
    'A row a mapping; left is its first page. Move over a row, or use the arrow keys in it, to read who brought the pages and when.');
  if (!all.rows.length) return cannot(body, data.why.pages);
  if (all.more) body.append(el('p', {class: 'note'}, all.more));
  const legend = el('div', {class: 'legend'}, ...[[1, 0], [2, 1], [3, 6]].map(([kind, look]) => el('span', {}, swatch(look), ' ' + STATES[kind])));
  const said = reader();
  body.append(legend, said);
  const canvases = all.rows.map(strip => {
    const cells = cellsOf(strip);
    let at = 0;
    const canvas = sharp(14, (g, width) => drawStrip(g, width, cells, canvas === document.activeElement ? at : -1),
      {tabindex: 0, role: 'img', 'aria-label': `${strip.name}: ${bytes(strip.resident)} of ${bytes(strip.size)} in memory`});
    const say = () => {
      const [kind, full, owner, when] = cells[at];
      const share_ = kind ? ` (${Math.round(100 * full / 15)} % of these pages are there)` : '';
      const who = kind ? `, brought by ${all.owners[owner]}` : '';
      const time = when && data.time.n ? ` at ${seconds(data.time.first + (when - 1) * data.time.width)} s` : '';
      const first = Math.ceil(at * (strip.size / all.page) / cells.length); // a page is in the cell of its number rounded down
      const address = BigInt(strip.start) + BigInt(first) * BigInt(all.page);
      said.textContent = `${strip.name} 0x${address.toString(16)}: ${STATES[kind]}${share_}${who}${time}`;
    };
    canvas.addEventListener('mousemove', event => {
      const frame = canvas.getBoundingClientRect();
      at = Math.min(Math.max(Math.floor((event.clientX - frame.left) / frame.width * cells.length), 0), cells.length - 1);
      say();
    });
    canvas.addEventListener('keydown', event => {
      const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
      if (!step) return;
      event.preventDefault();
      at = Math.min(Math.max(at + step, 0), cells.length - 1);
      canvas.redraw();
      say();
    });
    body.append(el('div', {class: 'strip'},
      el('span', {class: 'label', title: `${strip.name} ${strip.process}`}, `‎${strip.name}`),
      el('span', {class: 'number', 'data-value': strip.resident}, `${bytes(strip.resident)} of ${bytes(strip.size)}`), canvas));
    return canvas;
  });
  follow(changed => { if (changed.includes('from')) for (const canvas of canvases) canvas.redraw(); });
}

function drawStrip(g, width, cells, marked) {
  const looks = [null, pattern(g, 0), pattern(g, 1), pattern(g, 6)];
  const wide = width / cells.length;
  for (let at = 0; at < cells.length; at++) {
    const [kind, full, , when] = cells[at];
    if (!kind) continue;
    const chosen = state.from === null || (when && when - 1 >= state.from && when - 1 < state.to);
    g.globalAlpha = chosen ? 1 : 0.2;
    g.fillStyle = looks[kind];
    const tall = Math.max(14 * full / 15, 3);
    g.fillRect(at * wide, 14 - tall, wide + 0.3, tall);
  }
  g.globalAlpha = 1;
  if (marked >= 0) {
    g.strokeStyle = variable('--accent');
    g.strokeRect(marked * wide, 0.5, Math.max(wide, 2), 13);
  }
}
