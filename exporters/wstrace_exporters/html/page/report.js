// The report: its first lines, the choices, and the pictures in their order; what is resident, by kind and by process.

const VIEW_NAMES = {line: 'own line', package: 'package', file: 'file of the page', kind: 'kind of memory'};

function header() {
  const [answer, ...more] = data.headline;
  page.append(el('header', {}, el('h1', {}, answer), ...more.map(text => el('p', {}, text)),
    ...data.losses.map(text => el('p', {class: 'loss'}, text)),
    ...data.notes.map(text => el('p', {class: 'note quiet'}, text)),
    el('p', {class: 'quiet'}, data.about)));
}

/** A bar for each kind of memory, to one scale, each by who brought it. */
function whole(parts) {
  const body = section('whole', 'The whole: what is resident, by kind and by who brought it',
    'One bar for each kind of memory, all to one scale. Move over a part, or go to it with Tab, to read who brought it.');
  if (!parts.length) return cannot(body, data.why.pages);
  const most = Math.max(...parts.map(part => part.bytes)), total = parts.reduce((sum, part) => sum + part.bytes, 0);
  const said = reader();
  for (const part of parts) {
    const bar = el('div', {class: 'bar'});
    bar.style.width = 100 * part.bytes / most + '%';
    part.owners.forEach(([name, n]) => {
      const text = `${part.name}: ${bytes(n)} (${share(n, total)}) ${name}`, say = () => { said.textContent = text; };
      const one = el('span', {class: 'segment', tabindex: 0, role: 'img', 'aria-label': text, title: text,
        onmouseenter: say, onfocus: say}, n / most > 0.12 ? name : '');
      Object.assign(one.style, {flexGrow: n, background: background(look(name))});
      bar.append(one);
    });
    body.append(el('div', {class: 'part', 'data-part': part.name}, el('span', {class: 'label'}, part.name),
      el('span', {class: 'number', 'data-value': part.bytes}, `${bytes(part.bytes)} ${share(part.bytes, total)}`),
      el('div', {class: 'track'}, bar)));
  }
  body.append(el('p', {class: 'total'}, 'Total resident ', el('b', {'data-value': total}, bytes(total))), said);
}

/** A row for each process, from its beginning to its end; what it shares and what is its own, and what it copied. */
function workers(all) {
  if (!all) return;
  const body = section('workers', 'Processes: what they share',
    'A row for each process, from its beginning to its end; from the counted moment on, the striped part is its own, the plain one shared with others. Copied: what it or its parent copied of memory shared at the fork.');
  for (const why of all.notes) body.append(el('p', {class: 'note'}, why));
  const most = Math.max(1, ...all.bars.map(bar => bar.resident)), [from, to] = all.span, tall = 26;
  for (const bar of all.bars) {
    const canvas = sharp(tall, (g, width) => {
      const x = at => width * (at - from) / Math.max(to - from, 1e-9), end = Math.max(x(bar.end), x(bar.begin) + 2);
      const left = Math.min(x(all.moment), width - 6), wide = Math.max(end - left, 6);
      g.fillStyle = variable('--line');
      g.fillRect(x(bar.begin), 0, end - x(bar.begin), tall);
      [[bar.resident, PLAIN], [bar.private, STRIPED]].forEach(([amount, tile]) => {
        g.fillStyle = pattern(g, tile);
        g.fillRect(left, tall - tall * amount / most, wide, tall * amount / most);
      });
      const at = column => x((data.time.first + column * data.time.width) / 1e6);
      g.strokeStyle = variable('--accent');
      if (state.from !== null) g.strokeRect(at(state.from), 0.5, Math.max(at(state.to) - at(state.from), 1), tall - 1);
    }, {role: 'img', 'aria-label': bar.name});
    const words = bar.resident ? `${bytes(bar.private)} of ${bytes(bar.resident)} private` : 'no snapshot';
    body.append(el('div', {class: 'worker'}, el('span', {class: 'label', title: bar.name}, bar.name),
      el('span', {class: 'number', 'data-value': bar.resident}, words + (bar.copied ? `, ${bytes(bar.copied)} copied` : '')), canvas));
    follow(changed => { if (changed.includes('from')) canvas.redraw(); });
  }
  if (!all.copies.length) return;
  const copied = all.copies.reduce((sum, [, n]) => sum + n, 0);
  body.append(el('h3', {'data-value': copied}, all.answer), el('div', {id: 'copies'},
    table(['copied', ''], all.copies.map(([name, n]) => [[bytes(n), n], name]), 'Copied since a fork')));
}

header();
const shown = WEIGHTS.filter(([key]) => pagesKnown || key !== 'resident');
page.append(el('nav', {class: 'tools', 'aria-label': 'What is shown'}, choice('Show', shown, 'weight'), data.growth ? '' : viewChoice(VIEW_NAMES)));
if (data.growth) {
  section('growth', 'What changed', 'Largest first.').append(table(...data.growth, 'What changed'));
} else {
  whole(data.whole.parts);
  timeline(data.time);
}
icicle(data.tree);
workers(data.workers);
finish();
