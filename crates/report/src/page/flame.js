// Flame graph and call graph, from counts of calls.
//
// Counts say how often a function called another, not through which callers: chains of callers are estimated as gprof does. A call of a function costs the same
// for every caller: its own instructions by the number of its executions, and its callees in proportion. Calls, their numbers and each function's own instructions are exact.

/** Instructions of one execution of each function with all that it calls. */
let inclusive = null;
const costs = () => {
  if (inclusive) return inclusive;
  const own = new Float64Array(R.n), runs = new Float64Array(R.n), cost = new Float64Array(R.n);
  const into = new Float64Array(R.n);
  for (let e = 0; e < C.n; e++) into[C.callee[e]] += C.count[e];
  for (let f = 0; f < R.n; f++) {
    runs[f] = Math.max(R.entries[f], into[f], 1);
    cost[f] = own[f] = R.instructions[f] / runs[f];
  }
  // Callees first, as far as there is an order; what is recursive settles in a few rounds.
  const order = [], seen = new Uint8Array(R.n);
  for (let root = 0; root < R.n; root++) {
    if (seen[root]) continue;
    seen[root] = 1;
    const stack = [[root, 0]];
    while (stack.length) {
      const top = stack[stack.length - 1], out = C.out.get(top[0]) || [];
      if (top[1] === out.length) { order.push(top[0]); stack.pop(); continue; }
      const next = C.callee[out[top[1]++]];
      if (!seen[next]) { seen[next] = 1; stack.push([next, 0]); }
    }
  }
  for (let round = 0; round < 60; round++) {
    let moved = 0;
    for (const f of order) {
      let sum = own[f];
      for (const e of C.out.get(f) || []) sum += C.count[e] / runs[f] * cost[C.callee[e]];
      // More than everything cannot be: recursion that never ends by the counts.
      sum = Math.min(sum, R.all);
      moved = Math.max(moved, Math.abs(sum - cost[f]) / (sum || 1));
      cost[f] = sum;
    }
    if (moved < 1e-4) break;
  }
  return inclusive = { own, runs, cost, into };
};

const DEEPEST = 120;
/** Below this row narrow boxes are left out: recursion makes towers of them. */
const DEEP = 24;
const flameState = { path: [], hit: '' };

/** What is called from a node: { f, n, parent } with n executions; heaviest first. */
const childrenOf = (node) => {
  if (node.children) return node.children;
  const { runs, cost, into } = costs();
  const list = [];
  if (node.f === null) {
    for (let f = 0; f < R.n; f++) {
      const outside = Math.max(0, R.entries[f] - into[f]);
      if (outside > 0) list.push({ f, n: outside, parent: node, depth: 1 });
    }
  } else if (node.depth < DEEPEST) {
    for (const e of C.out.get(node.f) || []) list.push({ f: C.callee[e], n: C.count[e] * node.n / runs[node.f], parent: node, depth: node.depth + 1 });
  }
  for (const child of list) child.cost = child.n * cost[child.f];
  list.sort((a, b) => b.cost - a.cost);
  return node.children = list;
};

const flameView = () => {
  if (!C.n) return [el('p', { class: 'lead' }, 'The profile has no calls between functions, so there is no flame graph.')];
  const root = { f: null, n: 1, depth: 0, parent: null };
  root.cost = total(childrenOf(root).map((c) => c.cost));
  let zoomed = root, boxes = [], at = null;
  const canvas = el('canvas', { tabindex: '0', role: 'img', 'aria-label': 'Flame graph: arrow keys move, Enter zooms, Backspace goes back' });
  const crumbs = el('div', { class: 'bar-row muted' });
  const HEIGHT = 21;
  const name = (node) => node.f === null ? 'all' : R.name[node.f];
  const draw = () => {
    if (!canvas.isConnected) return;
    boxes = [];
    const width = canvas.clientWidth || 800;
    const place = (node, x, w, row) => {
      boxes.push({ node, x, w, row });
      let left = x;
      const kids = childrenOf(node);
      const scale = node.cost > 0 ? w / node.cost : 0;
      for (const child of kids) {
        const wide = child.cost * scale;
        if (wide < (row > DEEP ? 14 : 0.7)) break;
        // Rounding must not let callees stick out.
        if (left + wide > x + w + 0.5) break;
        place(child, left, wide, row + 1);
        left += wide;
      }
    };
    const above = [];
    for (let node = zoomed.parent; node; node = node.parent) above.unshift(node);
    above.forEach((node, row) => boxes.push({ node, x: 0, w: width, row, above: true }));
    place(zoomed, 0, width, above.length);
    const rows = Math.max(6, 1 + boxes.reduce((a, b) => Math.max(a, b.row), 0));
    const [c] = context(canvas, rows * HEIGHT + 2);
    const of = theme(), colours = ramp(), below = rgb(of('panel'));
    const words = flameState.hit.toLowerCase().split(/\s+/).filter(Boolean);
    c.font = '12px system-ui, sans-serif';
    c.textBaseline = 'middle';
    for (const box of boxes) {
      const f = box.node.f;
      const found = words.length && f !== null && words.every((word) => R.lower[f].includes(word));
      // The colour says how much of it is the function's own.
      const self = f === null ? 0 : Math.min(1, costs().own[f] * box.node.n / (box.node.cost || 1));
      const strength = box.above ? 0.45 : words.length && !found ? 0.3 : 1;
      const triple = mixed(f === null ? rgb(of('soft')) : colours[Math.round(30 + self * 165)], below, strength);
      c.fillStyle = `rgb(${triple.join()})`;
      const gap = box.w > 3 ? 1 : 0;
      c.fillRect(box.x, box.row * HEIGHT, box.w - gap, HEIGHT - 1);
      if (found || box.node === at) { c.strokeStyle = of('accent'); c.lineWidth = 2; c.strokeRect(box.x + 1, box.row * HEIGHT + 1, Math.max(1, box.w - 3), HEIGHT - 3); }
      if (box.w > 34) {
        c.fillStyle = ink(triple);
        c.save();
        c.beginPath();
        c.rect(box.x + 4, box.row * HEIGHT, box.w - 8, HEIGHT);
        c.clip();
        c.fillText(name(box.node), box.x + 5, box.row * HEIGHT + HEIGHT / 2);
        c.restore();
      }
    }
    crumbs.replaceChildren(el('button', { type: 'button', onclick: () => zoom(root) }, 'All'),
      zoomed === root ? el('span', {}, 'Width: share of all instructions. Colour: how much is the function’s own. Click a box to zoom.') : el('span', {}, `${name(zoomed)}: ${percent(zoomed.cost, root.cost)} of all instructions here, `, functionLink(zoomed.f), ' opens it.'));
  };
  const zoom = (node) => { zoomed = node; at = null; draw(); };
  const boxAt = (event) => {
    const r = canvas.getBoundingClientRect();
    const x = event.clientX - r.left, row = Math.floor((event.clientY - r.top) / HEIGHT);
    return boxes.find((box) => box.row === row && x >= box.x && x < box.x + box.w);
  };
  canvas.addEventListener('pointermove', (event) => {
    const box = boxAt(event);
    if (!box) return tip.hide();
    const { f, n, cost, parent } = box.node;
    tip.show(f === null ? `all: ${short(cost)} instructions` : `${R.name[f]}\n${percent(cost, root.cost)} of all instructions with what it calls, ${percent(costs().own[f] * n, root.cost)} its own\n≈ ${short(Math.round(n))} executions ${parent && parent.f !== null ? 'from ' + R.name[parent.f] : 'from elsewhere: start-up, libraries, or indirect calls whose targets found no room in their tables'}`, event.clientX, event.clientY);
  });
  canvas.addEventListener('pointerleave', () => tip.hide());
  canvas.addEventListener('click', (event) => { const box = boxAt(event); if (box) { tip.hide(); zoom(box.node); } });
  canvas.addEventListener('keydown', (event) => {
    // Boxes are made anew whenever they are drawn; what they stand for stays.
    const here = boxes.find((box) => box.node === at);
    const pick = (test) => { const next = boxes.find(test); if (next) at = next.node; };
    if (event.key === 'Enter' && here) zoom(at);
    else if (event.key === 'Backspace' && zoomed.parent) zoom(zoomed.parent);
    else if (event.key.startsWith('Arrow')) {
      if (!here) at = zoomed;
      else if (event.key === 'ArrowDown') pick((b) => b.node.parent === at);
      else if (event.key === 'ArrowUp') pick((b) => b.node === at.parent);
      else {
        const row = boxes.filter((b) => b.row === here.row);
        at = row[Math.max(0, Math.min(row.length - 1, row.indexOf(here) + (event.key === 'ArrowRight' ? 1 : -1)))].node;
      }
      draw();
    } else return;
    event.preventDefault();
  });
  // Drawing changes the height, so not while sizes are observed.
  new ResizeObserver(() => requestAnimationFrame(draw)).observe(canvas);
  painters.push(draw);
  whenOnPage(draw);
  const input = el('input', { type: 'search', id: 'search', placeholder: 'Highlight…', 'aria-label': 'Highlight functions by name', value: flameState.hit });
  input.addEventListener('input', () => { flameState.hit = input.value; draw(); });
  return [
    el('p', { class: 'lead' }, 'Calls were counted, chains of callers were not: how the executions of a function are divided among its callers is estimated from the counts of calls (as gprof does). Each function’s own instructions are as counted.'),
    el('div', { class: 'bar-row' }, input), crumbs, el('section', { class: 'panel' }, canvas),
  ];
};

const callsState = { f: null };
const callsView = (argument) => {
  if (!C.n) return [el('p', { class: 'lead' }, 'The profile has no calls between functions.')];
  if (argument !== undefined) callsState.f = argument;
  if (callsState.f === null || callsState.f >= R.n) {
    const calls = new Float64Array(R.n);
    for (let e = 0; e < C.n; e++) calls[C.callee[e]] += C.count[e];
    callsState.f = calls.indexOf(calls.reduce((a, b) => Math.max(a, b), 0));
  }
  const f = callsState.f, { into, cost } = costs();
  const list = (edges, other, whole, extra) => {
    const most = Math.max(extra || 0, ...edges.map((e) => C.count[e]), 1);
    const item = (label, n, indirect) => el('li', {}, el('i', { style: `width:${100 * n / most}%` }), label, el('small', {}, `${count(n)} ${n === 1 ? 'call' : 'calls'} (${percent(n, whole)})${indirect ? `, ${indirect === n ? 'all' : count(indirect)} indirect` : ''}`));
    const sorted = [...edges].sort((a, b) => C.count[b] - C.count[a]);
    const shown = sorted.slice(0, 60);
    return el('ul', {}, shown.map((e) => item(el('button', { class: 'link', type: 'button', onclick: () => go('calls', other[e]) }, R.name[other[e]]), C.count[e], C.indirect[e])),
      extra ? item(el('span', {}, 'from elsewhere (start-up, libraries, code without counters, indirect calls whose tables had no room for this target)'), extra, 0) : null,
      sorted.length > shown.length ? el('li', { class: 'muted' }, `… ${count(sorted.length - shown.length)} more`) : null,
      !sorted.length && !extra ? el('li', { class: 'muted' }, 'none') : null);
  };
  const incoming = C.in.get(f) || [], outgoing = C.out.get(f) || [];
  const outside = Math.max(0, R.entries[f] - into[f]);
  return [
    el('p', { class: 'lead' }, 'Who calls a function and whom it calls, with exact numbers of calls, also of indirect ones. Follow the names.'),
    el('div', { class: 'bar-row' }, finder('Find a function…', (g) => go('calls', g), R.name[f])),
    el('div', { class: 'fly' },
      el('section', { class: 'panel' }, el('h2', {}, 'Called by'), list(incoming, C.caller, Math.max(R.entries[f], into[f]), outside)),
      el('section', { class: 'panel center' }, el('h2', { style: 'overflow-wrap:anywhere' }, R.name[f]), el('p', { class: 'muted' }, `${count(R.entries[f])} executions`), el('p', {}, `${percent(R.instructions[f], R.all)} of all instructions are its own, ${percent(Math.min(R.all, cost[f] * Math.max(R.entries[f], into[f])), R.all)} with what it calls (estimated)`), el('button', { type: 'button', onclick: () => go('function', f) }, 'Open the function')),
      el('section', { class: 'panel' }, el('h2', {}, 'Calls'), list(outgoing, C.callee, total(outgoing.map((e) => C.count[e]))))),
  ];
};
