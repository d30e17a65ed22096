// Lines and branches that ran.

const coverageState = { file: null };

const prefixOf = (names) => {
  if (!names.length) return '';
  let prefix = names[0].slice(0, names[0].lastIndexOf('/') + 1);
  for (const name of names) while (!name.startsWith(prefix)) prefix = prefix.slice(0, prefix.lastIndexOf('/', prefix.length - 2) + 1);
  return prefix;
};

const coverageView = (argument) => {
  const out = [];
  const both = total(R.both), ran = total(R.branches), all = total(R.allBranches) + model.rest.branches;
  const files = model.coverage.map((c) => {
    const hit = c.count.reduce((n, x) => n + (x > 0), 0);
    return { c, hit, lines: c.line.length, branches: c.branches.reduce((n, b) => n + b[1], 0), one: c.branches.reduce((n, b) => n + b[2], 0), name: model.files[c.file].replace(/\/+/g, '/') };
  });
  if (argument !== undefined) coverageState.file = argument;
  const lines = total(files.map((f) => f.lines)), hit = total(files.map((f) => f.hit));
  out.push(el('div', { class: 'cards' },
    files.length ? card(percent(hit, lines), `lines: ${count(hit)} of ${count(lines)} ran`) : null,
    card(percent(R.ran, model.program.functions), `functions: ${count(R.ran)} of ${count(model.program.functions)} ran`),
    card(percent(ran, all), `branches: ${count(ran)} of ${count(all)} ran`),
    card(percent(both, ran), `of these went both ways (${count(both)})`)));
  if (!files.length) {
    out.push(el('section', { class: 'panel' }, el('p', {}, model.notes.find((n) => n.includes('debug information')) || 'There are no source lines.'), el('p', { class: 'muted' }, 'Functions and branches are counted without it.')));
    return out;
  }
  const common = prefixOf(files.map((f) => f.name)), prefix = common === '/' ? '' : common;
  const short_ = (name) => name.slice(prefix.length) || name;
  if (coverageState.file !== null) {
    const f = files.find((x) => x.c.file === coverageState.file);
    if (f) {
      out.push(el('div', { class: 'bar-row' }, el('button', { type: 'button', onclick: () => { coverageState.file = null; go('coverage'); } }, '← All files'), el('h2', { style: 'margin:0' }, short_(f.name)), el('span', { class: 'muted' }, `${percent(f.hit, f.lines)} of ${count(f.lines)} lines`)));
      const at = sums(f.c.line), counts = new Map([...at].map((line, k) => [line, f.c.count[k]])), branches = new Map(f.c.branches.map((b) => [b[0], b]));
      const text = sourceLines(f.c.file);
      const row = (line) => {
        const n = counts.get(line), b = branches.get(line);
        const kind = n === undefined ? '' : n === 0 ? 'n' : b && b[2] ? 'p' : 'y';
        return el('div', { class: kind, title: b && b[2] ? `${b[2]} of ${b[1]} branches went one way only` : null }, el('span', {}, String(line)), el('span', {}, n === undefined ? '' : n === 0 ? 'never' : short(n)), el('span', {}, (text ? text[line - 1] ?? '' : '') + (b && b[2] ? `   ◐ ${b[2]} of ${b[1]} one way` : '')));
      };
      out.push(el('p', { class: 'legend' }, el('span', {}, el('span', { class: 'swatch', style: 'background:var(--good)' }), 'ran'), el('span', {}, el('span', { class: 'swatch', style: 'background:var(--warn)' }), 'ran, a branch went one way only'), el('span', {}, el('span', { class: 'swatch', style: 'background:var(--bad)' }), 'never ran')));
      const lines = text ? text.map((_, k) => row(k + 1)) : [...at].map(row);
      out.push(text ? null : el('p', { class: 'muted' }, 'The text of this file is not on the page; these are its lines with code.'));
      out.push(el('section', { class: 'panel source', tabindex: '0', 'aria-label': 'Source' }, lines), unprinted(lines.length - PRINTED_LINES, 'lines'));
      return out;
    }
  }
  const columns = [
    { name: 'name', title: 'File', width: 'minmax(220px, 1fr)', value: (k) => short_(files[k].name), show: (k) => short_(files[k].name) },
    innerWidth < NARROW ? null : { name: 'bar', title: 'Lines that ran', width: '150px', num: true, value: (k) => files[k].hit / files[k].lines, show: (k) => el('span', { class: 'meter' }, el('i', { style: `width:${100 * files[k].hit / files[k].lines}%` })) },
    { name: 'share', title: 'Ran', help: 'Share of the lines that ran', width: '76px', num: true, value: (k) => files[k].hit / files[k].lines, show: (k) => percent(files[k].hit, files[k].lines) },
    { name: 'lines', title: 'Lines', width: '80px', num: true, help: 'Lines with code', value: (k) => files[k].lines, show: (k) => count(files[k].lines) },
    { name: 'missed', title: 'Never ran', width: '90px', num: true, value: (k) => files[k].lines - files[k].hit, show: (k) => count(files[k].lines - files[k].hit) },
    { name: 'branches', title: 'Branches', width: '90px', num: true, help: 'Conditional branches that ran', value: (k) => files[k].branches, show: (k) => count(files[k].branches) },
    { name: 'one', title: 'One way', width: '84px', num: true, help: 'Of these, those that went one way only', value: (k) => files[k].one, show: (k) => count(files[k].one) },
  ].filter(Boolean);
  const rows = table(columns, { label: 'Source files', sort: 'lines', open: (k) => go('coverage', files[k].c.file) });
  const input = el('input', { type: 'search', id: 'search', placeholder: 'Search files…', 'aria-label': 'Search files' });
  const search = () => rows.set(files.map((_, k) => k).filter((k) => files[k].name.toLowerCase().includes(input.value.toLowerCase())));
  input.addEventListener('input', search);
  search();
  out.push(el('p', { class: 'lead' }, `A line ran as often as the most executed of its instructions, added up over the functions it is in.${prefix ? ` Files are below ${prefix}.` : ''}`), el('div', { class: 'bar-row' }, input), rows.box);
  return out;
};
