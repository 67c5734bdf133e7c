// When: the bytes that arrived, by owner, stacked; marks, spans, snapshots; and the brush.

/** What stands left and right of the columns, in pixels: the words of an axis. */
const LEFT = 80, RIGHT = 8;
const FIGURES = ['faults', 'from_disk', 'brought', 'resident'];

/** A round number of at least this: 1, 2 or 5 with noughts. */
function roundStep(least) {
  const ten = 10 ** Math.floor(Math.log10(least));
  return ten * ([1, 2, 5].find(n => n * ten >= least) ?? 10);
}

/** Sums of the owners over columns from..to of a view: {faults, from_disk, brought, resident} each a list by owner. */
function sums(view, from, to) {
  const found = {};
  for (const figure of FIGURES) {
    const unit = figure === 'brought' || figure === 'resident' ? view.unit : 1;
    found[figure] = view[figure].map(row => {
      let total = 0;
      for (let at = from; at < to; at++) total += row[at];
      return total * unit;
    });
  }
  return found;
}

/** The rows of a view, a number for each owner and column. */
function unpackView(view, columns) {
  for (const figure of FIGURES) {
    const flat = varints(view[figure]);
    view[figure] = view.labels.map((_, owner) => flat.slice(owner * columns, (owner + 1) * columns));
  }
  view.untimed = varints(view.untimed);
}

function timeline(time) {
  const body = section('timeline', 'When: memory over time, by owner',
    'Cumulative. “still resident” counts the bytes that are there at the counted moment, at the time when they arrived; '
    + '“brought” counts all that arrived. Drag over a part, or use the arrow keys (with Shift to widen, Esc for all) for what arrived then.');
  if (!time.n) return cannot(body, data.why.times);
  for (const view of Object.values(time.views)) unpackView(view, time.n);
  for (const why of data.why.timeline) body.append(el('p', {class: 'note'}, why));
  const plot = sharp(260, draw, {tabindex: 0, role: 'application', 'aria-label': 'Timeline; arrow keys move the brush', class: 'plot'});
  const legend = el('div', {class: 'legend'}), window_ = el('div', {id: 'window', 'aria-live': 'polite'});
  body.append(legend, plot, spanRows(time), window_);
  let drag = null; // the pixels from and to which a drag goes

  /** The sum of each owner and those below it at each edge of a column. */
  function curves(view) {
    const figure = state.weight, unit = figure === 'from_disk' ? 1 : view.unit;
    let below = new Float64Array(time.n + 1);
    return view.labels.map((_, owner) => {
      let total = 0;
      below = below.map((under, at) => under + (at ? total += view[figure][owner][at - 1] * unit : 0));
      return below;
    });
  }

  function draw(g, width, tall) {
    const view = time.views[state.view], stacked = curves(view), reads = state.weight === 'from_disk';
    const most = Math.max(1, stacked.at(-1)[time.n]), bottom = tall - 24;
    const x = column => LEFT + (width - LEFT - RIGHT) * column / time.n, y = amount => bottom - (bottom - 12) * amount / most;
    const at = moment => x((moment * 1e6 - time.first) / time.width);
    const text = variable('--text');
    const path = points => { g.beginPath(); points.forEach(point => g.lineTo(...point)); };
    g.lineWidth = 0.5;
    for (let owner = stacked.length - 1; owner >= 0; owner--) {
      path([[LEFT, bottom], ...Array.from(stacked[owner], (amount, column) => [x(column), y(amount)]), [x(time.n), bottom]]);
      g.fillStyle = pattern(g, look(view.labels[owner]));
      g.strokeStyle = text;
      g.fill();
      g.stroke();
    }
    g.font = '11px system-ui';
    g.fillStyle = text;
    g.strokeStyle = variable('--line');
    g.textAlign = 'right';
    const up = reads ? roundStep(most / 5) : 2 ** Math.ceil(Math.log2(most / 5));
    for (let amount = 0; amount <= most; amount += up) {
      path([[LEFT, y(amount)], [x(time.n), y(amount)]]);
      g.stroke();
      g.fillText(reads ? count(amount) : bytes(amount), LEFT - 6, y(amount) + 4);
    }
    g.textAlign = 'center';
    const right = roundStep(time.n * time.width / 1e6 / 8);
    for (let n = Math.ceil(time.first / 1e6 / right); at(n * right) <= x(time.n); n++) {
      path([[at(n * right), 12], [at(n * right), bottom + 4]]);
      g.stroke();
      g.fillText(`${seconds(Math.round(n * right * 1e6))} s`, at(n * right), tall - 6);
    }
    g.textAlign = 'left';
    g.strokeStyle = text;
    g.setLineDash([4, 3]);
    g.lineWidth = 1;
    for (const [moment, words] of time.marks) {
      path([[at(moment), 12], [at(moment), bottom]]);
      g.stroke();
      g.fillText(words, at(moment) + 3, 22);
    }
    g.setLineDash([]);
    g.fillStyle = variable('--accent');
    g.globalAlpha = 0.25;
    const [from, to] = drag ?? [state.from, state.to].map(x);
    if (drag || state.from !== null) g.fillRect(from, 12, to - from, bottom - 12);
    g.globalAlpha = 1;
    legend.replaceChildren(...view.labels.map(name => el('span', {}, swatch(look(name)), ' ' + name)));
  }

  plot.addEventListener('pointerdown', event => {
    plot.setPointerCapture(event.pointerId);
    drag = [event.offsetX, event.offsetX];
  });
  plot.addEventListener('pointermove', event => {
    if (!drag) return;
    drag[1] = event.offsetX;
    plot.redraw();
  });
  plot.addEventListener('pointercancel', () => { drag = null; });
  /** A drag snaps to the columns that it touches. */
  plot.addEventListener('pointerup', () => {
    const [left, right] = (drag ?? [0, 0]).sort((a, b) => a - b);
    const column = x => (x - LEFT) / (plot.clientWidth - LEFT - RIGHT) * time.n;
    const from = Math.max(Math.floor(column(left)), 0), to = Math.min(Math.ceil(column(right)), time.n);
    drag = null;
    if (right - left >= 2 && to > from) change({from, to});
  });

  function tell() {
    const view = time.views[state.view], from = state.from ?? 0, to = state.to ?? time.n, all = state.from === null;
    const of = sums(view, from, to);
    const between = `${seconds(time.first + from * time.width)},${seconds(time.first + to * time.width)}`;
    const cells = amount => {
      const cell = (figure, words) => [words(amount(of[figure])), amount(of[figure])];
      return [pagesKnown ? cell('resident', bytes) : 'not known', cell('brought', bytes), cell('faults', count), cell('from_disk', count)];
    };
    const order = view.labels.map((_, at) => at).filter(at => of.faults[at] || of.resident[at]);
    order.sort((a, b) => of[state.weight][b] - of[state.weight][a]);
    const untimed = view.untimed.reduce((sum, n) => sum + n, 0) * view.unit;
    window_.replaceChildren(
      el('p', {}, el('b', {}, all ? 'All times: ' : 'Between '), el('code', {'data-between': between}, between), ' s',
        all ? '' : el('button', {type: 'button', onclick: () => change({from: null, to: null})}, 'all times')),
      table(['still resident', 'brought', 'faults', 'from disk', ''],
        [...order.map(at => [...cells(list => list[at]), view.labels[at]]),
        [...cells(list => list.reduce((sum, n) => sum + n, 0)), 'Total']], 'Figures of the chosen time'),
      all && untimed ? el('p', {class: 'quiet'}, `and ${bytes(untimed)} are resident that no recorded fault brought`) : '');
  }

  plot.addEventListener('keydown', event => {
    const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (event.key === 'Escape') change({from: null, to: null});
    if (!step) return;
    event.preventDefault();
    const wide = Math.max(Math.round(time.n / 20), 1);
    let from = state.from ?? 0, to = state.to ?? wide;
    if (event.shiftKey) to += step; else if (state.from !== null) { from += step; to += step; }
    if (from >= 0 && to <= time.n && to > from) change({from, to});
  });
  plot.addEventListener('dblclick', () => change({from: null, to: null}));
  follow(() => {
    plot.redraw();
    tell();
  });
  tell();
}

/** The spans as bars below the plot, those of a thread within each other; a click or Enter chooses the time of one. */
function spanRows(time) {
  const rows = el('div', {class: 'spans', role: 'group', 'aria-label': 'Spans of the program'});
  const begin = time.first / 1e6, long = time.n * time.width / 1e6, said = reader();
  const column = at => (at - begin) / long * time.n;
  for (const [row, from, to, name, thread, open] of time.spans) {
    const left = Math.max(from, begin), right = Math.min(to, begin + long);
    const text = `${name}: ${seconds(Math.round((to - from) * 1e6))} s${open ? ', still open at the end' : ''}, thread ${thread}`;
    const say = () => { said.textContent = text; };
    const bar = el('button', {type: 'button', class: 'span', title: text, 'aria-label': text, onmouseenter: say, onfocus: say,
      onclick: () => {
        const first = Math.min(Math.max(Math.floor(column(from)), 0), time.n - 1);
        change({from: first, to: Math.max(Math.min(Math.ceil(column(to)), time.n), first + 1)});
      }}, name);
    Object.assign(bar.style, {background: background(PLAIN), left: 100 * (left - begin) / long + '%', width: 100 * (right - left) / long + '%', top: row * 18 + 'px'});
    rows.append(bar);
  }
  rows.style.height = 18 * (1 + Math.max(-1, ...time.spans.map(([row]) => row))) + 'px';
  return time.spans.length ? el('div', {}, rows, said) : '';
}
