// In which order: each fault as a point, its place in the file by its time; and how many pages had come by then.

function order(picture) {
  const body = section('order', 'In which order: place in the file, by time',
    'A band a file, its beginning below. A rising line is a file read in order, a cloud is random access. Large points read from disk. The line is all that has arrived, up to the whole.');
  if (!picture.bands.length || !data.time.n) return cannot(body, data.why.times);
  if (picture.note) body.append(el('p', {class: 'note'}, picture.note));
  const {columns, rows} = picture, bits = octets(picture.points), disk = octets(picture.disk);
  const told = el('p', {class: 'told', 'aria-live': 'polite'}, ' ');
  const tall = rows * picture.bands.length, left = 8;
  const has = (set, band, x, y) => { const at = (band * columns + x) * rows + y; return set[at >> 3] >> (at & 7) & 1; };
  let colours = [], more = '', layer = null;

  /** The points, drawn once for each size and set of colours: the brush only fades a part of them. */
  function points(g, width) {
    colours = Array.from({length: PATTERNS}, (_, n) => colour(n));
    more = variable('--more');
    const scale = (width - left) / columns;
    picture.bands.forEach((band, number) => {
      const top = number * rows;
      g.fillStyle = variable(number % 2 ? '--ground' : '--raised');
      g.fillRect(0, top, width, rows);
      for (let x = 0; x < columns; x++) {
        for (let y = 0; y < rows; y++) {
          if (!has(bits, number, x, y)) continue;
          const hard = disk.length && has(disk, number, x, y);
          g.fillStyle = hard ? more : colours[number % PATTERNS];
          g.fillRect(left + x * scale, top + rows - 1 - y, hard ? 3 : Math.max(scale, 1.2), hard ? 3 : 1.2);
        }
      }
    });
  }

  const canvas = sharp(tall, (g, width) => {
    const ratio = window.devicePixelRatio || 1;
    if (!layer || layer.width !== Math.round(width * ratio)) {
      layer = document.createElement('canvas');
      layer.width = Math.round(width * ratio);
      layer.height = Math.round(tall * ratio);
      const its = layer.getContext('2d');
      its.scale(ratio, ratio);
      points(its, width);
    }
    const column = at => left + (width - left) * at / data.time.n;
    const [from, to] = state.from === null ? [0, width] : [column(state.from), column(state.to)];
    g.globalAlpha = 0.15;
    g.drawImage(layer, 0, 0, width, tall);
    g.globalAlpha = 1;
    g.drawImage(layer, from * ratio, 0, (to - from) * ratio, tall * ratio, from, 0, to - from, tall);
    g.font = '11px system-ui';
    g.fillStyle = variable('--text');
    picture.bands.forEach((band, number) => g.fillText(`${band.name} (${band.range})`, left + 4, number * rows + 12, width - 20));
    g.strokeStyle = variable('--text');
    g.lineWidth = 1.5;
    g.beginPath();
    const last = picture.arrived[picture.arrived.length - 1] || 1;
    picture.arrived.forEach((n, at) => g.lineTo(left + (width - left) * (at + 1) / data.time.n, tall - 2 - (tall - 4) * n / last));
    g.stroke();
  }, {tabindex: 0, role: 'img', 'aria-label': `Order of the faults in ${picture.bands.map(band => band.name).join(', ')}`});
  canvas.addEventListener('mousemove', event => {
    const frame = canvas.getBoundingClientRect(), part = (event.clientX - frame.left - left) / (frame.width - left);
    const number = Math.min(Math.floor((event.clientY - frame.top) / rows), picture.bands.length - 1), band = picture.bands[Math.max(number, 0)];
    const column = Math.min(Math.max(Math.floor(part * data.time.n), 0), data.time.n - 1);
    told.textContent = `${band.name} at ${seconds(data.time.first + column * data.time.width)} s: ${count(band.faults)} faults in all; by then ${bytes(picture.arrived[column])} had arrived`;
  });
  redrawn(() => { layer = null; canvas.redraw(); });
  body.append(told, canvas);
  follow(changed => { if (changed.includes('from')) canvas.redraw(); });
}
