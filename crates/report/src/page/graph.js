// Drawing one function's control-flow graph in layers.
//
// The usual four steps: edges that lead back are turned round (those to a block that is still open in a depth-first walk, hot edges first, so that the
// hottest path runs straight down); every block goes below all that lead to it; within a layer blocks are ordered by where their neighbours are, in
// several sweeps; then x positions pull each block to the middle of its neighbours as far as there is room. Edges over several layers run through empty places that
// are ordered with the blocks. Blocks that never ran stand aside, to the right of their layer, small and grey.

const NODE_W = 118, NODE_H = 40, COLD_W = 74, COLD_H = 24, GAP_X = 22, GAP_Y = 46;
/** More blocks than this are not drawn: the hottest are. */
const MOST_NODES = 240;

const expandGraph = (g) => {
  if (g.blocks) return g;
  g.address = sums(g.start);
  const base = R.start[g.function];
  for (let b = 0; b < g.address.length; b++) g.address[b] += base;
  g.blocks = g.address.length;
  g.out = [];
  let e = 0;
  const shares = new Set(g.estimated);
  for (let b = 0; b < g.blocks; b++) {
    const list = [];
    for (let k = 0; k < g.edges[b]; k++, e++) list.push({ from: b, to: g.to[e], n: g.taken[e], way: k, estimated: shares.has(e) });
    g.out.push(list);
  }
  g.newAddress = g.moved.length ? g.moved.map((m, b) => m === null ? null : g.address[b] + m) : null;
  return g;
};

/** Which blocks are drawn: all, or without those that never ran, or the hottest. */
const drawn = (g, cold) => {
  let list = [...Array(g.blocks).keys()];
  if (!cold) list = list.filter((b) => g.count[b] > 0 || b === 0);
  if (list.length > MOST_NODES) list = list.sort((a, b) => (b === 0) - (a === 0) || g.count[b] - g.count[a] || a - b).slice(0, MOST_NODES);
  return list.sort((a, b) => a - b);
};

const layered = (g, list) => {
  const inside = new Map(list.map((b, i) => [b, i]));
  const N = list.length;
  const out = list.map((b) => {
    const merged = new Map();
    for (const edge of g.out[b]) {
      if (!inside.has(edge.to)) continue;
      const to = inside.get(edge.to), old = merged.get(to);
      if (old) { old.n += edge.n; old.ways.push(edge); } else merged.set(to, { from: inside.get(b), to, n: edge.n, ways: [edge], back: false });
    }
    return [...merged.values()].sort((x, y) => y.n - x.n);
  });
  // Depth first from the entries; an edge to an open block leads back.
  const state = new Uint8Array(N), order = [];
  const starts = list.map((b, i) => i).sort((x, y) => (g.flags[list[y]] & 1) - (g.flags[list[x]] & 1) || (list[x] === 0 ? -1 : 0) - (list[y] === 0 ? -1 : 0) || g.count[list[y]] - g.count[list[x]]);
  for (const s of [0, ...starts]) {
    if (state[s] || N === 0) continue;
    const stack = [[s, 0]];
    state[s] = 1;
    while (stack.length) {
      const top = stack[stack.length - 1];
      if (top[1] === out[top[0]].length) { state[top[0]] = 2; order.push(top[0]); stack.pop(); continue; }
      const edge = out[top[0]][top[1]++];
      if (state[edge.to] === 1) edge.back = true;
      else if (!state[edge.to]) { state[edge.to] = 1; stack.push([edge.to, 0]); }
    }
  }
  order.reverse();
  const layer = new Int32Array(N);
  for (const i of order) for (const edge of out[i]) if (!edge.back) layer[edge.to] = Math.max(layer[edge.to], layer[i] + 1);
  const isCold = (i) => g.count[list[i]] === 0;
  // Chains of places: one for each layer that an edge passes.
  const places = [], layers = [];
  const put = (p) => { p.id = places.length; places.push(p); (layers[p.layer] ||= []).push(p); return p; };
  const nodes = list.map((b, i) => put({ b, layer: layer[i], w: isCold(i) ? COLD_W : NODE_W, h: isCold(i) ? COLD_H : NODE_H, cold: isCold(i), up: [], down: [] }));
  const edges = [];
  for (let i = 0; i < N; i++) {
    for (const edge of out[i]) {
      const a = nodes[edge.from], z = nodes[edge.to];
      const [top, low] = edge.back ? [z, a] : [a, z];
      const chain = [top];
      for (let l = top.layer + 1; l < low.layer; l++) {
        const p = put({ b: null, layer: l, w: 10, h: 0, cold: edge.n === 0, up: [], down: [] });
        chain.push(p);
      }
      if (low !== top) chain.push(low);
      for (let k = 1; k < chain.length; k++) {
        // Between empty places the line is to be straight.
        const empty = (chain[k - 1].b === null) + (chain[k].b === null);
        const weight = (edge.n > 0 ? 1 + Math.log1p(edge.n) : 0.5) * [1, 2, 8][empty];
        chain[k - 1].down.push([chain[k], weight]);
        chain[k].up.push([chain[k - 1], weight]);
      }
      edges.push({ edge, chain });
    }
  }
  for (let l = 0; l < layers.length; l++) layers[l] ||= [];
  const rank = () => layers.forEach((row) => row.forEach((p, k) => { p.rank = k; }));
  rank();
  for (let sweep = 0; sweep < 10; sweep++) {
    const down = sweep % 2 === 0;
    const rows = down ? layers : [...layers].reverse();
    for (const row of rows) {
      for (const p of row) {
        const near = down ? p.up : p.down;
        let sum = 0, weight = 0;
        for (const [q, w] of near) { sum += q.rank * w; weight += w; }
        p.key = weight ? sum / weight : p.rank;
      }
      // What never ran stands aside.
      row.sort((p, q) => (p.cold - q.cold) || p.key - q.key || p.rank - q.rank);
      row.forEach((p, k) => { p.rank = k; });
    }
  }
  for (const row of layers) {
    let x = 0;
    for (const p of row) { p.x = x + p.w / 2; x += p.w + (p.b === null ? 8 : GAP_X); }
  }
  // Pull to the middle of the neighbours; then push apart from both sides and take the mean.
  for (let sweep = 0; sweep < 24; sweep++) {
    const rows = sweep % 2 ? [...layers].reverse() : layers;
    for (const row of rows) {
      const wish = row.map((p) => {
        const near = [...p.up, ...p.down];
        let sum = 0, weight = 0;
        for (const [q, w] of near) { sum += q.x * w; weight += w; }
        return weight ? sum / weight : p.x;
      });
      const space = (p, q) => (p.w + q.w) / 2 + (p.b === null || q.b === null ? 12 : GAP_X);
      const left = [...wish], right = [...wish];
      for (let k = 1; k < row.length; k++) left[k] = Math.max(left[k], left[k - 1] + space(row[k - 1], row[k]));
      for (let k = row.length - 2; k >= 0; k--) right[k] = Math.min(right[k], right[k + 1] - space(row[k], row[k + 1]));
      row.forEach((p, k) => { p.x = (left[k] + right[k]) / 2; });
    }
  }
  let y = 0;
  for (const row of layers) {
    const height = Math.max(COLD_H, ...row.map((p) => p.h));
    for (const p of row) p.y = y + height / 2;
    y += height + GAP_Y;
  }
  const minX = Math.min(0, ...places.map((p) => p.x - p.w / 2));
  for (const p of places) p.x -= minX;
  const width = Math.max(NODE_W, ...places.map((p) => p.x + p.w / 2));
  return { nodes, edges, width, height: Math.max(NODE_H, y - GAP_Y) };
};

/** A smooth line through points, downwards. */
const curve = (points) => {
  let d = `M${points[0].map((v) => v.toFixed(1)).join(' ')}`;
  for (let k = 1; k < points.length; k++) {
    const [x0, y0] = points[k - 1], [x1, y1] = points[k];
    const middle = (y0 + y1) / 2;
    d += `C${x0.toFixed(1)} ${middle.toFixed(1)} ${x1.toFixed(1)} ${middle.toFixed(1)} ${x1.toFixed(1)} ${y1.toFixed(1)}`;
  }
  return d;
};

/** The picture of a graph: { box, select(block) }. */
const graphPicture = (g, cold, chosen) => {
  const list = drawn(g, cold);
  const { nodes, edges, width, height } = layered(g, list);
  const most = g.count.reduce((a, b) => Math.max(a, b), 1);
  const colours = ramp();
  const root = svg('g', {});
  const arrow = (id, colour) => svg('marker', { id, viewBox: '0 0 8 8', refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, markerUnits: 'userSpaceOnUse', orient: 'auto' }, svg('path', { d: 'M0 0L8 4L0 8z', fill: colour }));
  const picture = svg('svg', { role: 'group', 'aria-label': 'Control-flow graph', tabindex: '0' }, svg('defs', {}, arrow('arrow', 'var(--muted)'), arrow('arrow-back', 'var(--accent)')), root);
  const labels = [];
  for (const { edge, chain } of edges) {
    const from = nodes[edge.from], to = nodes[edge.to];
    const spread = (p, others, me) => { const k = others.indexOf(me); return others.length > 1 ? (k - (others.length - 1) / 2) * Math.min(16, p.w * 0.7 / (others.length - 1)) : 0; };
    const leaving = edges.filter((e) => e.edge.from === edge.from && !e.edge.back && e.chain.length > 1).sort((x, y) => x.chain[1].x - y.chain[1].x).map((e) => e.edge);
    const x0 = from.x + spread(from, leaving, edge);
    const thick = edge.n > 0 ? 1 + 4.5 * Math.pow(edge.n / most, 0.4) : 1;
    if (from === to) {
      const x = from.x + from.w / 2;
      root.append(svg('path', { class: 'edge back', 'stroke-width': thick, 'marker-end': 'url(#arrow-back)', d: `M${x - 14} ${from.y + from.h / 2}C${x - 10} ${from.y + from.h / 2 + 24} ${x + 26} ${from.y + from.h / 2 + 16} ${x + 20} ${from.y}C${x + 18} ${from.y - from.h / 2 - 16} ${x - 8} ${from.y - from.h / 2 - 18} ${x - 14} ${from.y - from.h / 2 - 1}` }));
      labels.push([x + 24, from.y, edge]);
    } else if (edge.back) {
      // Up again: out at the side of the lower block, through the chain, into the side of the upper one.
      const via = chain.slice(1, -1).reverse();
      const side = via.length ? (via[0].x >= from.x ? 1 : -1) : (to.x > from.x + 4 ? 1 : to.x < from.x - 4 ? -1 : 1);
      const bow = side > 0 ? Math.max(from.x + from.w / 2, to.x + to.w / 2) + 22 : Math.min(from.x - from.w / 2, to.x - to.w / 2) - 22;
      const xa = from.x + side * from.w / 2, xz = to.x + side * to.w / 2;
      if (via.length) {
        const mid = via.map((p) => [p.x, p.y]);
        const [fx, fy] = mid[0], [lx, ly] = mid[mid.length - 1];
        // Where the chain is above the block it leaves at the top, else at the side; and comes in at the bottom or at the side.
        const above = Math.abs(fx - from.x) < from.w / 2 - 4, below = Math.abs(lx - to.x) < to.w / 2 - 4;
        const start = above ? `M${fx} ${from.y - from.h / 2}L${fx} ${fy}` : `M${xa} ${from.y}C${xa + side * 16} ${from.y} ${fx} ${from.y} ${fx} ${fy}`;
        const s = lx >= to.x ? 1 : -1;
        const end = below ? `L${lx} ${to.y + to.h / 2 + 1}` : `C${lx} ${(ly + to.y) / 2} ${lx} ${to.y} ${to.x + s * (to.w / 2 + 1)} ${to.y}`;
        const d = start + curve(mid).replace(/^M[^C]*/, '') + end;
        root.append(svg('path', { class: 'edge back' + (edge.n ? '' : ' never'), 'stroke-width': thick, 'marker-end': 'url(#arrow-back)', d }));
        labels.push([mid[0][0], mid[0][1], edge]);
      } else {
        root.append(svg('path', { class: 'edge back' + (edge.n ? '' : ' never'), 'stroke-width': thick, 'marker-end': 'url(#arrow-back)', d: `M${xa} ${from.y}C${bow} ${from.y} ${bow} ${to.y} ${xz + side} ${to.y}` }));
        labels.push([bow - side * 6, (from.y + to.y) / 2, edge]);
      }
    } else {
      const points = [[x0, from.y + from.h / 2], ...chain.slice(1, -1).map((p) => [p.x, p.y]), [to.x, to.y - to.h / 2 - 1]];
      root.append(svg('path', { class: 'edge' + (edge.n ? '' : ' never'), 'stroke-width': thick, 'marker-end': 'url(#arrow)', d: curve(points) }));
      // Beside the line, on the side where the block's other lines are not.
      const place = leaving.indexOf(edge), side = leaving.length < 2 ? 1 : place < (leaving.length - 1) / 2 ? -1 : 1;
      labels.push([x0 + (points[1][0] - x0) * 0.12 + side * (4 + thick / 2), points[0][1] + 13, edge, side]);
    }
  }
  const groups = new Map();
  for (const p of nodes) {
    const n = g.count[p.b];
    const group = svg('g', { class: 'node' + (n ? ' run' : ' cold'), transform: `translate(${(p.x - p.w / 2).toFixed(1)} ${(p.y - p.h / 2).toFixed(1)})`, tabindex: '-1', 'data-block': p.b });
    const fillColour = n ? colours[Math.round(warmth(n, most) * 255)] : null;
    group.append(svg('rect', { width: p.w, height: p.h, rx: 5, style: fillColour ? `fill:rgb(${fillColour.join()})` : 'fill:var(--soft)' }));
    const dark = fillColour ? `fill:${ink(fillColour)}` : 'fill:var(--muted)';
    if (n) {
      group.append(svg('text', { class: 'c', x: p.w / 2, y: 17, 'text-anchor': 'middle', style: dark }, count(n).length > 15 ? short(n) : count(n)));
      group.append(svg('text', { x: p.w / 2, y: 32, 'text-anchor': 'middle', style: dark }, '+' + (g.address[p.b] - R.start[g.function]).toString(16) + ' · ' + g.size[p.b] + ' B'));
    } else group.append(svg('text', { x: p.w / 2, y: 16, 'text-anchor': 'middle', style: dark }, '+' + (g.address[p.b] - R.start[g.function]).toString(16)));
    group.append(svg('title', {}, `${hex(g.address[p.b])}, ${g.size[p.b]} bytes, ran ${count(n)} times${g.flags[p.b] & 1 ? ', entry' : ''}${g.flags[p.b] & 2 ? ', landing pad' : ''}`));
    group.addEventListener('click', () => { if (!moved) chosen(p.b); });
    groups.set(p.b, group);
    root.append(group);
  }
  for (const [x, y, edge, side] of labels) {
    const from = g.count[nodes[edge.from].b];
    if (!from || !edge.n) continue;
    const share = edge.n / from;
    const ways = edges.filter((e) => e.edge.from === edge.from && e.edge.n > 0).length;
    // The only way is no news, and of a switch's many the list beside tells.
    if (ways === 1 || ways > 5) continue;
    root.append(svg('text', { class: 'edge-label', x, y, 'text-anchor': side === 1 ? 'start' : side === -1 ? 'end' : 'middle' }, (edge.ways.some((w) => w.estimated) ? '≈' : '') + (share >= 0.9995 && share < 1 ? '> 99.9' : share < 0.0005 ? '< 0.1' : (100 * share).toFixed(share < 0.1 || share > 0.9 ? 1 : 0)) + ' %'));
  }
  // Moving and zooming.
  let view = { x: 0, y: 0, k: 1 }, moved = false, at = -1;
  const apply = () => root.setAttribute('transform', `translate(${view.x.toFixed(1)} ${view.y.toFixed(1)}) scale(${view.k.toFixed(4)})`);
  const size = () => [picture.clientWidth || 600, picture.clientHeight || 500];
  const fit = (all) => {
    const [w, h] = size();
    const k = Math.min(1, (w - 24) / width, (h - 24) / height);
    // Small enough to see all of it is often too small to read: then the entry is shown.
    view.k = all ? k : Math.max(k, Math.min(0.62, (w - 24) / (NODE_W * 2.4)));
    const entry = nodes.find((p) => p.b === 0) || nodes[0];
    view.x = view.k * width <= w - 16 ? (w - view.k * width) / 2 : w / 2 - view.k * (entry ? entry.x : 0);
    view.y = view.k * height <= h - 16 ? Math.max(14, Math.min(40, (h - view.k * height) / 2)) : 16;
    apply();
  };
  const zoomBy = (factor, x, y) => {
    const [w, h] = size();
    const [cx, cy] = [x ?? w / 2, y ?? h / 2];
    const k = Math.max(0.04, Math.min(3, view.k * factor));
    view.x = cx - (cx - view.x) * k / view.k;
    view.y = cy - (cy - view.y) * k / view.k;
    view.k = k;
    apply();
  };
  const pointers = new Map();
  picture.addEventListener('pointerdown', (e) => { pointers.set(e.pointerId, [e.clientX, e.clientY]); moved = false; });
  picture.addEventListener('pointermove', (e) => {
    const old = pointers.get(e.pointerId);
    if (!old) return;
    const dx = e.clientX - old[0], dy = e.clientY - old[1];
    if (Math.abs(dx) + Math.abs(dy) > 3 && !moved) { moved = true; picture.setPointerCapture(e.pointerId); }
    if (!moved) return;
    if (pointers.size === 2) {
      const [p, q] = [...pointers.values()];
      const before = Math.hypot(p[0] - q[0], p[1] - q[1]);
      pointers.set(e.pointerId, [e.clientX, e.clientY]);
      const [r, s] = [...pointers.values()];
      const at = picture.getBoundingClientRect();
      zoomBy(Math.hypot(r[0] - s[0], r[1] - s[1]) / (before || 1), (r[0] + s[0]) / 2 - at.left, (r[1] + s[1]) / 2 - at.top);
    } else { view.x += dx; view.y += dy; pointers.set(e.pointerId, [e.clientX, e.clientY]); apply(); }
  });
  for (const end of ['pointerup', 'pointercancel', 'pointerleave']) picture.addEventListener(end, (e) => pointers.delete(e.pointerId));
  picture.addEventListener('wheel', (e) => { e.preventDefault(); const r = picture.getBoundingClientRect(); zoomBy(Math.exp(-e.deltaY * 0.0015), e.clientX - r.left, e.clientY - r.top); }, { passive: false });
  picture.addEventListener('keydown', (e) => {
    const step = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] }[e.key];
    if (step) { view.x += step[0]; view.y += step[1]; apply(); } else if (e.key === '+' || e.key === '=') zoomBy(1.3);
    else if (e.key === '-') zoomBy(1 / 1.3);
    else if (e.key === '0') fit(true);
    else if (e.key === '[' || e.key === ']') chosen(list[Math.max(0, Math.min(list.length - 1, list.indexOf(at) + (e.key === ']' ? 1 : -1)))]);
    else return;
    e.preventDefault();
    e.stopPropagation();
  });
  return {
    picture, fit, zoomBy, shown: list.length,
    select(b) {
      at = b;
      for (const [block, group] of groups) group.classList.toggle('sel', block === b);
      const p = nodes.find((q) => q.b === b);
      if (!p) return;
      const [w, h] = size();
      const x = view.x + view.k * p.x, y = view.y + view.k * p.y;
      if (x < 30 || x > w - 30 || y < 30 || y > h - 30) { view.x += w / 2 - x; view.y += h / 2 - y; apply(); }
    },
  };
};
