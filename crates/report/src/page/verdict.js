// What came out: faster or not, proved or not, what stayed, sizes.

const card = (value, label, kind) => el('div', { class: 'card' }, el('b', { class: kind }, value), el('span', {}, label));

/** Ratio of times with its interval, and the pairs of runs as dots. */
const intervalChart = (m) => {
  const ratios = m.pairs.map(([a, b]) => b / a).filter((x) => isFinite(x) && x > 0);
  const all = [...ratios, ...(m.interval || []), 1, m.estimate];
  const low = Math.min(...all) - 0.01, high = Math.max(...all) + 0.01;
  const wide = Math.min(600, Math.max(260, innerWidth - 70));
  const x = (r) => 20 + (wide - 60) * (r - low) / (high - low);
  const chart = svg('svg', { class: 'chart', viewBox: `0 0 ${wide} 92`, style: `max-width:${wide}px`, role: 'img', 'aria-label': m.sentence });
  chart.append(svg('line', { x1: x(1), x2: x(1), y1: 8, y2: 66, stroke: 'var(--muted)', 'stroke-dasharray': '3 3' }));
  chart.append(svg('text', { x: x(1), y: 82, 'text-anchor': 'middle', class: 'm' }, 'no change'));
  for (const r of ratios) chart.append(svg('circle', { cx: x(r), cy: 22, r: 4, fill: 'var(--accent)', 'fill-opacity': .5 }));
  if (m.interval) chart.append(svg('rect', { x: x(m.interval[0]), width: Math.max(2, x(m.interval[1]) - x(m.interval[0])), y: 42, height: 10, rx: 5, fill: 'var(--accent)', 'fill-opacity': .35 }));
  chart.append(svg('circle', { cx: x(m.estimate), cy: 47, r: 6, fill: 'var(--accent)' }));
  return chart;
};

const verdictView = () => {
  const v = model.verdict, p = model.program, out = [];
  const after = model.layout.after, before = model.layout.before;
  let headline, kind = null;
  if (v.measured) {
    headline = { faster: 'Faster', slower: 'Slower' }[v.measured.verdict] || 'No difference shown';
    kind = { faster: 'good', slower: 'bad' }[v.measured.verdict];
  } else headline = after ? 'Laid out anew, not measured' : 'Profiled, not optimised yet';
  out.push(el('section', { class: 'panel' },
    el('h2', { class: kind, style: 'font-size:1.5rem' }, headline),
    v.measured ? [el('p', {}, v.measured.sentence), intervalChart(v.measured), el('p', { class: 'muted' }, 'Dots: processor time after / before of each pair of runs. Bar: the interval in which the ratio lies.')]
      : el('p', { class: 'muted' }, after ? 'No times were taken. “postlink tune --measure 15 --report FILE” runs the workload with both programs and says here whether it is faster.'
        : 'There is no optimised program to compare with: give one with --optimized.')));
  const cards = el('div', { class: 'cards' });
  cards.append(card(count(R.ran), `of ${count(p.functions)} functions ran`), card(short(p.instructions), p.exact ? 'instructions executed, counted' : 'instructions executed, estimated'));
  if (after) cards.append(card(count(v.moved), 'functions moved'));
  if (v.proof) cards.append(v.proof.proved ? card('Proved', `${count(v.proof.functions)} moved functions are equivalent to the input’s`, 'good') : card('Not proved', `${count(v.proof.failed)} functions failed`, 'bad'));
  if (v.taken[1] !== null) cards.append(card(change(v.taken[0], v.taken[1]), `jumps taken (${percent(v.taken[0], v.ways)} → ${percent(v.taken[1], v.ways)} of all ways between blocks)`, v.taken[1] < v.taken[0] ? 'good' : 'warn'));
  if (after) {
    const pages = (side) => side.cover.find((c) => c[0] === 990)[2];
    cards.append(card(`${count(pages(before))} → ${count(pages(after))}`, 'pages of code hold 99 % of what is executed', pages(after) <= pages(before) ? 'good' : 'warn'));
  }
  if (v.sizes) cards.append(card(change(v.sizes[0], v.sizes[1]), `file size, ${bytes(v.sizes[0])} → ${bytes(v.sizes[1])}`));
  out.push(cards);
  const grid = el('div', { class: 'grid' });
  if (v.proof) {
    grid.append(el('section', { class: 'panel' }, el('h2', {}, 'What was proved'),
      el('p', {}, `An independent checker read both files and compared ${count(v.proof.instructions)} instructions of moved code in lock step; ${count(v.proof.references[0])} references in code and ${count(v.proof.references[1])} in data and tables lead to the same places. ${count(v.proof.identical)} functions are unchanged.`),
      v.proof.failures.length ? el('ul', { class: 'bad' }, v.proof.failures.map((f) => el('li', {}, f))) : null,
      v.proof.assumptions.length ? [el('h3', {}, 'It takes for granted'), el('table', { class: 'plain' }, v.proof.assumptions.map(([id, text, n]) => el('tr', {}, el('td', { class: 'muted' }, id), el('td', {}, text), el('td', { class: 'num' }, count(n) + (n === 1 ? ' function' : ' functions')))))] : null));
  } else if (after) grid.append(el('section', { class: 'panel' }, el('h2', {}, 'What was proved'), el('p', { class: 'warn' }, 'The optimised program was not checked for this page.')));
  const stay = el('section', { class: 'panel' }, el('h2', {}, 'What stays, and why'));
  if (v.stay.length) {
    stay.append(el('p', { class: 'muted' }, 'A function that is not fully understood keeps its place and works as before.'),
      el('div', { class: 'scrollx' }, el('table', { class: 'plain' }, el('tr', {}, el('th', {}, 'Reason'), el('th', { class: 'num' }, 'Functions'), el('th', { class: 'num' }, 'Ran'), el('th', { class: 'num' }, 'Executed')),
        v.stay.map(([reason, n, ran, executed]) => el('tr', {}, el('td', {}, 'it ' + model.reasons[reason]), el('td', { class: 'num' }, count(n)), el('td', { class: 'num' }, p.exact ? '–' : count(ran)), el('td', { class: 'num' }, p.exact ? '–' : percent(executed, R.all)))))));
    if (p.exact) stay.append(el('p', { class: 'muted' }, 'Functions that stay have no counters, so it is not known how often they ran.'));
  } else stay.append(el('p', {}, 'Nothing has to stay: every function can be moved.'));
  const hot = [...Array(R.n).keys()].sort((a, b) => R.instructions[b] - R.instructions[a]).slice(0, 10);
  // Beside the proof, which is long.
  grid.append(el('div', {}, stay, el('section', { class: 'panel' }, el('h2', {}, 'Where the instructions are'),
    hot.length ? el('table', { class: 'plain' }, hot.map((f) => el('tr', {}, el('td', { style: 'width:6.5em' }, shareCell(R.instructions[f], R.all, R.instructions[hot[0]])), el('td', {}, functionLink(f))))) : el('p', { class: 'muted' }, 'Nothing ran.'))));
  out.push(grid);
  return out;
};

const functionLink = (f) => el('button', { class: 'link', type: 'button', onclick: () => go('function', f) }, R.name[f]);
