// One function: its graph, its instructions before and after, its lines.

const ENDINGS = ['runs on', 'jumps', 'branches', 'switches', 'leaves', 'returns', 'stops'];
/** In larger graphs blocks that never ran are not drawn unless they are asked for. */
const MANY = 90;
const functionState = { f: null, cold: null, order: 'before' };

const functionView = (argument) => {
  if (!R.n) return [el('p', { class: 'lead' }, 'Nothing ran.')];
  if (argument !== undefined && argument < R.n) functionState.f = argument;
  if (functionState.f === null) functionState.f = model.graphs.length ? model.graphs[0].function : 0;
  const f = functionState.f, g = graphOf.get(f);
  const file = R.file[f] ? model.files[R.file[f] - 1] : null;
  const out = [
    el('div', { class: 'bar-row' }, finder('Find a function…', (h) => go('function', h), ''), el('button', { type: 'button', onclick: () => go('calls', f) }, 'Callers and callees'), el('button', { type: 'button', onclick: () => { go('layout'); chooseInLayout(f, true); } }, 'Show in the layout')),
    el('h2', { style: 'overflow-wrap:anywhere;font-size:1.25rem' }, R.name[f]),
    el('p', { class: 'muted' }, `${hex(R.start[f])}, ${bytes(R.size[f])} · ${fate(f)[1]}${R.newCold[f] ? `, ${bytes(R.newHot[f])} hot and ${bytes(R.newCold[f])} cold` : ''}${file ? ` · ${tail(file)}:${R.line[f]}` : ''}`),
    el('div', { class: 'cards' }, card(count(R.entries[f]), 'executions'), card(percent(R.instructions[f], R.all), `of all instructions, ${short(R.instructions[f])}`), card(R.entries[f] ? short(Math.round(R.instructions[f] / R.entries[f])) : '–', 'instructions each time'), card(`${count(R.hotBlocks[f])} of ${count(R.blocks[f])}`, 'blocks ran'), card(`${count(R.both[f])} of ${count(R.branches[f])}`, 'branches that ran went both ways')),
  ];
  if (!g) {
    out.push(el('section', { class: 'panel' }, el('p', {}, `The graphs of the ${count(model.graphs.length)} hottest functions are on this page, and this is not one of them. “postlink report --graphs N” puts more on it; “postlink show PROFILE --binary ${model.program.name} --graph NAME” shows this one.`)));
    return out;
  }
  expandGraph(g);
  const listing = el('section', { class: 'panel listing', tabindex: '0', 'aria-label': 'Instructions' });
  const holder = el('section', { class: 'panel graphbox' });
  let picture;
  const withCold = () => functionState.cold ?? g.blocks <= MANY;
  const choose = (b) => {
    picture.select(b);
    for (const block of listing.querySelectorAll('.blk')) block.classList.toggle('sel', Number(block.dataset.block) === b);
    const first = listing.querySelector(`.blk[data-block="${b}"]`);
    if (first) listing.scrollTop = first.offsetTop - listing.offsetTop - 60;
  };
  const draw = () => {
    picture = graphPicture(g, withCold(), choose);
    const left = g.blocks - picture.shown;
    holder.replaceChildren(picture.picture,
      el('div', { class: 'zoom' }, el('button', { type: 'button', 'aria-label': 'Zoom in', onclick: () => picture.zoomBy(1.4) }, '+'), el('button', { type: 'button', 'aria-label': 'Zoom out', onclick: () => picture.zoomBy(1 / 1.4) }, '−'), el('button', { type: 'button', onclick: () => picture.fit(true) }, 'All')),
      el('div', { class: 'legend' }, el('span', {}, 'thick: often'), el('span', {}, 'blue: back'), el('span', {}, 'dashed: never'), left ? el('span', {}, `${count(left)} ${withCold() ? 'colder' : 'cold'} blocks not drawn`) : null));
    const drawn = picture;
    whenOnPage(() => drawn.fit(false));
  };
  const list = () => {
    const orders = functionState.order === 'both' ? ['before', 'after'] : [functionState.order];
    listing.replaceChildren(orders.length > 1 ? el('div', { class: 'cols' }, orders.map((o) => el('div', {}, blocksOf(g, o, true, choose)))) : el('div', {}, blocksOf(g, orders[0], false, choose)));
  };
  draw();
  if (!g.newAddress) functionState.order = 'before';
  list();
  painters.push((paper) => { draw(); picture.fit(paper); list(); });
  out.push(el('div', { class: 'bar-row' },
    segment('Blocks', [[true, 'All blocks'], [false, 'Only what ran']], withCold(), (cold) => { functionState.cold = cold; draw(); }),
    g.newAddress ? el('span', { class: 'push' }, segment('Order of the instructions', [['before', 'Before'], ['after', 'After'], ['both', 'Side by side']], functionState.order, (order) => { functionState.order = order; list(); })) : el('span', { class: 'push muted' }, model.layout.after ? 'This function did not move.' : '')),
  el('div', { class: 'split' }, holder, listing));
  return out;
};

/** The blocks of a function in the order of the input or of the output, with their instructions. */
const blocksOf = (g, order, slim, choose) => {
  const after = order === 'after';
  const address = (b) => after ? g.newAddress[b] : g.address[b];
  const list = [...Array(g.blocks).keys()].filter((b) => address(b) !== null).sort((a, b) => address(a) - address(b));
  const lost = after ? g.blocks - list.length : 0;
  const most = g.count.reduce((a, b) => Math.max(a, b), 1);
  const colours = ramp();
  // Where each block's instructions and lines begin.
  if (!g.first) {
    g.first = [];
    let n = 0;
    for (let b = 0; b < g.blocks; b++) { g.first.push(n); if (g.text[b]) n += g.text[b].split('\n').length; }
    g.lineAt = new Map(g.lines.map(([i, file, line]) => [i, [file, line]]));
    g.callAt = new Map();
    for (const [at, callee, n2, indirect] of g.calls) { const a = R.start[g.function] + at; if (!g.callAt.has(a)) g.callAt.set(a, []); g.callAt.get(a).push([callee, n2, indirect]); }
    g.siteAt = new Map(g.sites.map(([at, external, overflow]) => [R.start[g.function] + at, [external, overflow]]));
  }
  const out = [el('div', { class: 'blk', style: 'position:sticky;top:0;background:var(--panel);z-index:1;border-left-color:transparent' }, el('b', {}, after ? 'After' : 'Before'), el('span', { class: 'muted' }, ` ${count(list.length)} blocks${lost ? `; the new place of ${lost} others is not known` : ''}`))];
  let end = null, elided = 0;
  const flush = () => { if (elided) out.push(el('div', { class: 'blk muted' }, `… ${count(elided)} blocks that never ran`)); elided = 0; };
  for (const b of list) {
    const at = address(b), n = g.count[b];
    if (!g.text[b] && !n) { elided++; end = null; continue; }
    flush();
    if (end !== null && at - end > 64) out.push(el('div', { class: 'blk muted' }, `… ${bytes(at - end)} further …`));
    const colour = n ? `rgb(${colours[Math.round(warmth(n, most) * 255)].join()})` : 'var(--cold)';
    const block = el('div', { class: 'blk' + (n ? '' : ' cold'), 'data-block': b, style: 'border-left-color:' + colour });
    block.append(el('header', { onclick: () => choose(b) }, el('b', {}, n ? '×' + count(n) : 'never'), el('span', {}, '+' + (g.address[b] - R.start[g.function]).toString(16)), el('span', {}, ENDINGS[g.ending[b]] + (g.out[b].length > 1 && n ? ': ' + g.out[b].slice(0, 4).map((e) => `+${(g.address[e.to] - R.start[g.function]).toString(16)} ${percent(e.n, n)}`).join(', ') : ''))));
    let a = g.address[b], i = g.first[b];
    if (g.text[b]) for (const text of g.text[b].split('\n')) {
      const line = g.lineAt.get(i);
      if (line) block.append(el('div', { class: 'src', title: model.files[line[0]] }, `${tail(model.files[line[0]])}:${line[1]}  ${(sourceLines(line[0])?.[line[1] - 1] || '').trim()}`));
      block.append(el('div', { class: 'ins' }, el('span', {}, (a - g.address[b] + at).toString(16)), el('span', {}, named(text, slim))));
      for (const [callee, times, indirect] of g.callAt.get(a) || []) if (indirect || !slim) block.append(el('div', { class: 'calls' }, `×${count(times)} `, el('button', { type: 'button', onclick: () => go('function', callee) }, R.name[callee])));
      const site = g.siteAt.get(a);
      if (site) block.append(el('div', { class: 'calls' }, [site[0] ? `×${count(site[0])} out of the file` : '', site[1] ? `×${count(site[1])} to targets without room in the table` : ''].filter(Boolean).join(', ')));
      a += g.lengths[i];
      i++;
    } else block.append(el('div', { class: 'muted' }, `${g.size[b]} bytes`));
    out.push(block);
    end = at + (after ? g.newSize[b] : g.size[b]);
  }
  flush();
  out.push(unprinted(out.length - 1 - PRINTED_BLOCKS, 'blocks'));
  return out;
};

/** An instruction with the functions that its addresses mean. */
const named = (text, slim) => {
  const clean = text.replace(/\t/g, ' ');
  const found = clean.match(/\b0x([0-9a-f]{3,16})\b/) || clean.match(/^(?:call|jmp|j\w+|b|bl)\w*\s+([0-9a-f]{3,16})$/);
  if (!found || slim) return clean;
  const address = parseInt(found[1], 16);
  const id = functionAt(address, false);
  if (id === null || id < 0) return clean;
  const offset = address - R.start[id];
  return [clean, el('span', { class: 'muted' }, `  ${R.name[id].length > 60 ? R.name[id].slice(0, 60) + '…' : R.name[id]}${offset ? '+' + offset.toString(16) : ''}`)];
};

const sourceCache = new Map();
const sourceLines = (file) => {
  if (!sourceCache.has(file)) {
    const found = model.sources.find((s) => s[0] === file);
    sourceCache.set(file, found ? found[1].split('\n') : null);
  }
  return sourceCache.get(file);
};
