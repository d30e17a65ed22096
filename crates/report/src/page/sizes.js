// Where the bytes of the files come from, start-up, and two profiles compared.

const sizesView = () => {
  const s = model.sizes, after = s.after;
  const steps = s.parts.filter(([, was, is]) => was || is);
  const out = [];
  if (after !== null) {
    const changed = steps.filter(([, was, is]) => is !== was).sort((x, y) => Math.abs(y[2] - y[1]) - Math.abs(x[2] - x[1]));
    const rows = [['input', 0, s.before, 'total'], ...changed.map(([name, was, is]) => [name, was, is]), ['output', 0, after, 'total']];
    // Where it is narrow, names stand above their bars.
    const W = Math.min(900, Math.max(280, innerWidth - 80)), stacked = W < 600, H = stacked ? 44 : 30, drop = stacked ? 16 : 0;
    const left = stacked ? 2 : 210, right = stacked ? 80 : 110;
    // The scale begins close to what changes, as changes are small beside the whole.
    let at = s.before, low = s.before, high = s.before;
    for (const [, was, is] of changed) { at += is - was; low = Math.min(low, at); high = Math.max(high, at); }
    const from = Math.max(0, low - (high - low) * 0.35 - 1), x = (v) => left + (W - left - right) * (Math.max(v, from) - from) / ((high - from) || 1);
    const chart = svg('svg', { class: 'chart', viewBox: `0 0 ${W} ${rows.length * H + 20}`, role: 'img', 'aria-label': 'From the size of the input to that of the output', style: `max-width:${W}px` });
    at = s.before;
    rows.forEach(([name, was, is, whole], k) => {
      const y = k * H;
      chart.append(svg('text', { x: stacked ? left : left - 10, y: y + (stacked ? 14 : 19), 'text-anchor': stacked ? 'start' : 'end' }, name));
      let a = from, b = is, colour = 'var(--accent)', label = bytes(is);
      if (!whole) { a = at; b = at + is - was; colour = b > a ? 'var(--warn)' : 'var(--good)'; label = (b > a ? '+' : '−') + bytes(Math.abs(is - was)); at = b; }
      chart.append(svg('rect', { x: Math.min(x(a), x(b)), y: y + 5 + drop, width: Math.max(1.5, Math.abs(x(b) - x(a))), height: 20, rx: 2, fill: colour }));
      if (k < rows.length - 1 && !stacked) chart.append(svg('line', { x1: x(b), x2: x(b), y1: y + H - 5, y2: y + H + 5, stroke: 'var(--muted)' }));
      chart.append(svg('text', { class: 'm', x: Math.max(x(a), x(b)) + 8, y: y + drop + 19 }, label));
    });
    chart.append(svg('text', { class: 'm', x: left, y: rows.length * H + 14 }, from > 0 ? `the scale begins at ${bytes(Math.round(from))}` : ''));
    out.push(el('section', { class: 'panel' }, el('h2', {}, `From ${bytes(s.before)} to ${bytes(after)}: ${change(s.before, after)}`), el('p', { class: 'muted' }, 'The old code keeps its place, so that addresses that nobody knows of still work; what runs stands in new sections behind it.'), el('div', { class: 'scrollx' }, chart)));
  }
  const most = Math.max(...steps.map(([, was, is]) => Math.max(was, is)), 1);
  out.push(el('section', { class: 'panel' }, el('h2', {}, 'What the bytes are for'), el('div', { class: 'scrollx' }, el('table', { class: 'plain' },
    el('tr', {}, el('th', {}, 'Part'), el('th', { class: 'bars' }, ''), el('th', { class: 'num' }, after !== null ? 'Before' : 'Bytes'), after !== null ? [el('th', { class: 'num' }, 'After'), el('th', { class: 'num' }, 'Change')] : null),
    steps.map(([name, was, is]) => el('tr', {}, el('td', {}, name), el('td', { class: 'bars' }, el('span', { style: `display:block;height:7px;border-radius:3px;margin-top:3px;background:var(--before);width:${100 * was / most}%` }), after !== null ? el('span', { style: `display:block;height:7px;border-radius:3px;margin-top:2px;background:var(--after);width:${100 * is / most}%` }) : null), el('td', { class: 'num' }, bytes(was)), after !== null ? [el('td', { class: 'num' }, bytes(is)), el('td', { class: 'num' }, is === was ? '' : !was ? 'new' : is > 10 * was ? '× ' + count(Math.round(is / was)) : change(was, is))] : null)))),
    after !== null ? el('p', { class: 'legend', style: 'margin-top:10px' }, el('span', {}, el('span', { class: 'swatch', style: 'background:var(--before)' }), 'before'), el('span', {}, el('span', { class: 'swatch', style: 'background:var(--after)' }), 'after')) : null));
  out.push(startupPanel());
  return out;
};

/** Pages of code over the instructions executed: a step at each copy of the live profile. */
const startupPanel = () => {
  const s = model.startup, panel = el('section', { class: 'panel' }, el('h2', {}, 'Start-up: pages of code over time'));
  if (!s || !s.instructions.length) {
    panel.append(el('p', { class: 'muted' }, 'A profile has how often code ran, not when. Copies of it that are taken while the program runs (“postlink watch run.plraw --snapshot-every 0.001 -o \'snap.%n.plraw\'”) have: give them with --startup.'));
    return panel;
  }
  const n = s.instructions.length, sides = [['before', s.before], ...(s.after.length ? [['after', s.after]] : [])];
  const first = Math.max(1, s.instructions[0]), last = Math.max(first * 2, s.instructions[n - 1]);
  const most = Math.max(1, ...sides.map(([, list]) => list[n - 1]));
  const W = Math.min(1000, Math.max(300, innerWidth - 90)), H = 300, left = 62, right = 14, top = 12, bottom = 44;
  // What happens first happens within few instructions.
  const x = (i) => left + (W - left - right) * Math.log(Math.max(i, first) / first) / Math.log(last / first);
  const y = (pages) => H - bottom - (H - bottom - top) * pages / most;
  const chart = svg('svg', { class: 'chart', viewBox: `0 0 ${W} ${H}`, role: 'img', style: `max-width:${W}px`, 'aria-label': 'Pages of code needed, over the instructions executed' });
  const step = 10 ** Math.floor(Math.log10(most)), unit = [0.2, 0.5, 1, 2].map((f) => f * step).find((u) => most / u <= 6) || step;
  for (let pages = 0; pages <= most; pages += Math.max(1, unit)) {
    chart.append(svg('line', { x1: left, x2: W - right, y1: y(pages), y2: y(pages), stroke: 'var(--line)' }), svg('text', { class: 'm', x: left - 8, y: y(pages) + 4, 'text-anchor': 'end' }, count(pages)));
  }
  let free = 0;
  for (let power = Math.ceil(Math.log10(first)); 10 ** power <= last; power++) {
    const at = x(10 ** power);
    if (at < free) continue;
    free = at + 60;
    chart.append(svg('line', { x1: at, x2: at, y1: H - bottom, y2: H - bottom + 5, stroke: 'var(--muted)' }), svg('text', { class: 'm', x: at, y: H - bottom + 18, 'text-anchor': 'middle' }, short(10 ** power)));
  }
  chart.append(svg('text', { class: 'm', x: (left + W - right) / 2, y: H - 6, 'text-anchor': 'middle' }, 'instructions executed so far'));
  for (const [name, list] of sides) {
    let path = `M${x(first)} ${y(list[0])}`;
    for (let k = 1; k < n; k++) path += `H${x(s.instructions[k])}V${y(list[k])}`;
    chart.append(svg('path', { d: path + `H${W - right}`, fill: 'none', stroke: `var(--${name})`, 'stroke-width': 2.5, 'stroke-dasharray': name === 'before' && sides.length > 1 ? '6 4' : null }));
  }
  // The copies at which a tenth, half and all of what was executed were reached.
  const rows = [...new Set([0.01, 0.1, 0.5, 1].map((share) => s.instructions.findIndex((i) => i >= share * s.instructions[n - 1])))];
  panel.append(el('p', { class: 'muted' }, `Pages of ${count(model.layout.page)} bytes with a block that has run, in ${count(n)} copies of the live profile of one run. The clock is the number of instructions executed, which is the same with counters and without.`),
    chart, sides.length > 1 ? el('p', { class: 'legend' }, sides.map(([name]) => el('span', {}, el('span', { class: 'swatch', style: `background:var(--${name})` }), name))) : null,
    el('div', { class: 'scrollx' }, el('table', { class: 'plain' }, el('tr', {}, el('th', {}, 'Instructions executed'), sides.map(([name]) => el('th', { class: 'num' }, 'Pages ' + (sides.length > 1 ? name : 'needed')))),
      rows.map((k) => el('tr', {}, el('td', {}, short(s.instructions[k])), sides.map(([, list]) => el('td', { class: 'num' }, count(list[k]))))))));
  return panel;
};

const compareView = () => {
  const c = model.compare;
  if (!c) return [el('p', { class: 'lead' }, 'One profile only. “postlink report … --compare OTHER” puts a second one beside it.')];
  const all = total(c.instructions) || 1;
  const moved = (f) => c.instructions[f] / all - R.instructions[f] / R.all;
  let most = 0;
  for (let f = 0; f < R.n; f++) most = Math.max(most, Math.abs(moved(f)));
  const points = (x) => (x >= 0 ? '+' : '−') + Math.abs(100 * x).toFixed(2);
  const columns = [
    { name: 'by', title: 'Points', width: '86px', num: true, help: 'Change of the share of all instructions, in percentage points', value: (f) => Math.abs(moved(f)), show: (f) => points(moved(f)) },
    innerWidth < NARROW ? null : { name: 'bar', title: 'less | more', width: '150px', help: 'Change of the share', value: moved, show: (f) => { const w = 50 * Math.abs(moved(f)) / (most || 1); return el('span', { style: `display:block;position:relative;height:12px;border-left:0` }, el('i', { style: `position:absolute;top:0;bottom:0;border-radius:2px;background:var(--${moved(f) > 0 ? 'warn' : 'accent'});width:${w}%;left:${moved(f) > 0 ? 50 : 50 - w}%` })); } },
    { name: 'name', title: 'Function', width: 'minmax(220px, 1fr)', value: (f) => R.lower[f], show: (f) => R.name[f] },
    { name: 'a', title: 'First', width: '84px', num: true, help: 'Share in the first profile', value: (f) => R.instructions[f], show: (f) => R.instructions[f] ? percent(R.instructions[f], R.all) : '–' },
    { name: 'b', title: 'Second', width: '84px', num: true, help: 'Share in the second profile', value: (f) => c.instructions[f], show: (f) => c.instructions[f] ? percent(c.instructions[f], all) : '–' },
    { name: 'ea', title: 'Executions', width: '110px', num: true, value: (f) => R.entries[f], show: (f) => count(R.entries[f]) },
    { name: 'eb', title: 'in the second', width: '110px', num: true, value: (f) => c.entries[f], show: (f) => count(c.entries[f]) },
  ].filter(Boolean);
  const rows = table(columns, { label: 'Functions by difference', sort: 'by', open: (f) => go('function', f) });
  const input = el('input', { type: 'search', id: 'search', placeholder: 'Search by name…', 'aria-label': 'Search functions by name' });
  const search = () => rows.set(find(input.value));
  input.addEventListener('input', search);
  search();
  let only = 0, gone = 0, overlap = 0;
  for (let f = 0; f < R.n; f++) {
    if (!R.entries[f] && !R.instructions[f]) only++;
    if (!c.entries[f] && !c.instructions[f]) gone++;
    overlap += Math.min(R.instructions[f] / R.all, c.instructions[f] / all);
  }
  return [el('p', { class: 'lead' }, `${model.program.profile.join(', ')} (first) and ${c.name} (second), by shares of all instructions, so runs of different length can be compared.`),
    el('div', { class: 'cards' }, card(percent(overlap, 1), 'overlap: the sum of the smaller shares'), card(short(R.all) + ' → ' + short(all), 'instructions executed'), card(count(gone), 'functions ran in the first only'), card(count(only), 'functions ran in the second only')),
    el('div', { class: 'bar-row' }, input), rows.box];
};
