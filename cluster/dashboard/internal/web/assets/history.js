// The history of one execution as a table, of which only the visible rows exist.
//
// Exports:
//   History({id, source, selected, onSelect, actions})   source is the answer of useHistory

import { html, useEffect, useMemo, useRef, useState } from './lib/htm-preact.js';
import { ErrorNotice } from './basics.js';
import { absolute, count, duration } from './format.js';
import { EventDetail } from './history-event.js';
import { matches, related, summarize, toneOf } from './history-model.js';
import { moveBy, useNarrow, useWindow } from './instance-scroll.js';
import { milliseconds } from './timeline-model.js';

const rowHeight = 28; // pixels, as --history-row in instance.css
const narrowRowHeight = 48;

/** selected is an event ID or 0. onSelect(eventId) selects another one; 0 closes the detail. */
export function History({ id, source, selected, onSelect, actions }) {
  const { history, revision } = source;
  const [words, setWords] = useState('');
  const found = useSearch(source, words);
  const [hovered, setHovered] = useState(0);
  const operation = useMemo(() => (hovered || selected ? related(history, hovered || selected) : new Set()), [hovered, selected, revision]);
  const total = found.ids ? found.ids.length : history.last;
  const idAt = (index) => (found.ids ? found.ids[index] : index + 1);
  const indexOf = (event) => (found.ids ? found.ids.indexOf(event) : event - 1);
  const event = selected ? history.events.get(selected) : null;
  return html`
    <div class="history">
      <div class="history-tools">
        <label><span class="visually-hidden">Search events and payloads</span>
          <input type="search" data-search placeholder="Search events and payloads" value=${words} onInput=${(e) => setWords(e.currentTarget.value)} /></label>
        <span class="quiet" role="status">${found.text || `${count(history.last)} events`}</span>
      </div>
      ${source.error ? html`<${ErrorNotice} error=${source.error} retry=${source.retry} />` : null}
      <div class=${'history-parts' + (selected ? ' with-detail' : '')}>
        <${Rows} source=${source} total=${total} idAt=${idAt} indexOf=${indexOf} selected=${selected} onSelect=${onSelect} operation=${operation} onHover=${setHovered} />
        ${selected ? html`<${EventDetail} id=${id} history=${history} eventId=${selected} event=${event} onSelect=${onSelect} actions=${actions} />` : null}
      </div>
    </div>`;
}

/** Reads the whole history to search it. ids is null while nothing is searched for. */
function useSearch(source, words) {
  const [progress, setProgress] = useState(null);
  const [error, setError] = useState(null);
  const wanted = words.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const searching = wanted.length > 0;
  useEffect(() => {
    if (!searching) {
      return undefined;
    }
    const abort = new AbortController();
    setProgress(0);
    setError(null);
    source.all(abort.signal, setProgress).then(() => setProgress(null), (problem) => abort.signal.aborted || setError(problem));
    return () => abort.abort();
  }, [searching, source.history]);
  const ids = useMemo(() => searching
    ? [...source.history.events.values()].filter((e) => matches(e, wanted)).map((e) => e.event_id).sort((a, b) => a - b)
    : null, [words, source.revision, source.history, progress]);
  if (!searching) {
    return { ids: null, text: '' };
  }
  const soFar = error ? `the search stopped: ${error.message}` : progress === null ? '' : `searched ${count(progress)} of ${count(source.history.last)}`;
  return { ids, text: `${count(ids.length)} events match${soFar ? `, ${soFar}` : ''}` };
}

function Rows({ source, total, idAt, indexOf, selected, onSelect, operation, onHover }) {
  const { history } = source;
  const height = useNarrow() ? narrowRowHeight : rowHeight;
  const list = useWindow(total, height);
  const [active, setActive] = useState(selected ? Math.max(0, indexOf(selected)) : 0);
  const focusing = useRef(false);
  useEffect(() => {
    if (total > 0) {
      source.need(idAt(list.first) - 1, idAt(Math.max(list.first, list.last - 1)));
    }
  }, [list.first, list.last, total, history]);
  useEffect(() => {
    if (selected && indexOf(selected) >= 0) {
      setActive(indexOf(selected));
      list.show(indexOf(selected));
      source.need(selected - 1, selected);
    }
  }, [selected, history]);
  useEffect(() => {
    const button = focusing.current && list.ref.current.querySelector('.history-id[tabindex="0"]');
    if (button) {
      focusing.current = false;
      button.focus({ preventScroll: true });
    }
  }, [active, list.first, list.last]);
  const key = (event) => {
    const next = moveBy(event, active, total);
    if (next < 0) {
      return;
    }
    focusing.current = true;
    setActive(next);
    list.show(next);
    onHover(idAt(next));
    event.preventDefault();
    event.stopPropagation();
  };
  if (total === 0) {
    return html`<p class="empty">No event matches. Search for fewer words: all of them must be in the event.</p>`;
  }
  const rows = [];
  for (let index = list.first; index < list.last; index++) {
    rows.push(html`<${Row} key=${idAt(index)} id=${idAt(index)} index=${index} event=${history.events.get(idAt(index))}
      before=${history.events.get(idAt(index) - 1)} active=${index === active} selected=${idAt(index) === selected}
      isRelated=${operation.has(idAt(index)) && operation.size > 1} onSelect=${onSelect} onHover=${onHover} setActive=${setActive} />`);
  }
  return html`
    <div class="history-rows" data-list ref=${list.ref} onScroll=${list.onScroll} onKeyDown=${key} onPointerLeave=${() => onHover(0)} tabindex="-1">
      <table role="table" aria-label="Events: j and k move, Enter shows an event" aria-rowcount=${total + 1}>
        <thead role="rowgroup"><tr role="row" aria-rowindex="1"><th role="columnheader" scope="col">Event</th><th role="columnheader" scope="col">Type</th>
          <th role="columnheader" scope="col">Time</th><th role="columnheader" scope="col">What</th></tr></thead>
        <tbody role="rowgroup" style=${{ height: `${total * height}px` }}>
          <tr class="spacer" aria-hidden="true" style=${{ height: `${list.first * height}px` }}></tr>
          ${rows}
          <tr class="spacer" aria-hidden="true" style=${{ height: `${(total - list.last) * height}px` }}></tr>
        </tbody>
      </table>
    </div>`;
}

function Row({ id, index, event, before, active, selected, isRelated, onSelect, onHover, setActive }) {
  const classes = ['history-row', selected && 'selected', isRelated && 'related'].filter(Boolean).join(' ');
  const focus = () => {
    setActive(index);
    onHover(id);
  };
  return html`
    <tr role="row" aria-rowindex=${index + 2} class=${classes} onPointerEnter=${() => onHover(id)} onClick=${() => onSelect(id)}>
      <td role="cell" class="numeric"><button type="button" class="history-id" tabindex=${active ? 0 : -1} aria-pressed=${selected ? 'true' : 'false'}
        aria-label=${`Event ${id}`} onFocus=${focus} onClick=${(e) => { e.stopPropagation(); onSelect(selected ? 0 : id); }}>${id}</button></td>
      ${event ? html`
        <td role="cell"><span class=${`history-type event-${toneOf(event.type)}`}>${event.type}</span></td>
        <td role="cell" class="history-time"><time datetime=${event.time} title=${absolute(event.time, true)}>${sinceText(event, before)}</time></td>
        <td role="cell" class="history-what"><${Pair} event=${event} />
          ${event.name ? html`<strong>${event.name}</strong> ` : null}<span class="quiet">${summarize(event, absolute)}</span></td>`
    : html`<td role="cell" class="quiet" colspan="3">Loading…</td>`}
    </tr>`;
}

function Pair({ event }) {
  const source = event.source_event_id;
  return source ? html`<span class="history-pair" title="Ends or cancels the operation of that event">←${source}</span> ` : null;
}

// sinceText is the clock time, and how long after the event before it.
function sinceText(event, before) {
  const clock = absolute(event.time, true).replace(' UTC', '');
  const since = before ? (milliseconds(event.time) - milliseconds(before.time)) / 1000 : 0;
  return since >= 0.001 ? html`${clock.slice(11)} <span class="quiet">+${duration(since)}</span>` : clock.slice(11);
}
