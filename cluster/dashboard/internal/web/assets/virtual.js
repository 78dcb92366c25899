// A list of any length of which only the visible rows are elements.
//
// Exports:
//   VirtualList({count, row, height, heightOf, version, label, current, onCurrent, onOpen, onRange})
//     count      number of rows
//     row(index) content of a row
//     height     of a row in px (default 28); heightOf(index) for rows that differ. version changes
//                when answers of heightOf change.
//     label      accessible name
//     current    index of the current row, -1 for none; onCurrent(index) is called by clicks, the
//                arrow keys, j, k, Home, End and the page keys; onOpen(index) by Enter
//     onRange(first, last)  called when other rows become visible, to load them

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from './lib/htm-preact.js';

const overscan = 10; // rows beyond both edges

function offsetsOf(count, height, heightOf) {
  const offsets = new Float64Array(count + 1);
  for (let i = 0; i < count; i++) offsets[i + 1] = offsets[i] + (heightOf ? heightOf(i) : height);
  return offsets;
}

// The last index whose offset is not above y.
function indexAt(offsets, y) {
  let low = 0;
  let high = offsets.length - 2;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (offsets[middle] <= y) low = middle;
    else high = middle - 1;
  }
  return Math.max(0, low);
}

export function VirtualList({ count, row, height = 28, heightOf, version, label, current = -1, onCurrent, onOpen, onRange }) {
  const box = useRef(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const offsets = useMemo(() => offsetsOf(count, height, heightOf), [count, height, version]);
  const first = Math.max(0, indexAt(offsets, view.top) - overscan);
  const last = Math.min(count - 1, indexAt(offsets, view.top + view.height) + overscan);
  useLayoutEffect(() => {
    const element = box.current;
    const measure = () => setView({ top: element.scrollTop, height: element.clientHeight });
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    element.addEventListener('scroll', measure, { passive: true });
    return () => {
      observer.disconnect();
      element.removeEventListener('scroll', measure);
    };
  }, []);
  useEffect(() => onRange?.(first, last), [first, last, count]);
  useEffect(() => reveal(box.current, offsets, current), [current]);
  const keys = (event) => move(event, { count, current, onCurrent, onOpen, page: Math.floor(view.height / height) });
  const shown = [];
  for (let i = first; i <= last; i++) shown.push(i);
  return html`<div class="virtual" ref=${box} role="listbox" aria-label=${label} tabindex="0" onKeyDown=${keys} data-own-keys
    aria-activedescendant=${current >= first && current <= last ? `row-${current}` : undefined}>
    <div class="virtual-space" role="presentation" style=${{ height: `${offsets[count]}px` }}>
      ${shown.map((i) => html`<div class=${`virtual-row ${i === current ? 'current' : ''}`} key=${i} id=${`row-${i}`}
        role="option" aria-selected=${i === current ? 'true' : 'false'} aria-setsize=${count} aria-posinset=${i + 1}
        style=${{ transform: `translateY(${offsets[i]}px)`, height: `${offsets[i + 1] - offsets[i]}px` }}
        onClick=${() => onCurrent?.(i)} onDblClick=${() => onOpen?.(i)}>${row(i)}</div>`)}
    </div>
  </div>`;
}

function reveal(element, offsets, index) {
  if (index < 0 || index >= offsets.length - 1) return;
  if (offsets[index] < element.scrollTop) element.scrollTop = offsets[index];
  const bottom = offsets[index + 1] - element.clientHeight;
  if (bottom > element.scrollTop) element.scrollTop = bottom;
}

function move(event, { count, current, onCurrent, onOpen, page }) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest('input, textarea, select')) return;
  if (event.key === 'Enter' && event.target === event.currentTarget) onOpen?.(current);
  const targets = {
    ArrowDown: current + 1, j: current + 1, ArrowUp: current - 1, k: current - 1,
    PageDown: current + page, PageUp: current - page, Home: 0, End: count - 1,
  };
  if (!(event.key in targets) || count === 0) return;
  onCurrent?.(Math.max(0, Math.min(count - 1, targets[event.key])));
  event.preventDefault();
  event.stopPropagation();
}
