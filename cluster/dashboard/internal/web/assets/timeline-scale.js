// The parts of the timeline above its rows: what happened overall, the scale, marks and the cursor.
//
// Exports:
//   Overview({timeline, revision, now, view})   how much is open over the whole time, and what is zoomed to
//   Scale({timeline, revision, view, track, width, cursor, setCursor, onSelect})

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from './lib/htm-preact.js';
import { absolute } from './format.js';
import { binMarks, density, offsetLabel, position, ticks, timeAt } from './timeline-layout.js';

const columns = 600;

/** A drawing of how many operations are open over the whole time. Dragging in it zooms. */
export function Overview({ timeline, revision, now, view }) {
  const canvas = useRef(null);
  const [drag, setDrag] = useState(null);
  const counts = useMemo(() => density(timeline.rows, view.all, columns, timeline.endedAt ?? now), [timeline, revision, timeline.endedAt ?? Math.round(now / 1000)]);
  useLayoutEffect(() => draw(canvas.current, counts), [counts]);
  useEffect(() => {
    const scheme = window.matchMedia('(prefers-color-scheme: dark)');
    const again = () => draw(canvas.current, counts);
    const observer = new MutationObserver(again);
    scheme.addEventListener('change', again);
    observer.observe(document.documentElement, { attributes: true });
    return () => {
      scheme.removeEventListener('change', again);
      observer.disconnect();
    };
  }, [counts]);
  const at = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    return timeAt(Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)), view.all);
  };
  const down = (event) => {
    event.currentTarget.setPointerCapture(event.pointerId);
    setDrag({ from: at(event), to: at(event) });
  };
  const up = () => {
    if (drag && Math.abs(drag.to - drag.from) > (view.all.end - view.all.start) / 200) {
      view.set(Math.min(drag.from, drag.to), Math.max(drag.from, drag.to));
    }
    setDrag(null);
  };
  const shown = drag ? { start: Math.min(drag.from, drag.to), end: Math.max(drag.from, drag.to) } : view;
  const left = Math.max(0, position(shown.start, view.all)) * 100;
  const right = Math.min(1, position(shown.end, view.all)) * 100;
  return html`
    <div class="timeline-overview" aria-hidden="true" title="Drag to zoom"
      onPointerDown=${down} onPointerMove=${(e) => drag && setDrag({ ...drag, to: at(e) })} onPointerUp=${up} onPointerCancel=${() => setDrag(null)}>
      <canvas ref=${canvas} width=${columns} height="36"></canvas>
      <span class="timeline-most">${counts.most > 1 ? `up to ${counts.most.toLocaleString('en')} open` : ''}</span>
      ${view.isWhole && !drag ? null : html`<span class="timeline-window" style=${{ left: `${left}%`, width: `${right - left}%` }}></span>`}
    </div>`;
}

function draw(canvas, { open, failed, most }) {
  const context = canvas && canvas.getContext('2d');
  if (!context) {
    return;
  }
  // instance.css gives both colors to the element, because a script cannot resolve custom properties.
  const { color: area, borderTopColor: bad } = window.getComputedStyle(canvas);
  context.clearRect(0, 0, canvas.width, canvas.height);
  const space = canvas.height - 4;
  context.fillStyle = area;
  open.forEach((count, x) => {
    const height = count ? Math.max(2, (Math.sqrt(count) / Math.sqrt(most)) * space) : 0;
    context.fillRect(x, canvas.height - height, 1, height);
  });
  context.fillStyle = bad;
  failed.forEach((is, x) => is && context.fillRect(x - 1, canvas.height - 3, 2, 3));
}

/** The scale with its lines, the marks and the cursor. The cursor moves by mouse or by arrow keys. */
export function Scale({ timeline, revision, view, track, width, cursor, setCursor, onSelect }) {
  const start = timeline.startedAt || view.all.start;
  const lines = ticks(view, start, width);
  const marks = useMemo(() => binMarks(timeline.marks, view, width), [timeline, revision, view.start, view.end, width]);
  const span = view.end - view.start;
  const at = cursor === null ? null : Math.min(view.end, Math.max(view.start, cursor));
  const text = at === null ? '' : `${offsetLabel(at - start, span / width)} · ${absolute(at, true)}`;
  const key = (event) => keyOfScale(event, view, at, setCursor);
  return html`
    <div class="timeline-scale">
      <div class="timeline-side"><span class="timeline-cursor-text" aria-hidden="true">${text || 'time since start'}</span></div>
      <div class="timeline-track" ref=${track} role="slider" tabindex="0" aria-label="Cursor of the timeline: arrows move it, plus and minus zoom"
        aria-valuemin="0" aria-valuemax="100" aria-valuenow=${at === null ? 0 : Math.round(position(at, view) * 100)}
        aria-valuetext=${text || 'no cursor'} onKeyDown=${key}>
        ${lines.map((line) => html`<span class="timeline-tick" style=${{ left: `${line.left}%` }}>${line.label}</span>`)}
        <span class="timeline-lane">${marks.map((bin) => html`<${Mark} bin=${bin} onSelect=${onSelect} />`)}</span>
        ${at === null ? null : html`<span class="timeline-cursor" style=${{ left: `${position(at, view) * 100}%` }}></span>`}
      </div>
    </div>`;
}

function Mark({ bin, onSelect }) {
  const { kind, text, eventId } = bin.first;
  const title = bin.marks === 1
    ? `${kind}${text ? ' ' + text : ''}, event ${eventId}`
    : `${bin.marks} marks, events ${eventId} to ${bin.last.eventId}`;
  return html`<span class=${`timeline-mark mark-${bin.kind.replaceAll(' ', '-')}`} style=${{ left: `${bin.left}%` }} title=${title}
    onClick=${() => onSelect(eventId, '')}></span>`;
}

function keyOfScale(event, view, cursor, setCursor) {
  const span = view.end - view.start;
  const from = cursor === null ? view.start : cursor;
  const step = { ArrowLeft: -0.01, ArrowRight: 0.01, PageUp: -0.1, PageDown: 0.1 }[event.key];
  if (step !== undefined) {
    setCursor(Math.min(view.all.end, Math.max(view.all.start, from + step * span)));
    if (from + step * span < view.start || from + step * span > view.end) {
      view.pan(step);
    }
  } else if (event.key === '+' || event.key === '=') {
    view.zoom(0.5, from);
  } else if (event.key === '-') {
    view.zoom(2, from);
  } else if (event.key === '0') {
    view.reset();
  } else if (event.key === 'Home' || event.key === 'End') {
    setCursor(event.key === 'Home' ? view.start : view.end);
  } else {
    return;
  }
  event.preventDefault();
}
