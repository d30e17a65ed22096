// All functions that ran, to be sorted and searched.

const functionsView = () => {
  const most = R.instructions.reduce((a, b) => Math.max(a, b), 0);
  const after = !!model.layout.after;
  const columns = [
    { name: 'share', title: 'Share', width: '92px', num: true, help: 'Share of all executed instructions', value: (f) => R.instructions[f], show: (f) => shareCell(R.instructions[f], R.all, most), hint: (f) => count(R.instructions[f]) + ' instructions' },
    { name: 'name', title: 'Function', width: 'minmax(240px, 1fr)', value: (f) => R.lower[f], show: (f) => R.name[f] },
    { name: 'entries', title: 'Executions', width: '104px', num: true, help: 'How often it was entered', value: (f) => R.entries[f], show: (f) => count(R.entries[f]) },
    { name: 'calls', title: 'Calls', width: '104px', num: true, help: 'Calls that it made to functions of this program', value: (f) => R.calls[f], show: (f) => count(R.calls[f]) },
    { name: 'instructions', title: 'Instructions', width: '128px', num: true, help: 'Executed in it, without those of functions it called', value: (f) => R.instructions[f], show: (f) => count(R.instructions[f]) },
    { name: 'hot', title: 'Ran', width: '76px', num: true, help: 'Bytes of blocks that ran', value: (f) => R.hot[f], show: (f) => bytes(R.hot[f]) },
    { name: 'cold', title: 'Never ran', width: '80px', num: true, help: 'Bytes of blocks that never ran', value: (f) => R.size[f] - R.hot[f], show: (f) => bytes(Math.max(0, R.size[f] - R.hot[f])) },
    { name: 'fate', title: 'Place', width: '96px', help: after ? 'Moved, or why it stays' : 'Whether it can move', value: (f) => fate(f).join(), show: (f) => el('span', { class: 'tag ' + (R.moved[f] ? 'good' : R.pin[f] ? 'warn' : ''), title: fate(f)[1] }, fate(f)[0]) },
  ];
  const rows = table(columns, { label: 'Functions that ran', sort: 'share', open: (f) => go('function', f) });
  const shown = el('span', { class: 'muted', role: 'status' });
  const input = el('input', { type: 'search', placeholder: 'Search by name…', 'aria-label': 'Search functions by name', id: 'search' });
  const search = () => {
    const list = find(input.value);
    rows.set(list);
    shown.textContent = `${count(list.length)} of ${count(R.n)} functions, ${percent(total(list.map((f) => R.instructions[f])), R.all)} of the instructions`;
  };
  input.addEventListener('input', search);
  search();
  return [el('div', { class: 'bar-row' }, input, shown), rows.box,
    el('p', { class: 'muted', style: 'margin-top:10px' }, model.rest.start.length ? `${count(model.rest.start.length)} more functions never ran (${bytes(total(model.rest.size))} of code).` : 'Every function ran.')];
};
