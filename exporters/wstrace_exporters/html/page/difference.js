// Two runs side by side: what grew by owner, and the stacks with what either run has more.

const OWNER_NAMES = {package: 'package', function: 'function', line: 'own line', file: 'file of the page', module: 'module', kind: 'kind of memory'};
const SIDES = [['2', 'growth'], ['3', 'shrinkage'], ['1', 'second run'], ['0', 'first run']];

/** A colour between the ground and another one. */
function mixed(part, other) {
  const of = text => [1, 3, 5].map(at => parseInt(text.slice(at, at + 2), 16));
  const [from, to] = [of(variable('--c8')), of(variable(other))];
  return `rgb(${from.map((n, at) => Math.round(n + (to[at] - n) * part)).join(' ')})`;
}

function growth() {
  const body = section('growth', 'What grew, by owner',
    'Right and +: the second run has more; left and −: it has less. The bars have one scale.');
  const list = el('div');
  body.append(el('p', {}, viewChoice(OWNER_NAMES)), list);
  const show = () => {
    const view = data.views[state.view];
    if (view.why) return list.replaceChildren(el('p', {class: 'cannot'}, view.why));
    const most = Math.max(1, ...view.rows.map(([, before, after]) => Math.abs(after - before)));
    const rows = view.rows.map(([name, before, after]) => {
      const grown = after - before, bar = el('div', {class: grown < 0 ? 'less' : grown > 0 ? 'more' : 'same'});
      bar.style.width = 50 * Math.abs(grown) / most + '%';
      return [[signed(grown), grown], [bytes(before), before], [bytes(after), after], el('div', {class: 'change'}, bar), name];
    });
    const {first, second, change: grown} = data.total;
    list.replaceChildren(table(['change', data.names[0], data.names[1], '', OWNER_NAMES[state.view]],
      [...rows, [[signed(grown), grown], [bytes(first), first], [bytes(second), second], '', 'Total']], 'Growth by owner'));
  };
  follow(show);
  show();
}

function stacks() {
  const body = section('stacks', 'Where it grew: stacks of both runs',
    'Callers above. Orange and +: the second run has more below this frame; blue and −: it has less. The width is what is chosen here.');
  if (data.tree.why) return cannot(body, data.tree.why);
  if (data.tree.folded) body.append(el('p', {class: 'note'}, data.tree.folded));
  body.append(choice('Width', SIDES, 'side'));
  const grown = (nodes, at) => nodes.weight[1][at] - nodes.weight[0][at];
  const drawn = flame(body, data.tree, {
    label: 'Differential flame graph',
    which: () => Number(state.side),
    mark: (nodes, at) => ({1: '+ ', '-1': '− ', 0: ''})[Math.sign(grown(nodes, at))],
    paint: (g, nodes, at, meant) => {
      if (meant) return variable('--accent');
      const change = grown(nodes, at), of = Math.max(nodes.weight[0][at], nodes.weight[1][at], 1);
      return mixed(0.15 + 0.7 * Math.abs(change) / of, change > 0 ? '--more' : change < 0 ? '--less' : '--c8');
    },
    words: (nodes, at) => `${signed(grown(nodes, at))}: ${bytes(nodes.weight[0][at])} in ${data.names[0]}, ${bytes(nodes.weight[1][at])} in ${data.names[1]}`,
  });
  body.append(el('p', {class: 'total'}, 'Total ', el('b', {'data-value': grown(drawn.nodes, 0)}, signed(grown(drawn.nodes, 0)))));
  follow(changed => { if (changed.includes('side')) drawn.fit(); });
}

state.view = Object.keys(data.views).find(view => !data.views[view].why) ?? 'kind';
state.side = data.tree.why ? '1' : '2';
page.append(el('header', {}, el('h1', {}, data.headline[0]), ...data.doubts.map(text => el('p', {class: 'note'}, text))));
growth();
stacks();
finish();
