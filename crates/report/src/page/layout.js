// Where code is and what of it runs: the address space as a Hilbert curve or as rows, before and after.

/**
 * The cells of a square of side `n`, any number, in the order of a generalised Hilbert curve: neighbours in memory are neighbours in the picture.
 * After J. Červený's "gilbert": a rectangle is halved along its longer side until it is one cell wide.
 */
const curves = new Map();
const hilbert = (n) => {
  if (curves.has(n)) return curves.get(n);
  const cells = [];
  const sign = Math.sign;
  const draw = (x, y, ax, ay, bx, by) => {
    const w = Math.abs(ax + ay), h = Math.abs(bx + by);
    const dax = sign(ax), day = sign(ay), dbx = sign(bx), dby = sign(by);
    if (h === 1) { for (let i = 0; i < w; i++) { cells.push([x, y]); x += dax; y += day; } return; }
    if (w === 1) { for (let i = 0; i < h; i++) { cells.push([x, y]); x += dbx; y += dby; } return; }
    let ax2 = Math.floor(ax / 2), ay2 = Math.floor(ay / 2), bx2 = Math.floor(bx / 2), by2 = Math.floor(by / 2);
    const w2 = Math.abs(ax2 + ay2), h2 = Math.abs(bx2 + by2);
    if (2 * w > 3 * h) {
      if (w2 % 2 && w > 2) { ax2 += dax; ay2 += day; }
      draw(x, y, ax2, ay2, bx, by);
      draw(x + ax2, y + ay2, ax - ax2, ay - ay2, bx, by);
    } else {
      if (h2 % 2 && h > 2) { bx2 += dbx; by2 += dby; }
      draw(x, y, bx2, by2, ax2, ay2);
      draw(x + bx2, y + by2, ax, ay, bx - bx2, by - by2);
      draw(x + (ax - dax) + (bx2 - dbx), y + (ay - day) + (by2 - dby), -bx2, -by2, -(ax - ax2), -(ay - ay2));
    }
  };
  draw(0, 0, n, 0, 0, n);
  const index = new Int32Array(n * n);
  cells.forEach(([x, y], d) => { index[y * n + x] = d; });
  const curve = { cells, index };
  curves.set(n, curve);
  return curve;
};

/** Gaps between sections are left out: addresses become positions in all code, in a row. */
const space = (side) => {
  const ranges = [];
  let at = 0;
  for (const [name, start, length] of side.ranges) {
    // Every section begins on a line of its own.
    const from = Math.floor(start / 64) * 64;
    const size = Math.ceil((start + length - from) / 64) * 64;
    ranges.push({ name, start: from, end: from + size, at });
    at += size;
  }
  return {
    ranges, length: at,
    position(address) {
      const r = ranges.findLast((r) => r.start <= address);
      return r && address < r.end ? r.at + address - r.start : null;
    },
    address(position) {
      const r = ranges.findLast((r) => r.at <= position);
      return r && position < r.at + r.end - r.start ? [r.start + position - r.at, r.name] : null;
    },
  };
};

const layoutState = { mode: 'hilbert', focus: null };

/** One picture. */
const mapOf = (side, after, whole) => {
  const where = space(side);
  const canvas = el('canvas', { class: 'map', tabindex: '0', role: 'img', 'aria-label': (after ? 'Code after' : 'Code before') + ': heat by address; arrow keys move, plus and minus zoom' });
  const label = el('span', { class: 'muted mono' });
  let from = 0, length = where.length || 64, cells = null, n = 64, cell = 64, most = 1;
  const heat = Array.from(side.heat, (level) => Math.pow(2, level / 4) - 1);
  const positions = Float64Array.from(side.lines, (line) => where.position(line * 64) ?? -1);
  const order = [...positions.keys()].filter((i) => positions[i] >= 0).sort((a, b) => positions[a] - positions[b]);
  const sorted = Float64Array.from(order, (i) => positions[i]);

  const count_ = () => {
    // Both pictures have one scale as long as both show everything.
    const shown = length >= where.length ? Math.max(length, whole) : length;
    n = Math.min(128, Math.max(8, Math.ceil(Math.sqrt(shown / 64) / 2) * 2));
    cell = Math.max(64, Math.ceil(shown / (n * n) / 64) * 64);
    // At a multiple of the cell, so that cells keep their lines while one moves.
    from = Math.max(0, Math.min(Math.floor(from / cell) * cell, Math.max(0, where.length - 64)));
    cells = new Float64Array(n * n);
    for (let k = Math.max(0, lastNotAbove(sorted, from - 1) + 1); k < sorted.length; k++) {
      const c = Math.floor((sorted[k] - from) / cell);
      if (c >= n * n) break;
      cells[c] += heat[order[k]];
    }
    most = cells.reduce((a, b) => Math.max(a, b), 1);
  };
  const place = (d) => layoutState.mode === 'hilbert' ? hilbert(n).cells[d] : [d % n, Math.floor(d / n)];
  const draw = () => {
    if (!canvas.isConnected) return;
    count_();
    const [c, width] = context(canvas);
    const colours = ramp(), of = theme();
    const unit = width / n;
    const used = Math.min(n * n, Math.ceil((where.length - from) / cell));
    c.fillStyle = of('none');
    c.fillRect(0, 0, width, width);
    const gap = unit > 6 ? 0.5 : 0;
    for (let d = 0; d < used; d++) {
      const [x, y] = place(d);
      const w = warmth(cells[d], most);
      c.fillStyle = w > 0 ? `rgb(${colours[Math.round(w * 255)].join()})` : of('cold');
      c.fillRect(x * unit, y * unit, unit - gap + (gap ? 0 : .6), unit - gap + (gap ? 0 : .6));
    }
    // The function that was chosen, with a line around its cells.
    if (layoutState.focus !== null) {
      c.strokeStyle = of('accent');
      c.lineWidth = 2;
      const inside = new Set();
      for (const [start, size] of partsOf(layoutState.focus, after)) {
        const p = where.position(start);
        if (p === null) continue;
        for (let d = Math.floor((p - from) / cell); d <= Math.floor((p + Math.max(1, size) - 1 - from) / cell); d++) if (d >= 0 && d < n * n) inside.add(d);
      }
      const grid = new Set([...inside].map((d) => place(d).join()));
      c.beginPath();
      for (const key of grid) {
        const [x, y] = key.split(',').map(Number);
        for (const [dx, dy, x0, y0, x1, y1] of [[-1, 0, 0, 0, 0, 1], [1, 0, 1, 0, 1, 1], [0, -1, 0, 0, 1, 0], [0, 1, 0, 1, 1, 1]]) {
          if (!grid.has((x + dx) + ',' + (y + dy))) { c.moveTo((x + x0) * unit, (y + y0) * unit); c.lineTo((x + x1) * unit, (y + y1) * unit); }
        }
      }
      c.stroke();
    }
    const first = where.address(from), all = from === 0 && length >= where.length;
    label.textContent = `${all ? 'all code' : first ? first[1] + ' from ' + hex(first[0]) : ''} · a cell is ${bytes(cell)}`;
  };
  const cellAt = (event) => {
    const r = canvas.getBoundingClientRect();
    const x = Math.min(n - 1, Math.max(0, Math.floor((event.clientX - r.left) / r.width * n)));
    const y = Math.min(n - 1, Math.max(0, Math.floor((event.clientY - r.top) / r.height * n)));
    return layoutState.mode === 'hilbert' ? hilbert(n).index[y * n + x] : y * n + x;
  };
  const zoom = (factor, centre) => {
    const middle = centre ?? from + length / 2;
    length = Math.max(64 * 64, Math.min(where.length, length * factor));
    from = Math.max(0, Math.min(where.length - length, middle - length / 2));
    draw();
  };
  /** The hottest line of a cell, which is what a pointer at it means. */
  const hottestAt = (d) => {
    const low = from + d * cell;
    let best = null, most = 0;
    for (let k = Math.max(0, lastNotAbove(sorted, low - 1) + 1); k < sorted.length && sorted[k] < low + cell; k++) if (heat[order[k]] > most) { most = heat[order[k]]; best = sorted[k]; }
    return best ?? low;
  };
  const functionOf = (position) => {
    const at = where.address(position);
    if (!at) return null;
    for (let k = 0; k < 64; k += 4) {
      const id = functionAt(at[0] + k, after);
      if (id !== null) return id;
    }
    return null;
  };
  canvas.addEventListener('pointermove', (event) => {
    const d = cellAt(event), p = hottestAt(d), at = where.address(p);
    if (!at || p >= where.length) return tip.hide();
    const id = functionOf(p);
    tip.show(`${hex(at[0])} in ${at[1]}\n${id === null ? 'between functions' : nameOf(id)}\n${cells[d] > 0 ? '≈ ' + short(Math.round(cells[d])) + ' instructions executed in these ' + bytes(cell) : 'never ran'}`, event.clientX, event.clientY);
  });
  canvas.addEventListener('pointerleave', () => tip.hide());
  canvas.addEventListener('click', (event) => {
    const id = functionOf(hottestAt(cellAt(event)));
    if (id !== null && id >= 0) chooseInLayout(id, false);
  });
  canvas.addEventListener('dblclick', (event) => zoom(0.25, from + cellAt(event) * cell));
  canvas.addEventListener('wheel', (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(event.deltaY < 0 ? 0.5 : 2, from + cellAt(event) * cell);
  }, { passive: false });
  canvas.addEventListener('keydown', (event) => {
    const step = { ArrowLeft: -length / 8, ArrowRight: length / 8, ArrowUp: -length / 2, ArrowDown: length / 2 }[event.key];
    if (step) { from = Math.max(0, Math.min(where.length - length, from + step)); draw(); } else if (event.key === '+' || event.key === '=') zoom(0.5);
    else if (event.key === '-') zoom(2);
    else if (event.key === '0') zoom(1e9);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  new ResizeObserver(draw).observe(canvas);
  painters.push(draw);
  const box = el('section', { class: 'panel' },
    el('div', { class: 'maphead' }, el('h2', {}, after ? 'After' : 'Before'), el('div', { class: 'seg' },
      el('button', { type: 'button', 'aria-label': 'Zoom in', onclick: () => zoom(0.25) }, '+'), el('button', { type: 'button', 'aria-label': 'Zoom out', onclick: () => zoom(4) }, '−'), el('button', { type: 'button', onclick: () => zoom(1e9) }, 'All'))),
    canvas, el('div', { style: 'margin-top:6px' }, label));
  return {
    box, draw,
    /** Shows a function, large enough to be seen. */
    frame(f) {
      const parts = partsOf(f, after), p = where.position(parts[0][0]);
      if (p === null) return;
      length = Math.min(where.length, Math.max(64 * 256, parts[0][1] * 6));
      from = Math.max(0, Math.min(where.length - length, p + parts[0][1] / 2 - length / 2));
      draw();
    },
  };
};

/** Stretches of a function that hold its hot code: after, the first new part. */
const partsOf = (f, after) => after && R.moved[f] ? [[R.newStart[f], R.newHot[f]]] : [[R.start[f], R.size[f]]];

let maps = [];
const chosenBox = el('div', {});
const chooseInLayout = (f, zoom) => {
  layoutState.focus = f;
  for (const map of maps) if (zoom) map.frame(f); else map.draw();
  chosenBox.replaceChildren(el('p', {}, functionLink(f), ` · ${percent(R.instructions[f], R.all)} of all instructions · ${bytes(R.size[f])}, ${bytes(R.hot[f])} of it ran · ${fate(f)[1]} `,
    el('button', { type: 'button', onclick: () => chooseInLayout(f, true) }, 'Zoom to it')));
};

const layoutView = () => {
  const { before, after } = model.layout;
  const whole = Math.max(space(before).length, after ? space(after).length : 0);
  maps = [mapOf(before, false, whole)];
  if (after) maps.push(mapOf(after, true, whole));
  const rows = [['Bytes of code that ran', (s) => s.hotBytes, bytes], ['Cache lines touched', (s) => s.touched[0], count], ['Pages touched', (s) => s.touched[1], count], ['Large pages (2 MiB) touched', (s) => s.touched[2], count]];
  for (const [index, share] of [[0, '50 %'], [1, '90 %'], [2, '99 %'], [3, '99.9 %']]) {
    rows.push([`Hottest cache lines that hold ${share}`, (s) => s.cover[index][1], count], [`Hottest pages that hold ${share}`, (s) => s.cover[index][2], count]);
  }
  whenOnPage(() => maps.forEach((map) => map.draw()));
  return [
    el('p', { class: 'lead' }, 'All code by address; a cell is warm if what lies in it was executed often (by the logarithm). Click a cell to choose its function, double-click to zoom.'),
    el('div', { class: 'bar-row' },
      segment('Order', [['hilbert', 'Hilbert curve'], ['rows', 'Rows']], layoutState.mode, (mode) => { layoutState.mode = mode; maps.forEach((map) => map.draw()); }),
      finder('Find a function…', (f) => chooseInLayout(f, true), layoutState.focus !== null ? R.name[layoutState.focus] : ''),
      el('span', { class: 'legend push' }, 'rarely', el('span', { class: 'ramp' }), 'often', el('span', {}, el('span', { class: 'swatch', style: 'background:var(--cold)' }), 'never ran'))),
    chosenBox,
    el('div', { class: 'pair' }, maps.map((map) => map.box)),
    el('section', { class: 'panel' }, el('h2', {}, 'How much memory the code that runs takes'),
      el('div', { class: 'scrollx' }, el('table', { class: 'plain', id: 'layout-table' }, el('tr', {}, el('th', {}, ''), el('th', { class: 'num' }, 'Before'), after ? [el('th', { class: 'num' }, 'After'), el('th', { class: 'num' }, 'Change')] : null),
        rows.map(([name, get, show]) => el('tr', {}, el('td', {}, name), el('td', { class: 'num' }, show(get(before))), after ? [el('td', { class: 'num' }, show(get(after))), el('td', { class: 'num ' + (get(after) < get(before) ? 'good' : '') }, change(get(before), get(after)))] : null)))),
      after && after.unplaced ? el('p', { class: 'muted' }, `The new place of blocks with ${percent(after.unplaced, R.all)} of the executed instructions could not be followed (landing pads of exceptions, for example); they are missing on the right.`) : null),
  ];
};
