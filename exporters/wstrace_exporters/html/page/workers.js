// Processes: a lane each, from its beginning to its end; what it shares and what is its own, and what it copied.

/** What arrived in columns from..to and is resident, and what of that is private. */
function arrivedIn(lane, unit, from, to) {
  const raw = lane.arrived ??= varints(lane.times);
  let time = 0, resident = 0, own = 0;
  for (let at = 0; at < raw.length; at += 3) {
    time += raw[at];
    if (time >= from && time < to) { resident += raw[at + 1] * unit; own += raw[at + 2] * unit; }
  }
  return [resident, own];
}

function workers(all) {
  if (!all) return;
  const body = section('workers', 'Processes: what they share',
    'A lane a process, from its beginning to its end; at the look the striped part is its own, the plain one shared with others. Copied: what it or its parent copied of memory shared at the fork. Of a chosen time, the figures are of what arrived then.');
  for (const why of all.notes) body.append(el('p', {class: 'note'}, why));
  const most = Math.max(1, ...all.lanes.flatMap(lane => lane.looks.map(([, resident]) => resident)));
  for (const lane of all.lanes) {
    const canvas = sharp(26, (g, width) => {
      const [from, to] = all.span, x = at => width * (at - from) / Math.max(to - from, 1e-9);
      g.fillStyle = variable('--line');
      g.fillRect(x(lane.begin), 0, Math.max(x(lane.end) - x(lane.begin), 2), 26);
      lane.looks.forEach(([at, resident, own], number) => {
        const next = lane.looks[number + 1]?.[0] ?? Math.max(lane.end, at);
        const left = Math.min(x(at), width - 6), wide = Math.max(x(next) - left, 6);
        g.fillStyle = pattern(g, 0);
        g.globalAlpha = 0.45;
        g.fillRect(left, 26 - 26 * resident / most, wide, 26 * resident / most);
        g.globalAlpha = 1;
        g.fillStyle = pattern(g, 1);
        g.fillRect(left, 26 - 26 * own / most, wide, 26 * own / most);
      });
      if (state.from === null) return;
      const at = column => x((data.time.first + column * data.time.width) / 1e6);
      g.strokeStyle = variable('--accent');
      g.strokeRect(at(state.from), 0.5, Math.max(at(state.to) - at(state.from), 1), 25);
    }, {role: 'img', 'aria-label': lane.name});
    const figure = el('span', {class: 'number'});
    const tell = () => {
      const [, held, mine] = lane.looks[lane.looks.length - 1] ?? [0, 0, 0];
      const [resident, own] = state.from === null ? [held, mine] : arrivedIn(lane, all.unit, state.from, state.to);
      const words = lane.looks.length ? `${bytes(own)} of ${bytes(resident)} private` : 'not looked at';
      figure.textContent = words + (state.from === null && lane.copied ? `, ${bytes(lane.copied)} copied` : '');
      figure.dataset.value = resident;
    };
    tell();
    follow(changed => { if (changed.includes('from')) { tell(); canvas.redraw(); } });
    body.append(el('div', {class: 'lane'}, el('span', {class: 'label', title: lane.name}, lane.name), figure, canvas));
  }
  if (all.copies.length) copies(body, all);
}

/** Who copied what was shared since a fork: at all times, or in the chosen one. */
function copies(body, all) {
  const title = el('h3'), list = el('div', {id: 'copies'});
  const tell = () => {
    const rows = all.copies.map((one, at) => [amountOf(one, all.page, state.from, state.to), ownerName(all.copies, at, one[0], all.rest)])
      .filter(([n]) => n).sort((a, b) => b[0] - a[0]);
    const copied = rows.reduce((sum, [n]) => sum + n, 0);
    title.textContent = `Copied since a fork: ${bytes(copied)}`;
    title.dataset.value = copied;
    list.replaceChildren(rows.length ? table(['copied', ''], rows.map(([n, name]) => [[bytes(n), n], name]), 'Copied since a fork') : '');
  };
  tell();
  follow(changed => { if (changed.includes('from')) tell(); });
  body.append(title, list);
}
