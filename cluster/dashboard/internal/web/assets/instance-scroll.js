// Long lists of rows of one height, of which only the visible ones exist.
//
// Exports:
//   useWindow(count, rowHeight)   {ref, onScroll, first, last, show(index)} for a scrolling element
//   useNarrow()                   whether the page is narrow
//   useWidth()                    [ref, width in pixels] of an element
//   moveBy(event, index, count)   the index that a key moves to, or -1: j, k, arrows, pages, Home, End

import { useEffect, useLayoutEffect, useRef, useState } from './lib/htm-preact.js';
import { windowOf } from './timeline-layout.js';

/** Keeps which rows of a scrolling element are visible. */
export function useWindow(count, rowHeight) {
  const ref = useRef(null);
  const [range, setRange] = useState({ first: 0, last: Math.min(count, 40) });
  const update = () => {
    const element = ref.current;
    if (!element) {
      return;
    }
    const next = windowOf(element.scrollTop, element.clientHeight, rowHeight, count);
    setRange((now) => (now.first === next.first && now.last === next.last ? now : next));
  };
  useLayoutEffect(() => {
    update();
    if (!ref.current) {
      return undefined;
    }
    const observer = new ResizeObserver(update);
    observer.observe(ref.current);
    return () => observer.disconnect();
  }, [count, rowHeight]);
  const show = (index) => {
    const element = ref.current;
    if (!element || index < 0) {
      return;
    }
    const top = index * rowHeight;
    if (top < element.scrollTop || top + rowHeight > element.scrollTop + element.clientHeight) {
      element.scrollTop = Math.max(0, top - element.clientHeight / 3);
    }
    update();
  };
  return { ref, onScroll: update, show, first: Math.min(range.first, count), last: Math.min(range.last, count) };
}

/** Reports whether the page is at most 640 pixels wide. */
export function useNarrow() {
  const query = useRef(window.matchMedia('(max-width: 640px)')).current;
  const [narrow, setNarrow] = useState(query.matches);
  useEffect(() => {
    const change = () => setNarrow(query.matches);
    query.addEventListener('change', change);
    return () => query.removeEventListener('change', change);
  }, []);
  return narrow;
}

/** Measures the width of an element. */
export function useWidth() {
  const ref = useRef(null);
  const [width, setWidth] = useState(800);
  useLayoutEffect(() => {
    if (!ref.current) {
      return undefined;
    }
    const observer = new ResizeObserver(() => ref.current && setWidth(ref.current.clientWidth || 1));
    observer.observe(ref.current);
    setWidth(ref.current.clientWidth || 1);
    return () => observer.disconnect();
  }, []);
  return [ref, width];
}

/** Returns the index of the row that a key moves to, or -1 if the key moves to none. */
export function moveBy(event, index, count) {
  if (event.ctrlKey || event.metaKey || event.altKey) {
    return -1;
  }
  const steps = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1, PageDown: 20, PageUp: -20, Home: -count, End: count };
  const step = steps[event.key];
  return step === undefined || count === 0 ? -1 : Math.min(count - 1, Math.max(0, index + step));
}
