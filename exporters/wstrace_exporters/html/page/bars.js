// The whole: a bar for each kind of memory, to one scale, each by who brought it.

/** The bytes of an owner: all, or those that arrived in columns from..to. */
function amountOf(owner, unit, from, to) {
  if (from === null) return owner[1];
  const raw = owner[3] ??= varints(owner[2]);
  let time = 0, sum = 0;
  for (let at = 0; at < raw.length; at += 2) {
    time += raw[at];
    if (time >= from && time < to) sum += raw[at + 1];
  }
  return sum * unit;
}

function bars(whole) {
  const body = section('whole', 'The whole: what is resident, by kind and by who brought it',
    'One bar a kind of memory, all to one scale; of a chosen time what arrived then. Move over a part, or go to it with Tab, to read whose it is.');
  if (!whole.parts.length) return cannot(body, data.why.pages);
  const told = el('p', {class: 'told', 'aria-live': 'polite'}, ' '), list = el('div');
  body.append(list, told);
  const show = () => {
    const parts = whole.parts.map(part => {
      const owners = part.owners.map((owner, at) =>
        [ownerName(part.owners, at, owner[0], part.rest), amountOf(owner, whole.unit, state.from, state.to)]);
      return {name: part.name, owners, bytes: owners.reduce((sum, [, n]) => sum + n, 0)};
    });
    const most = Math.max(1, ...parts.map(part => part.bytes)), total = parts.reduce((sum, part) => sum + part.bytes, 0);
    list.replaceChildren(...parts.map(part => drawPart(part, most, total, told)),
      el('p', {class: 'total'}, 'Total ', el('b', {'data-value': total}, bytes(total))));
  };
  follow(changed => { if (changed.includes('from')) show(); });
  show();
}

function drawPart(part, most, total, told) {
  const bar = el('div', {class: 'bar'});
  bar.style.width = 100 * part.bytes / most + '%';
  part.owners.forEach(([name, n], at) => {
    if (!n) return;
    const text = `${part.name}: ${bytes(n)} (${share(n, total)}) ${name}`;
    const say = () => { told.textContent = text; };
    const one = el('span', {class: 'segment', tabindex: 0, role: 'img', 'aria-label': text, title: text,
      'data-value': n, onmouseenter: say, onfocus: say}, n / most > 0.12 ? name : '');
    Object.assign(one.style, {flexGrow: n, background: background(at)});
    bar.append(one);
  });
  return el('div', {class: 'part', 'data-part': part.name},
    el('span', {class: 'label'}, part.name),
    el('span', {class: 'number', 'data-value': part.bytes}, `${bytes(part.bytes)} ${share(part.bytes, total)}`),
    el('div', {class: 'track'}, bar));
}
