// The timeline of one instance: bars of operations over time, with zoom and a cursor, or as a table.
//
// Exports:
//   Timeline({timeline, revision, now, onSelect, selected})

import { html, useEffect, useMemo, useRef, useState } from './lib/htm-preact.js';
import { useNarrow, useWidth } from './instance-scroll.js';
import { bounds, flatten, kinds } from './timeline-model.js';
import { useChildren } from './timeline-load.js';
import { fit, pan, showsAll, timeAt, zoom } from './timeline-layout.js';
import { Overview, Scale } from './timeline-scale.js';
import { TimelineRows } from './timeline-rows.js';
import { TimelineTable } from './timeline-table.js';

const filters = [
  ['all', 'All operations'],
  ['open', 'Open'],
  ['failed', 'Failed'],
  ...Object.entries(kinds).map(([kind, name]) => [kind, `Only: ${name}`]),
];

const many = 100; // operations from which on a narrower view shows only the rows in it

// keeps returns which rows to show. view is null if those outside of what is visible are kept too.
function keeps(filter, words, view, now) {
  const chosen = chosenBy(filter, words);
  return view ? (row) => row.from <= view.end && (row.to ?? now) >= view.start && chosen(row) : chosen;
}

function chosenBy(filter, words) {
  const word = words.trim().toLowerCase();
  const named = (row) => !word || row.name.toLowerCase().includes(word) || row.childId.toLowerCase().includes(word);
  if (filter === 'all') {
    return named;
  }
  if (filter === 'open') {
    return (row) => row.outcome === 'open' && named(row);
  }
  if (filter === 'failed') {
    return (row) => (['failed', 'rejected'].includes(row.outcome) || row.attempts.some((a) => a.error)) && named(row);
  }
  return (row) => row.kind === filter && named(row);
}

/**
 * The timeline of an execution. revision changes whenever the timeline does.
 * onSelect(eventId, instanceId) shows an event of the history; the instance ID is "" but for children.
 */
export function Timeline({ timeline, revision, now, onSelect, selected }) {
  const [asTable, setAsTable] = useState(false);
  const [filter, setFilter] = useState('all');
  const [words, setWords] = useState('');
  const [expanded, toggle] = useChildren();
  const view = useView(timeline, now);
  const [narrowed, setNarrowed] = useState(null); // null: as there are few or many operations
  const inView = (narrowed ?? timeline.rows.length > many) && !view.isWhole && !asTable;
  const rows = useMemo(() => flatten(timeline, expanded, keeps(filter, words, inView ? view : null, now)),
    [timeline, revision, expanded, filter, words, inView && view.start, inView && view.end]);
  const shared = { timeline, rows, expanded, toggle, now, onSelect, selected, view };
  return html`
    <div class="timeline">
      <div class="timeline-tools">
        <${ZoomButtons} view=${view} hidden=${asTable} />
        <label class="timeline-filter"><span class="visually-hidden">Operations to show</span>
          <select value=${filter} onChange=${(e) => setFilter(e.currentTarget.value)}>
            ${filters.map(([value, name]) => html`<option value=${value} selected=${value === filter}>${name}</option>`)}
          </select></label>
        <label class="timeline-filter"><span class="visually-hidden">Find operations by name</span>
          <input type="search" placeholder="Name" value=${words} onInput=${(e) => setWords(e.currentTarget.value)} /></label>
        <button type="button" aria-pressed=${asTable ? 'true' : 'false'} onClick=${() => setAsTable(!asTable)}>As table</button>
        ${view.isWhole || asTable ? null : html`<button type="button" aria-pressed=${inView ? 'true' : 'false'}
          onClick=${() => setNarrowed(!inView)}>Only in view</button>`}
        <span class="timeline-count">${countText(rows, timeline)}</span>
      </div>
      ${asTable ? html`<${TimelineTable} ...${shared} />` : html`<${Chart} ...${shared} revision=${revision} />`}
    </div>`;
}

function countText(rows, timeline) {
  const shown = rows.filter((r) => r.row && r.depth === 0).length;
  const all = timeline.rows.length;
  return shown === all ? `${all.toLocaleString('en')} ${all === 1 ? 'operation' : 'operations'}` : `${shown.toLocaleString('en')} of ${all.toLocaleString('en')}`;
}

/** Keeps what is zoomed to. A view of all follows the end of a running execution. */
function useView(timeline, now) {
  const [chosen, setChosen] = useState(null);
  const all = bounds(timeline, now);
  const view = chosen || fit(all);
  const change = (next) => setChosen(showsAll(next, all) ? null : next);
  return {
    ...view, all, isWhole: !chosen,
    zoom: (factor, at) => change(zoom(view, all, factor, at)),
    pan: (fraction) => change(pan(view, all, fraction)),
    set: (start, end) => change(zoom({ start, end }, all, 1)),
    reset: () => setChosen(null),
  };
}

function ZoomButtons({ view, hidden }) {
  if (hidden) {
    return null;
  }
  const button = (label, text, act, disabled) => html`
    <button type="button" class="timeline-button" aria-label=${label} title=${label} disabled=${disabled} onClick=${act}>${text}</button>`;
  return html`
    <div class="timeline-buttons" role="group" aria-label="Zoom">
      ${button('Zoom in', '+', () => view.zoom(0.5))}
      ${button('Zoom out', '−', () => view.zoom(2), view.isWhole)}
      ${button('Earlier', '←', () => view.pan(-0.3), view.isWhole)}
      ${button('Later', '→', () => view.pan(0.3), view.isWhole)}
      ${button('Show all', 'All', view.reset, view.isWhole)}
    </div>`;
}

function Chart({ timeline, revision, rows, expanded, toggle, now, onSelect, selected, view }) {
  const narrow = useNarrow();
  const [track, width] = useWidth();
  const [cursor, setCursor] = useState(null);
  const chart = useRef(null);
  const onWheel = (event) => wheel(event, view, track.current);
  useEffect(() => {
    const element = chart.current;
    element.addEventListener('wheel', onWheel, { passive: false });
    return () => element.removeEventListener('wheel', onWheel);
  });
  const point = (event) => {
    const fraction = fractionAt(event, track.current);
    setCursor(fraction < 0 || fraction > 1 ? null : timeAt(fraction, view));
  };
  const list = useMemo(() => html`
    <${TimelineRows} rows=${rows} toggle=${toggle} now=${now} view=${view} narrow=${narrow}
      onSelect=${onSelect} selected=${selected} />`, [rows, now, view.start, view.end, narrow, selected, expanded]);
  return html`
    <div class=${'timeline-chart' + (narrow ? ' narrow' : '')} ref=${chart} onPointerMove=${point} onPointerLeave=${() => setCursor(null)}>
      <${Overview} timeline=${timeline} revision=${revision} now=${now} view=${view} />
      <${Scale} timeline=${timeline} revision=${revision} view=${view} track=${track} width=${width} cursor=${cursor}
        setCursor=${setCursor} onSelect=${onSelect} />
      ${list}
    </div>
    <${Legend} />`;
}

const legend = [
  ['queued', 'queued'], ['running', 'running'], ['completed', 'completed'], ['failed', 'failed'], ['backoff', 'backoff'],
  ['timer', 'timer'], ['wait', 'waits for an event'], ['child', 'child'], ['message', 'message'],
];

function Legend() {
  return html`<p class="timeline-legend">${legend.map(([tone, name]) => html`<span key=${tone}><i class=${`timeline-bar tone-${tone}`}></i>${name}</span>`)}
    <span class="timeline-hint">Ctrl and the wheel zoom, Shift and the wheel move</span></p>`;
}

function fractionAt(event, element) {
  const box = element.getBoundingClientRect();
  return (event.clientX - box.left) / box.width;
}

// wheel zooms with Ctrl, Cmd or a pinch, and over the scale; it moves with Shift or sideways.
function wheel(event, view, element) {
  const overScale = event.target instanceof Element && event.target.closest('.timeline-scale, .timeline-overview');
  if (event.ctrlKey || event.metaKey || overScale && !event.shiftKey && Math.abs(event.deltaY) > Math.abs(event.deltaX)) {
    event.preventDefault();
    const fraction = Math.min(1, Math.max(0, fractionAt(event, element)));
    view.zoom(Math.exp(event.deltaY * (event.deltaMode ? 0.05 : 0.002)), timeAt(fraction, view));
  } else if ((event.shiftKey && event.deltaY || Math.abs(event.deltaX) > Math.abs(event.deltaY)) && !view.isWhole) {
    event.preventDefault();
    view.pan((event.deltaX || event.deltaY) / 1000);
  }
}
