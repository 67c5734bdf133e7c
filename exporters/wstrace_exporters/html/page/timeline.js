// When: the bytes that arrived, by owner, stacked; marks, reads from disk as ticks, looks; and the brush.

/** Sums of the owners over columns from..to of a view: {faults, from_disk, brought, resident} each a list by owner. */
function sums(view, from, to) {
  const found = {};
  for (const figure of ['faults', 'from_disk', 'brought', 'resident']) {
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
  for (const figure of ['faults', 'from_disk', 'brought', 'resident']) {
    const flat = varints(view[figure]);
    view[figure] = view.labels.map((_, owner) => flat.slice(owner * columns, (owner + 1) * columns));
  }
  view.untimed = varints(view.untimed);
}

function timeline(time) {
  const body = section('timeline', 'When: memory over time, by owner',
    'Cumulative. “still resident” counts the bytes that are there at the counted moment, at the time when they arrived; '
    + 'points are all that was resident at a look; “brought” counts all that arrived. Drag over a part, or use the arrow keys (with Shift to widen, Esc for all): the other pictures follow.');
  if (!time.n) return cannot(body, data.why.times);
  for (const view of Object.values(time.views)) unpackView(view, time.n);
  for (const why of data.why.timeline) body.append(el('p', {class: 'note'}, why));
  const plot = el('div', {tabindex: 0, role: 'application', 'aria-label': 'Timeline; arrow keys move the brush', class: 'plot'});
  const ticks = sharp(16, (g, width) => drawTicks(g, width, time), {class: 'ticks', 'aria-hidden': 'true'});
  const legend = el('div', {class: 'legend'}), window_ = el('div', {id: 'window', 'aria-live': 'polite'});
  body.append(legend, plot, spanRows(time), el('p', {class: 'quiet'}, diskWords(time)), ticks, window_);
  let chart = null;
  const moments = Array.from({length: time.n + 1}, (_, at) => (time.first + at * time.width) / 1e6);

  function curves(view) {
    const figure = state.weight, unit = figure === 'from_disk' ? 1 : view.unit;
    let below = new Float64Array(time.n + 1);
    return view.labels.map((_, owner) => {
      const mine = new Float64Array(time.n + 1);
      let total = 0;
      for (let at = 0; at <= time.n; at++) {
        mine[at] = below[at] + total;
        if (at < time.n) total += view[figure][owner][at] * unit;
      }
      below = mine;
      return mine;
    });
  }

  function draw() {
    const view = time.views[state.view], stacked = curves(view);
    const seen = Array(time.n + 1).fill(null);
    if (state.weight === 'resident') for (const [column, held] of time.looks) seen[column] = held;
    chart?.destroy();
    const text = variable('--text'), line = variable('--line');
    const axis = {stroke: text, grid: {stroke: line}, ticks: {stroke: line}};
    const label = state.weight === 'from_disk' ? 'reads from disk' : state.weight === 'resident' ? 'still resident' : 'brought';
    chart = new uPlot({
      width: Math.max(plot.clientWidth || 1100, 300), height: 260, scales: {x: {time: false}},
      legend: {show: false}, cursor: {drag: {x: true, y: false, setScale: false}, points: {show: false}},
      axes: [{...axis, values: (_, all) => all.map(value => `${value} s`)},
        {...axis, size: 80, label, labelFont: '12px system-ui', values: (_, all) => all.map(state.weight === 'from_disk' ? count : bytes)}],
      series: [{}, ...view.labels.map((name, owner) => ({label: name, stroke: text, width: 0.5,
        fill: chart_ => pattern(chart_.ctx, owner)})).reverse(),
      {label: 'look', stroke: text, width: 1.5, dash: [2, 3], spanGaps: true, points: {show: true, size: 6, fill: text}}],
      hooks: {setSelect: [dragged], drawAxes: [drawMarks]},
    }, [moments, ...stacked.slice().reverse(), seen], plot);
    showBrush();
    legend.replaceChildren(...view.labels.map((name, owner) => el('span', {}, swatch(owner), ' ' + name)));
    legend.querySelectorAll('canvas').forEach((_, owner) => {
      const g = legend.querySelectorAll('canvas')[owner].getContext('2d');
      g.fillStyle = pattern(g, owner);
      g.fillRect(0, 0, 28, 20);
    });
  }

  function drawMarks(chart_) {
    const g = chart_.ctx, ratio = devicePixelRatio || 1;
    g.save();
    g.fillStyle = g.strokeStyle = variable('--text');
    g.font = `${11 * ratio}px system-ui`;
    g.setLineDash([4 * ratio, 3 * ratio]);
    for (const [at, text] of time.marks) {
      const x = chart_.valToPos(at, 'x', true);
      g.beginPath();
      g.moveTo(x, chart_.bbox.top);
      g.lineTo(x, chart_.bbox.top + chart_.bbox.height);
      g.stroke();
      g.fillText(text, x + 3 * ratio, chart_.bbox.top + 11 * ratio);
    }
    g.restore();
  }

  /** A drag snaps to the columns that it touches. */
  function dragged(chart_) {
    const {left, width} = chart_.select;
    if (width < 2 || showing) return;
    const column = x => (chart_.posToVal(x, 'x') * 1e6 - time.first) / time.width;
    const from = Math.max(Math.floor(column(left)), 0), to = Math.min(Math.ceil(column(left + width)), time.n);
    if (to > from) change({from, to});
  }

  let showing = false;
  function showBrush() {
    showing = true;
    if (state.from === null) chart.setSelect({left: 0, width: 0, top: 0, height: 0}, false);
    else {
      const left = chart.valToPos(moments[state.from], 'x'), right = chart.valToPos(moments[state.to], 'x');
      chart.setSelect({left, width: right - left, top: 0, height: chart.over.clientHeight}, false);
    }
    showing = false;
  }

  function tell() {
    const view = time.views[state.view], from = state.from ?? 0, to = state.to ?? time.n, all = state.from === null;
    const of = sums(view, from, to);
    const whole = Object.fromEntries(Object.entries(of).map(([key, list]) => [key, list.reduce((sum, n) => sum + n, 0)]));
    const between = `${seconds(time.first + from * time.width)},${seconds(time.first + to * time.width)}`;
    const resident = n => pagesKnown ? [bytes(n), n] : 'not known';
    const cells = at => [resident(at === null ? whole.resident : of.resident[at]),
      [bytes(at === null ? whole.brought : of.brought[at]), at === null ? whole.brought : of.brought[at]],
      [count(at === null ? whole.faults : of.faults[at]), at === null ? whole.faults : of.faults[at]],
      [count(at === null ? whole.from_disk : of.from_disk[at]), at === null ? whole.from_disk : of.from_disk[at]]];
    const order = view.labels.map((_, at) => at).filter(at => of.faults[at] || of.resident[at]);
    order.sort((a, b) => of[state.weight][b] - of[state.weight][a]);
    const untimed = view.untimed.reduce((sum, n) => sum + n, 0) * view.unit;
    window_.replaceChildren(
      el('p', {}, el('b', {}, all ? 'All times: ' : 'Between '), el('code', {'data-between': between}, between), ' s',
        all ? '' : el('button', {type: 'button', onclick: () => change({from: null, to: null})}, 'all times')),
      table(['still resident', 'brought', 'faults', 'from disk', ''],
        [...order.map(at => [...cells(at), ownerName(view.labels, at, view.labels[at], view.rest)]),
        [...cells(null), 'Total']], 'Figures of the chosen time'),
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
  redrawn(draw);
  follow(changed => {
    if (changed.includes('weight') || changed.includes('view')) draw(); else showBrush();
    ticks.redraw();
    tell();
  });
  tell();
}

/** The spans as bars below the plot, those of a thread within each other; a click or Enter chooses the time of one. */
function spanRows(time) {
  const rows = el('div', {class: 'spans', role: 'group', 'aria-label': 'Spans of the program'});
  const begin = time.first / 1e6, long = time.n * time.width / 1e6, told = el('p', {class: 'told', 'aria-live': 'polite'}, ' ');
  const column = at => (at - begin) / long * time.n;
  for (const [row, from, to, name, thread, open] of time.spans) {
    const left = Math.max(from, begin), right = Math.min(to, begin + long);
    const text = `${name}: ${seconds(Math.round((to - from) * 1e6))} s${open ? ', still open at the end' : ''}, thread ${thread}`;
    const say = () => { told.textContent = text; };
    const bar = el('button', {type: 'button', class: `span p${row % PATTERNS}`, title: text, 'aria-label': text, onmouseenter: say, onfocus: say,
      onclick: () => {
        const first = Math.min(Math.max(Math.floor(column(from)), 0), time.n - 1);
        change({from: first, to: Math.max(Math.min(Math.ceil(column(to)), time.n), first + 1)});
      }}, name);
    Object.assign(bar.style, {left: 100 * (left - begin) / long + '%', width: 100 * (right - left) / long + '%', top: row * 18 + 'px'});
    rows.append(bar);
  }
  rows.style.height = 18 * (1 + Math.max(-1, ...time.spans.map(([row]) => row))) + 'px';
  return time.spans.length ? el('div', {}, rows, told) : '';
}

function diskWords(time) {
  if (!time.majors) return 'No fault read from disk.';
  const drawn = time.drawn < time.majors ? `; ${count(time.drawn)} of them are drawn, spread evenly` : '';
  return `Reads from disk, a tick each: ${count(time.majors)}${drawn}.`;
}

/** The distinct places of ticks, in 1/16 of a column, ascending. */
function placesOf(ticks) {
  const pairs = varints(ticks), found = [];
  let place = 0;
  for (let at = 0; at < pairs.length; at += 2) {
    place += pairs[at];
    if (!at || pairs[at]) found.push(place);
  }
  return found;
}

function drawTicks(g, width, time) {
  const left = 80, room = width - left - 8;
  g.fillStyle = variable('--soft');
  g.font = '11px system-ui';
  g.fillText('from disk', 8, 12);
  g.fillStyle = variable('--more');
  let last = -1;
  for (const place of time.places ??= placesOf(time.ticks)) {
    const column = place / 16, pixel = Math.round(room * column / time.n);
    if (pixel === last) continue;
    last = pixel;
    const chosen = state.from === null || (column >= state.from && column < state.to);
    g.globalAlpha = chosen ? 0.9 : 0.2;
    g.fillRect(left + room * column / time.n, chosen ? 0 : 4, 1, chosen ? 16 : 8);
  }
  g.globalAlpha = 1;
}
