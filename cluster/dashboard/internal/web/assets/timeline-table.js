// The timeline as a table: the same rows as the chart, and the marks, for screen readers and for reading.
//
// Exports:
//   TimelineTable({timeline, rows, expanded, toggle, now, onSelect})

import { html, useMemo } from './lib/htm-preact.js';
import { duration } from './format.js';
import { useWindow } from './instance-scroll.js';
import { attemptsText, kinds } from './timeline-model.js';
import { offsetLabel } from './timeline-layout.js';
import { titleOf } from './timeline-rows.js';

const rowHeight = 28; // pixels, as --timeline-table-row in instance.css

/** All rows of the chart and the marks between them, in the order of their events. */
export function TimelineTable({ timeline, rows, expanded, toggle, now, onSelect }) {
  const all = useMemo(() => merge(rows, timeline.marks), [rows, timeline.marks.length]);
  const list = useWindow(all.length, rowHeight);
  const start = timeline.startedAt;
  return html`
    <div class="timeline-table" ref=${list.ref} onScroll=${list.onScroll} tabindex="0" role="region" aria-label="Timeline as a table">
      <table aria-rowcount=${all.length + 1}>
        <thead><tr aria-rowindex="1"><th scope="col">Event</th><th scope="col">Kind</th><th scope="col">Name</th><th scope="col">Begins</th>
          <th scope="col">Takes</th><th scope="col">Outcome</th><th scope="col">Attempts</th></tr></thead>
        <tbody>
          <tr class="spacer" aria-hidden="true" style=${{ height: `${list.first * rowHeight}px` }}></tr>
          ${all.slice(list.first, list.last).map((item, i) => html`<${Line} key=${item.key} item=${item} index=${list.first + i + 2} start=${start}
            now=${now} expanded=${expanded} toggle=${toggle} onSelect=${onSelect} />`)}
          <tr class="spacer" aria-hidden="true" style=${{ height: `${(all.length - list.last) * rowHeight}px` }}></tr>
        </tbody>
      </table>
    </div>`;
}

// merge puts the marks between the rows of the instance itself.
function merge(rows, marks) {
  const all = [];
  let next = 0;
  for (const item of rows) {
    while (item.depth === 0 && item.row && next < marks.length && marks[next].eventId < item.row.eventId) {
      all.push({ mark: marks[next], key: `m${marks[next].eventId}` });
      next++;
    }
    all.push(item);
  }
  return all.concat(marks.slice(next).map((mark) => ({ mark, key: `m${mark.eventId}` })));
}

function Line({ item, index, start, now, expanded, toggle, onSelect }) {
  const link = (id, instance) => html`<button type="button" class="link" onClick=${() => onSelect(id, instance)}>${id}</button>`;
  if (item.note) {
    return html`<tr aria-rowindex=${index}><td colspan="7">${item.note}</td></tr>`;
  }
  if (item.mark) {
    const { eventId, kind, text, time } = item.mark;
    return html`<tr aria-rowindex=${index}><td>${link(eventId, '')}</td><td>${kind}</td><td>${text}</td><td>${offset(time, start)}</td>
      <td></td><td></td><td></td></tr>`;
  }
  const { row } = item;
  const took = duration(Math.max(0, (row.to ?? item.end ?? now) - row.from) / 1000);
  const failed = row.attempts.filter((a) => a.error).map((a) => `${a.number}: ${a.error}`).join('; ') || row.lastError;
  return html`
    <tr aria-rowindex=${index}>
      <td>${'· '.repeat(item.depth)}${link(row.eventId, item.instanceId)}</td>
      <td>${kinds[row.kind] || row.kind}</td>
      <td>${titleOf(row)}${row.childId ? html` <button type="button" class="link" aria-expanded=${expanded.has(item.key) ? 'true' : 'false'}
        onClick=${() => toggle(item.key, row)}>${row.childId}</button>` : null}</td>
      <td>${offset(row.from, start)}</td><td>${took}</td><td>${row.outcome === 'open' && row.state ? row.state : row.outcome}</td>
      <td title=${failed}>${[attemptsText(row), failed].filter(Boolean).join(': ')}</td>
    </tr>`;
}

function offset(time, start) {
  const ms = Math.max(0, time - start);
  return offsetLabel(ms, ms < 1000 ? 0.01 : 1);
}
