// Icicle: a tree as rows of rectangles, the callers above; as wide as their weight.

const ROW = 19, LEAST = 0.6;

/** The nodes of a tree as columns; a parent stands before its children. */
function unpacked(tree) {
  const fields = 3 + tree.weights, raw = varints(tree.nodes), n = raw.length / fields;
  const nodes = {n, names: tree.names, parent: new Int32Array(n), name: new Int32Array(n), line: new Int32Array(n),
    weight: Array.from({length: tree.weights}, () => new Float64Array(n)), children: Array.from({length: n}, () => [])};
  for (let at = 0, i = 0; at < n; at++, i += fields) {
    nodes.parent[at] = at - raw[i];
    nodes.name[at] = raw[i + 1];
    nodes.line[at] = raw[i + 2];
    for (let k = 0; k < tree.weights; k++) nodes.weight[k][at] = raw[i + 3 + k] * tree.units[k];
    if (at) nodes.children[nodes.parent[at]].push(at);
  }
  return nodes;
}

/** Own lines of the other pictures by their frames: `import pandas app.py:2` is line 2 of the module app.py. */
const lines = new Map([...owners].map(([label, at]) => [label.replace(/^import \S+/, '<module>'), at]));

function icicle(tree) {
  const body = section('icicle', 'Who: stacks',
    'Each row was called by the one above; the width is the memory that was first touched from there, as chosen above. Click to go in, Escape to go out.');
  for (const why of data.why.stacks) body.append(el('p', {class: 'note'}, why));
  if (!tree) return cannot(body, data.why.faults);
  if (tree.folded) body.append(el('p', {class: 'note'}, tree.folded));
  const nodes = unpacked(tree), said = reader();
  let root = 0, at = 0, found = '', boxes = [];
  const canvas = sharp(ROW, draw, {tabindex: 0, role: 'application', 'aria-label': 'Icicle of first touch; arrow keys move, Enter goes in, Escape goes out'});
  const find = el('input', {type: 'search', placeholder: 'find', 'aria-label': 'Find frames', oninput: event => {
    found = event.target.value.toLowerCase();
    canvas.redraw();
    say(at);
  }});
  const out = el('button', {type: 'button', onclick: () => zoom(0)}, 'whole');
  body.append(el('p', {}, find, ' ', out), said, el('div', {class: 'deep'}, canvas));

  function text(node) {
    const line = nodes.line[node];
    return nodes.names[nodes.name[node]] + (line ? ':' + line : '');
  }
  const meant = node => found && text(node).toLowerCase().includes(found);
  const shown = () => nodes.weight[WEIGHTS.findIndex(([key]) => key === state.weight)];

  function draw(g, width) {
    const weight = shown(), whole = weight[root];
    boxes = [];
    g.clearRect(0, 0, width, canvas.height);
    if (!whole) {
      g.fillStyle = variable('--soft');
      g.fillText('nothing of this', 4, 13);
      return;
    }
    const ink = variable('--text'), ground = variable('--ground');
    g.font = '11.5px system-ui';
    g.textBaseline = 'middle';
    const waiting = [[root, 0, width, 0]];
    while (waiting.length) {
      const [node, x, wide, depth] = waiting.pop();
      boxes.push([node, x, wide, depth]);
      g.fillStyle = meant(node) ? variable('--more') : colour(lines.get(text(node)) ?? PLAIN);
      g.fillRect(x, depth * ROW, Math.max(wide - 0.5, 0.3), ROW - 1);
      if (node === at && document.activeElement === canvas) {
        g.strokeStyle = variable('--accent');
        g.lineWidth = 2;
        g.strokeRect(x + 1, depth * ROW + 1, Math.max(wide - 2.5, 1), ROW - 3);
      }
      if (wide > 26) {
        const room = Math.floor((wide - 6) / 6), name = text(node);
        g.fillStyle = '#111';
        g.fillText(name.length > room ? name.slice(0, Math.max(room - 1, 1)) + '…' : name, x + 3, depth * ROW + ROW / 2, wide - 4);
      }
      let left = x;
      const children = nodes.children[node].slice().sort((a, b) => weight[b] - weight[a]);
      for (const child of children) {
        const its = width * weight[child] / whole;
        if (its >= LEAST) waiting.push([child, left, its, depth + 1]);
        left += its;
      }
    }
  }

  /** As tall as the deepest row that is drawn. */
  function fit() {
    const weight = shown(), least = LEAST * weight[root] / (canvas.clientWidth || 1100);
    let deepest = 0;
    const waiting = [[root, 1]];
    while (waiting.length) {
      const [node, depth] = waiting.pop();
      deepest = Math.max(deepest, depth);
      for (const child of nodes.children[node]) if (weight[child] >= least && weight[child] > 0) waiting.push([child, depth + 1]);
    }
    canvas.style.height = deepest * ROW + 'px';
    canvas.redraw();
    say(at);
  }

  function say(node) {
    let more = '';
    if (found) {
      const weight = shown(), inside = new Uint8Array(nodes.n);
      let sum = 0;
      for (let one = 0; one < nodes.n; one++) {
        inside[one] = one && inside[nodes.parent[one]] ? 1 : 0;
        if (!inside[one] && meant(one)) { inside[one] = 1; sum += weight[one]; }
      }
      more = ` — found: ${share(sum, weight[0])}`;
    }
    const amounts = WEIGHTS.map(([key, title], k) => (key === 'from_disk' ? n => count(n) + ' reads ' : n => bytes(n) + ' ')(nodes.weight[k][node]) + title);
    said.textContent = `${text(node)}: ${amounts.slice(pagesKnown ? 0 : 1).join(', ')}; ${share(shown()[node], shown()[0])}${more}`;
    said.dataset.node = nodes.names[nodes.name[node]];
    nodes.weight.forEach((column, k) => { said.dataset['weight' + k] = column[node]; });
  }

  function zoom(node) {
    root = at = node;
    fit();
  }

  const boxAt = event => {
    const frame = canvas.getBoundingClientRect(), x = event.clientX - frame.left, row = Math.floor((event.clientY - frame.top) / ROW);
    return boxes.find(([, left, wide, depth]) => depth === row && x >= left && x < left + wide);
  };
  canvas.addEventListener('mousemove', event => { const box = boxAt(event); if (box) say(box[0]); });
  canvas.addEventListener('click', event => {
    const box = boxAt(event);
    if (box) zoom(box[0] === root && root ? nodes.parent[root] : box[0]);
  });
  canvas.addEventListener('focus', () => canvas.redraw());
  canvas.addEventListener('keydown', event => {
    const weight = shown();
    const big = node => nodes.children[node].filter(child => weight[child] > 0).sort((a, b) => weight[b] - weight[a]);
    const next = {
      ArrowDown: () => big(at)[0], ArrowUp: () => (at === root ? at : nodes.parent[at]),
      ArrowRight: () => beside(1), ArrowLeft: () => beside(-1),
    }[event.key];
    function beside(step) {
      const all = at === root ? [at] : big(nodes.parent[at]);
      return all[all.indexOf(at) + step];
    }
    if (next) {
      event.preventDefault();
      at = next() ?? at;
      canvas.redraw();
      say(at);
    } else if (event.key === 'Enter') zoom(at);
    else if (event.key === 'Escape') zoom(root ? nodes.parent[root] : 0);
  });
  redrawn(fit);
  follow(changed => {
    if (changed.includes('weight')) fit();
  });
}
