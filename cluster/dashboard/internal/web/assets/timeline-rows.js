// The rows of the timeline: one bar per operation. Only the visible rows exist.
//
// Exports:
//   TimelineRows({rows, toggle, now, view, narrow, onSelect, selected})

import { html, useEffect, useRef, useState } from './lib/htm-preact.js';
import { duration } from './format.js';
import { moveBy, useWindow } from './instance-scroll.js';
import { attemptsText, describeRow, segmentsOf } from './timeline-model.js';
import { firstVisible, place } from './timeline-layout.js';

const rowHeight = 26; // pixels, as --timeline-row in instance.css
const narrowRowHeight = 44;

/** The rows, with j and k or the arrows to move, Enter to show the event, and right and left for children. */
export function TimelineRows({ rows, toggle, now, view, narrow, onSelect, selected }) {
  const height = narrow ? narrowRowHeight : rowHeight;
  const list = useWindow(rows.length, height);
  const [active, setActive] = useState(0);
  const focusing = useRef(false);
  useEffect(() => {
    const element = focusing.current && list.ref.current.querySelector('[tabindex="0"].timeline-name');
    focusing.current = false;
    if (element) {
      element.focus({ preventScroll: true });
    }
  }, [active, list.first, list.last]);
  const key = (event) => {
    const next = moveBy(event, active, rows.length);
    if (next >= 0) {
      focusing.current = true;
      setActive(next);
      list.show(next);
    } else if (!keyOfRow(event, rows[active], toggle, view)) {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  };
  if (rows.length === 0) {
    return html`<p class="timeline-empty">No operation matches. Choose “All operations” and clear the name.</p>`;
  }
  const current = Math.min(active, rows.length - 1);
  const drawn = rows.slice(list.first, list.last);
  if (current < list.first || current >= list.last) {
    drawn.push(rows[current]); // keeps the focus while the list scrolls
  }
  const outside = firstVisible(rows, view, now);
  return html`
    <div class="timeline-rows" ref=${list.ref} onScroll=${list.onScroll} onKeyDown=${key} role="group"
      aria-label="Operations: j and k move, Enter shows the event" tabindex="-1">
      <ul style=${{ height: `${rows.length * height}px` }}>
        ${drawn.map((item, i) => {
          const index = list.first + i < list.last ? list.first + i : current;
          return html`<${Row} key=${item.key} item=${item} index=${index} count=${rows.length} top=${index * height} active=${index === current}
            now=${now} view=${view} toggle=${toggle} selected=${selected} onSelect=${onSelect} onFocus=${() => setActive(index)} />`;
        })}
      </ul>
      ${outside > list.last ? html`<button type="button" class="timeline-jump" onClick=${() => list.show(outside)}>Show the rows of this time</button>` : null}
    </div>`;
}

// keyOfRow acts on a key in a row, and returns whether the key means something.
function keyOfRow(event, item, toggle, view) {
  if (event.ctrlKey || event.metaKey || event.altKey || !item || !item.row) {
    return false;
  }
  const isChild = item.row.childId;
  if (isChild && (event.key === 'ArrowRight' && !item.open || event.key === 'ArrowLeft' && item.open)) {
    toggle(item.key, item.row);
    return true;
  }
  const zooms = { '+': 0.5, '=': 0.5, '-': 2 };
  if (zooms[event.key]) {
    view.zoom(zooms[event.key], item.row.from);
    return true;
  }
  if (event.key === '0') {
    view.reset();
    return true;
  }
  return false;
}

function Row({ item, index, count, top, active, now, view, toggle, selected, onSelect, onFocus }) {
  const position = { transform: `translateY(${top}px)` };
  const indent = { '--timeline-depth': item.depth };
  if (item.note) {
    return html`<li style=${position} aria-posinset=${index + 1} aria-setsize=${count} class="timeline-note">
      <span class="timeline-side" style=${indent}>${item.note}</span></li>`;
  }
  const { row } = item;
  const end = item.end ?? now;
  const text = describeRow(row, end, duration);
  const isSelected = item.depth === 0 && selected.has(row.eventId);
  return html`
    <li style=${position} aria-posinset=${index + 1} aria-setsize=${count} class=${`timeline-row${isSelected ? ' selected' : ''}${active ? ' active' : ''}`}>
      <div class="timeline-side" style=${indent}>
        ${row.childId ? html`<button type="button" class="timeline-expand" aria-expanded=${item.open ? 'true' : 'false'} tabindex=${active ? 0 : -1}
          aria-label=${`Operations of ${row.childId}`} onClick=${() => toggle(item.key, row)}><span aria-hidden="true">${item.open ? '▾' : '▸'}</span></button>`
          : html`<span class=${`timeline-kind kind-${row.kind}`} aria-hidden="true"></span>`}
        <button type="button" class="timeline-name" tabindex=${active ? 0 : -1} title=${`${titleOf(row)}: ${text}`} onFocus=${onFocus}
          onClick=${() => onSelect(row.eventId, item.instanceId)}>
          <span class="timeline-id">${row.eventId}</span>
          <span class="timeline-label">${titleOf(row)}</span>
          <span class="visually-hidden">, ${text}</span></button>
      </div>
      <div class="timeline-track" aria-hidden="true" onClick=${() => onSelect(row.eventId, item.instanceId)}>
        <${Bar} row=${row} now=${end} view=${view} />
      </div>
    </li>`;
}

/** The name of a row for people. */
export function titleOf(row) {
  if (row.name) {
    return row.name;
  }
  return row.kind === 'message' ? `cancel ${row.receiver}` : row.kind;
}

function Bar({ row, now, view }) {
  const placed = place(segmentsOf(row, now), view);
  if (placed.length === 0) {
    const before = row.from > view.end;
    return html`<span class=${`timeline-outside ${before ? 'after' : 'before'}`}>${before ? '→' : '←'}</span>`;
  }
  const end = placed[placed.length - 1];
  const right = end.left + end.width;
  const took = duration(Math.max(0, (row.to === null ? now : row.to) - row.from) / 1000);
  return html`
    ${placed.map((s) => html`<span class=${`timeline-bar tone-${s.tone}${row.to === null && s === end ? ' open' : ''}${s.several ? ' several' : ''}`}
      title=${segmentTitle(s, row)} style=${{ left: `${s.left}%`, width: `${s.width}%` }}></span>`)}
    <${Took} text=${[took, attemptsText(row)].filter(Boolean).join(' · ')} left=${placed[0].left} right=${right} />`;
}

// Took is the duration after the bar, or before it or on it where there is more space.
function Took({ text, left, right }) {
  if (right < 86) {
    return html`<span class="timeline-took" style=${{ left: `${right}%` }}>${text}</span>`;
  }
  if (left > 14) {
    return html`<span class="timeline-took" style=${{ right: `${100 - left}%` }}>${text}</span>`;
  }
  return html`<span class="timeline-took on-bar" style=${{ right: `${100 - right}%` }}>${text}</span>`;
}

function segmentTitle(segment, row) {
  const took = duration(Math.max(0, segment.to - segment.from) / 1000);
  if (segment.number) {
    return `attempt ${segment.number}, ${segment.error ? `failed after ${took}: ${segment.error}` : took}`;
  }
  if (segment.several) {
    return `${attemptsText(row)} in ${took}${row.lastError ? `, last error ${row.lastError}` : ''}`;
  }
  return `${segment.tone === 'queued' ? 'no attempt has begun' : segment.tone}, ${took}`;
}
