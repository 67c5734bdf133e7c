// The report: its first lines, the choices, and the pictures in their order.

const VIEW_NAMES = {line: 'own line', package: 'package', file: 'file of the page', kind: 'kind of memory'};

function header() {
  const [answer, ...more] = data.headline;
  page.append(el('header', {}, el('h1', {}, answer), ...more.map(text => el('p', {}, text)),
    ...data.losses.map(text => el('p', {class: 'loss'}, text)),
    ...data.notes.map(text => el('p', {class: 'note quiet'}, text)),
    el('p', {class: 'quiet'}, data.about)));
  const views = el('select', {'aria-label': 'Owners are', onchange: event => change({view: event.target.value})},
    ...Object.entries(VIEW_NAMES).map(([value, text]) => el('option', {value}, text)));
  const shown = WEIGHTS.filter(([key]) => pagesKnown || key !== 'resident');
  page.append(el('nav', {class: 'tools', 'aria-label': 'What is shown'}, choice('Show', shown, 'weight'),
    el('label', {}, 'by ', views)));
}

header();
bars(data.whole);
timeline(data.time);
icicle(data.tree);
strips(data.strips);
order(data.order);
workers(data.workers);
page.append(el('footer', {}, data.foot));
redraw();
document.documentElement.dataset.ready = 'yes';
