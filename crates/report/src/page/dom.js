// Elements, numbers, colours, the table of which only the visible rows exist.

/** Windows narrower than this are a phone's. */
const NARROW = 600;
const SVG = 'http://www.w3.org/2000/svg';

const fill = (node, attributes, children) => {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith('on')) node.addEventListener(key.slice(2), value);
    else if (key === 'style') node.style.cssText = value;
    else node.setAttribute(key, value === true ? '' : value);
  }
  // Strings become text, never markup: names of functions and files are anything.
  for (const child of children.flat(2)) if (child !== null && child !== undefined && child !== false) node.append(child);
  return node;
};
const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

const grouped = new Intl.NumberFormat('en-GB');
const count = (n) => grouped.format(n);
const short = (n) => {
  for (const [unit, name] of [[1e18, ' E'], [1e15, ' P'], [1e12, ' T'], [1e9, ' G'], [1e6, ' M'], [1e3, ' k']]) {
    if (Math.abs(n) >= unit * 0.9995) { const x = n / unit; return (Math.abs(x) >= 99.95 ? x.toFixed(0) : Math.abs(x) >= 9.995 ? x.toFixed(1) : x.toFixed(2)) + name; }
  }
  return grouped.format(n);
};
const bytes = (n) => {
  const a = Math.abs(n);
  if (a < 1000) return n + ' B';
  return short(n) + 'B';
};
const percent = (part, whole, digits) => {
  if (!whole) return '–';
  const x = 100 * part / whole;
  if (part === 0) return '0 %';
  if (part > 0 && x < 0.01) return '< 0.01 %';
  return x.toFixed(digits ?? (x < 1 ? 2 : 1)) + ' %';
};
const change = (before, after) => {
  if (!before) return '–';
  const x = (after / before - 1) * 100, text = Math.abs(x).toFixed(1) + ' %';
  // What rounds to nothing has no sign.
  return text === '0.0 %' ? text : (x > 0 ? '+' : '−') + text;
};
const hex = (n) => '0x' + n.toString(16);
const tail = (path) => path.split('/').pop();

const theme = () => {
  const style = getComputedStyle(document.documentElement);
  return (name) => style.getPropertyValue('--' + name).trim();
};
const rgb = (text) => [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
/** The colours of heat from 0 to 1, as 256 triples. */
const ramp = () => {
  const of = theme();
  const stops = ['h0', 'h1', 'h2', 'h3', 'h4'].map((name) => rgb(of(name)));
  return Array.from({ length: 256 }, (_, i) => {
    const x = i / 255 * 4, k = Math.min(3, Math.floor(x)), part = x - k;
    return stops[k].map((a, c) => Math.round(a + (stops[k + 1][c] - a) * part));
  });
};
/** Heat of a count between 0 and 1, by its logarithm. */
const warmth = (n, most) => n > 0 ? 0.06 + 0.94 * Math.log1p(n) / Math.log1p(most) : 0;
/** Black or white, whichever is easier to read on a colour: the contrast is 4.5 or more on any (WCAG's formula). */
const ink = (c) => {
  const [r, g, b] = c.map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? '#000000' : '#ffffff';
};
/** A colour that lets part of what is below it through. */
const mixed = (colour, below, share) => colour.map((v, i) => Math.round(v * share + below[i] * (1 - share)));

/** What draws pictures and tables of the view at hand again, in the colours of the theme; they are told if it is for paper. */
let painters = [];

/** What waits until the view that is being made is on the page and has its size; `null` if none is being made. */
let waiting = null;
/** Runs what needs sizes: at once, or when the view is on the page. A timer would let keys come first. */
const whenOnPage = (run) => { if (waiting) waiting.push(run); else run(); };

const tip = {
  box: document.getElementById('tip'),
  show(text, x, y) {
    this.box.textContent = text;
    this.box.hidden = false;
    const r = this.box.getBoundingClientRect();
    this.box.style.left = Math.max(4, Math.min(x + 14, innerWidth - r.width - 6)) + 'px';
    this.box.style.top = (y + 18 + r.height > innerHeight ? Math.max(4, y - r.height - 10) : y + 18) + 'px';
  },
  hide() { this.box.hidden = true; },
};

/** A canvas's drawing context at the screen's resolution, and its size in CSS pixels. */
const context = (canvas, height) => {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth || 600;
  const tall = height ?? canvas.clientHeight;
  if (height) canvas.style.height = height + 'px';
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(tall * ratio);
  const c = canvas.getContext('2d');
  c.setTransform(ratio, 0, 0, ratio, 0, 0);
  return [c, width, tall];
};

/** Buttons of which one is pressed. */
const segment = (label, choices, chosen, choose) => {
  const box = el('div', { class: 'seg', role: 'group', 'aria-label': label });
  for (const [value, text] of choices) {
    box.append(el('button', {
      type: 'button', 'aria-pressed': String(value === chosen), onclick: (event) => {
        for (const other of box.children) other.setAttribute('aria-pressed', String(other === event.currentTarget));
        choose(value);
      },
    }, text));
  }
  return box;
};

/** A field that finds functions by parts of their names. */
const finder = (label, chosen, value) => {
  const list = el('ul', { role: 'listbox', hidden: true });
  let hits = [], at = 0;
  const input = el('input', { type: 'search', placeholder: label, 'aria-label': label, value: value || '', autocomplete: 'off', role: 'combobox', 'aria-expanded': 'false' });
  const close = () => { list.hidden = true; input.setAttribute('aria-expanded', 'false'); };
  const take = (f) => { close(); input.value = R.name[f]; chosen(f); };
  const show = () => {
    list.replaceChildren(...hits.map((f, k) => el('li', { role: 'option', 'aria-selected': String(k === at), title: R.name[f], onmousedown: (e) => { e.preventDefault(); take(f); } }, R.name[f])));
    list.hidden = !hits.length;
    input.setAttribute('aria-expanded', String(!!hits.length));
  };
  input.addEventListener('input', () => {
    hits = input.value.trim() ? find(input.value).slice(0, 40) : [];
    at = 0;
    show();
  });
  input.addEventListener('keydown', (event) => {
    if (event.key === 'ArrowDown' || event.key === 'ArrowUp') {
      at = Math.max(0, Math.min(hits.length - 1, at + (event.key === 'ArrowDown' ? 1 : -1)));
      show();
      list.children[at]?.scrollIntoView({ block: 'nearest' });
      event.preventDefault();
    } else if (event.key === 'Enter' && hits.length) take(hits[at]);
    else if (event.key === 'Escape') close();
  });
  input.addEventListener('blur', close);
  return el('div', { class: 'suggest' }, input, list);
};

/** Functions whose name has all words of a query, the hottest first. */
const find = (query) => {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const out = [];
  for (let f = 0; f < R.n; f++) if (words.every((word) => R.lower[f].includes(word))) out.push(f);
  return out.sort((a, b) => R.instructions[b] - R.instructions[a]);
};

const ROW = 30;
/** Rows of a table that go on paper. */
const PRINTED = 200;
/** So many blocks of a function and lines of a file do: the style sheet hides the rest. */
const PRINTED_BLOCKS = 100, PRINTED_LINES = 1200;
/** What is on paper alone: how much is not. */
const unprinted = (n, what) => n > 0 ? el('p', { class: 'on-paper muted' }, `${count(n)} more ${what} are not printed.`) : null;
/**
 * A table of any length. Columns: { name, title, width, num, value(row), show(row) }.
 * Rows are numbers; `open` is called with the one that was chosen.
 */
const table = (columns, options) => {
  let rows = [], selected = -1, sorted = options.sort, down = true;
  // Wide enough for every column's least width, whatever is in it: a long name must not move the columns after it.
  const least = columns.reduce((sum, c) => sum + Number(c.width.match(/\d+/)[0]) + 14, 14);
  const template = `${columns.map((c) => c.width).join(' ')};min-width:${least}px`;
  const head = el('div', { class: 'vt-head', role: 'row', style: 'grid-template-columns:' + template });
  const body = el('div', { class: 'vt-body', role: 'rowgroup' });
  const more = el('p', { class: 'vt-more muted' });
  const box = el('div', { class: 'vt', role: 'table', tabindex: '0', 'aria-label': options.label }, head, body, more);
  const draw = (paper) => {
    // Before it is asked for its height: that of a short table is the height of its rows.
    body.style.height = rows.length * ROW + 'px';
    const top = paper ? 0 : Math.max(0, Math.floor((box.scrollTop - 36) / ROW) - 4);
    const end = Math.min(rows.length, paper ? PRINTED : top + Math.ceil((box.clientHeight || 600) / ROW) + 9);
    more.textContent = paper && end < rows.length ? `${count(rows.length - end)} more rows are not printed.` : '';
    const shown = [];
    for (let i = top; i < end; i++) {
      const row = rows[i];
      shown.push(el('div', { class: 'vt-row' + (i === selected ? ' sel' : ''), role: 'row', style: `grid-template-columns:${template};top:${i * ROW}px`, 'data-row': row, 'aria-rowindex': i + 1, onclick: () => { selected = i; draw(); options.open(row); } },
        columns.map((c) => { const text = c.show(row); return el('span', { role: 'cell', class: c.num ? 'num' : null, title: typeof text === 'string' ? text : c.hint?.(row) }, text); })));
    }
    body.replaceChildren(...shown);
  };
  const sort = () => {
    const column = columns.find((c) => c.name === sorted) || columns[0];
    const key = new Map(rows.map((row) => [row, column.value(row)]));
    const sign = down ? -1 : 1;
    rows.sort((a, b) => { const x = key.get(a), y = key.get(b); return x < y ? -sign : x > y ? sign : a - b; });
    for (const cell of head.children) {
      const button = cell.firstChild, own = button.dataset.name === sorted;
      if (own) cell.setAttribute('aria-sort', down ? 'descending' : 'ascending'); else cell.removeAttribute('aria-sort');
      button.textContent = button.dataset.title + (own ? (down ? ' ↓' : ' ↑') : '');
    }
  };
  for (const c of columns) {
    head.append(el('span', { role: 'columnheader' }, el('button', {
      type: 'button', 'data-name': c.name, 'data-title': c.title, 'data-num': c.num, title: c.help || c.title, onclick: () => {
        if (sorted === c.name) down = !down; else { sorted = c.name; down = !!c.num; }
        sort(); draw();
      },
    }, c.title)));
  }
  painters.push(draw);
  box.addEventListener('scroll', () => draw(), { passive: true });
  box.addEventListener('keydown', (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15, Home: -1e9, End: 1e9 }[event.key];
    if (step && event.target === box) {
      selected = Math.max(0, Math.min(rows.length - 1, selected + step));
      const y = selected * ROW;
      if (y < box.scrollTop) box.scrollTop = y;
      else if (y + ROW + 40 > box.scrollTop + box.clientHeight) box.scrollTop = y + ROW + 40 - box.clientHeight;
      draw();
      event.preventDefault();
    } else if (event.key === 'Enter' && event.target === box && rows[selected] !== undefined) options.open(rows[selected]);
  });
  new ResizeObserver(() => draw()).observe(box);
  return { box, set(list) { rows = list; selected = -1; sort(); draw(); }, get length() { return rows.length; } };
};
/** A share as a number with a bar behind it. */
const shareCell = (part, whole, most) => el('span', { class: 'share' }, el('i', { style: `width:${most ? Math.max(0, 100 * part / most) : 0}%` }), el('em', {}, percent(part, whole)));
