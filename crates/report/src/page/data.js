// Reads the page's data. The shape is described in src/model.rs: tables are columns, ascending numbers are differences.

/** The data as written, then what is derived of it. */
let model;
/** Functions that ran: columns, and those that are worked out here. */
let R;
/** Edges of the call graph, and by function those that lead in and out. */
let C;
/** Graphs by number of function. */
const graphOf = new Map();

const sums = (differences) => {
  const out = new Float64Array(differences.length);
  let sum = 0;
  for (let i = 0; i < out.length; i++) out[i] = sum += differences[i];
  return out;
};

const total = (list) => {
  let sum = 0;
  for (const n of list) sum += n;
  return sum;
};

/** Inflates and parses. */
const readData = async () => {
  const text = document.getElementById('data').textContent.trim();
  if (typeof DecompressionStream === 'undefined') throw new Error('This browser cannot decompress data by itself. Firefox 113, Chrome 103, Safari 16.4 and later can.');
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate-raw'));
  return JSON.parse(await new Response(stream).text());
};

/** Where a number belongs in an ascending list: the last entry that is not above it, or -1. */
const lastNotAbove = (list, x) => {
  let low = 0, high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle] <= x) low = middle + 1; else high = middle;
  }
  return low - 1;
};

const prepare = (data) => {
  model = data;
  R = data.ran;
  R.n = R.name.length;
  // With a second profile, functions that ran in that one alone are there, too.
  R.ran = R.instructions.reduce((n, x) => n + (x > 0), 0);
  R.start = sums(R.start);
  R.all = total(R.instructions) || 1;
  R.lower = R.name.map((name) => name.toLowerCase());
  R.newStart = R.start.map((start, f) => R.moved[f] ? start + R.moved[f] : start);
  data.rest.start = sums(data.rest.start);
  for (const side of [data.layout.before, data.layout.after]) if (side) side.lines = sums(side.lines);
  const c = data.calls, n = c.callee.length;
  const caller = sums(c.caller);
  C = { n, caller, callee: c.callee, count: c.count, indirect: c.indirect, out: new Map(), in: new Map() };
  for (let e = 0; e < n; e++) {
    const push = (map, key) => { const list = map.get(key); if (list) list.push(e); else map.set(key, [e]); };
    push(C.out, caller[e]);
    push(C.in, c.callee[e]);
  }
  for (const graph of data.graphs) graphOf.set(graph.function, graph);
  // What is where: every function and part of one, by address, before and after.
  const extents = (after) => {
    const list = [];
    for (let f = 0; f < R.n; f++) {
      if (after && R.moved[f]) list.push([R.newStart[f], R.newHot[f], f]);
      list.push([R.start[f], R.size[f], f]);
    }
    for (let k = 0; k < data.rest.start.length; k++) list.push([data.rest.start[k], data.rest.size[k], -1 - k]);
    list.sort((a, b) => a[0] - b[0]);
    return { start: Float64Array.from(list, (x) => x[0]), size: Float64Array.from(list, (x) => x[1]), id: Int32Array.from(list, (x) => x[2]) };
  };
  data.extents = [extents(false), data.layout.after && extents(true)];
};

/** The function at an address: its number, below 0 if it did not run, or null. */
const functionAt = (address, after) => {
  const list = model.extents[after ? 1 : 0];
  const k = lastNotAbove(list.start, address);
  return k >= 0 && address < list.start[k] + list.size[k] ? list.id[k] : null;
};

const nameOf = (id) => id >= 0 ? R.name[id] : model.rest.name[-1 - id] || '0x' + model.rest.start[-1 - id].toString(16) + ' (did not run)';

/** What became of a function, in words: [short, long]. */
const fate = (f) => {
  if (R.moved[f]) return ['moved', 'moved to 0x' + R.newStart[f].toString(16)];
  if (R.pin[f]) return ['stays', model.reasons[R.pin[f] - 1]];
  return model.layout.after ? ['stays', 'was not moved'] : ['can move', 'nothing holds it'];
};
