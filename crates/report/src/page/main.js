// Views, keys, theme.

const VIEWS = [
  ['verdict', 'Verdict', verdictView], ['layout', 'Layout', layoutView], ['functions', 'Functions', functionsView], ['flame', 'Flame graph', flameView],
  ['calls', 'Call graph', callsView], ['function', 'One function', functionView], ['sizes', 'Sizes, start-up', sizesView], ['compare', 'Difference', compareView], ['coverage', 'Coverage', coverageView],
];
let current = null;
/** The part of the address behind `#` that is on the page. */
let onPage = null;

const go = (view, argument) => {
  location.hash = '#' + view + (argument === undefined ? '' : '/' + argument);
  show();
};

const show = () => {
  onPage = location.hash;
  const [name, argument] = location.hash.slice(1).split('/');
  const index = Math.max(0, VIEWS.findIndex((v) => v[0] === name));
  const [view, title, make] = VIEWS[index];
  const main = document.getElementById('main');
  tip.hide();
  for (const tab of document.getElementById('tabs').children) {
    const own = tab.dataset.view === view;
    tab.setAttribute('aria-selected', String(own));
    tab.tabIndex = own ? 0 : -1;
  }
  const number = argument === undefined || argument === '' || !Number.isInteger(Number(argument)) || Number(argument) < 0 ? undefined : Number(argument);
  // The keyboard goes on in the view if what it was at goes away with the old one.
  const inside = main.contains(document.activeElement);
  painters = [];
  const runs = waiting = [];
  try {
    main.replaceChildren(...make(number).flat().filter(Boolean));
  } finally {
    waiting = null;
  }
  for (const run of runs) run();
  if (inside) main.focus({ preventScroll: true });
  main.dataset.view = view;
  main.setAttribute('aria-label', title);
  if (current !== view) scrollTo(0, 0);
  current = view;
  // Now that the page is as wide as it stays: a long view has a scroll bar.
  document.querySelector('#tabs [aria-selected="true"]').scrollIntoView({ block: 'nearest', inline: 'nearest' });
};

const setTheme = (name) => {
  document.documentElement.dataset.theme = name;
  if (current) show();
};

const help = () => {
  const dialog = document.getElementById('help');
  const keys = [['1 … 9', 'the views'], ['/', 'search'], ['t', 'light or dark'], ['↑ ↓ Enter', 'in tables: choose and open'], ['arrows + − 0', 'in the layout and in graphs: move, zoom, all'], ['[ ]', 'in a graph: the block before, the next one'], ['arrows Enter Backspace', 'in the flame graph'], ['Esc', 'close']];
  dialog.replaceChildren(el('h2', {}, 'Keys'), el('table', { class: 'plain' }, keys.map(([k, what]) => el('tr', {}, el('td', {}, k.split(' ').map((x) => [el('kbd', {}, x), ' '])), el('td', {}, what)))), el('p', { style: 'margin-top:12px' }, el('button', { type: 'button', onclick: () => dialog.close() }, 'Close')));
  dialog.showModal();
};

document.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !model) return;
  if (event.target.closest('input, select, textarea')) {
    if (event.key === 'Escape') event.target.blur();
    return;
  }
  if (event.key >= '1' && event.key <= '9') go(VIEWS[event.key - 1][0]);
  else if (event.key === '/') document.querySelector('main input[type="search"]')?.focus();
  else if (event.key === 't') setTheme(document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark');
  else if (event.key === '?') help();
  else return;
  event.preventDefault();
});

const begin = async () => {
  const dark = matchMedia('(prefers-color-scheme: dark)');
  document.documentElement.dataset.theme = dark.matches ? 'dark' : 'light';
  dark.addEventListener('change', () => setTheme(dark.matches ? 'dark' : 'light'));
  document.getElementById('theme-button').addEventListener('click', () => setTheme(document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark'));
  document.getElementById('help-button').addEventListener('click', help);
  prepare(await readData());
  const p = model.program;
  document.getElementById('title').textContent = p.name + (p.output ? ' → ' + p.output : '');
  document.getElementById('subtitle').textContent = `${p.machine} · ${count(p.functions)} functions, ${bytes(p.code)} of code · profile ${p.profile.join(', ')}${p.exact ? '' : ' (estimated counts)'}${p.buildId ? ' · build-id ' + p.buildId.slice(0, 12) : ''}`;
  const tabs = document.getElementById('tabs');
  VIEWS.forEach(([view, title], k) => tabs.append(el('button', {
    type: 'button', role: 'tab', 'data-view': view, 'aria-controls': 'main', title: `${title} (${k + 1})`, onclick: () => go(view),
    onkeydown: (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = tabs.children[(k + step + VIEWS.length) % VIEWS.length];
      next.focus();
      next.click();
    },
  }, title)));
  const foot = document.getElementById('foot');
  if (model.notes.length) foot.append(el('ul', {}, model.notes.map((note) => el('li', {}, note))));
  foot.append(el('p', {}, `Made by ${p.tool}. Counts are of code in this file; nothing was loaded from elsewhere.`));
  // On paper it is light.
  let screen = null;
  addEventListener('beforeprint', () => { screen = document.documentElement.dataset.theme; document.documentElement.dataset.theme = 'light'; for (const paint of painters) paint(true); });
  addEventListener('afterprint', () => { document.documentElement.dataset.theme = screen; for (const paint of painters) paint(false); });
  // Events of changes come later, one for each: a view that is on the page already keeps what was done in it since.
  addEventListener('hashchange', () => { if (location.hash !== onPage) show(); });
  show();
  document.documentElement.dataset.ready = 'yes';
};
begin().catch((error) => {
  document.getElementById('main').replaceChildren(el('p', { class: 'wait bad' }, 'The page cannot show its data: ' + error.message));
  throw error;
});
