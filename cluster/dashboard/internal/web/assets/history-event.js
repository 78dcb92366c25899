// One event of a history with all that it says.
//
// Exports:
//   EventDetail({id, history, eventId, event, onSelect, actions})

import { html, useEffect, useRef } from './lib/htm-preact.js';
import { apiURL, pageURL } from './api.js';
import { Copy, Facts, Loading } from './basics.js';
import { absolute, Payload, relative } from './format.js';
import { canCopyTo, fieldsOf, payloadsOf, related, toneOf } from './history-model.js';

/** event is undefined while it is read. actions has rewind(eventId) and fork(eventId), or null for what the user may not do. */
export function EventDetail({ id, history, eventId, event, onSelect, actions }) {
  const step = (by) => html`<button type="button" class="small" disabled=${eventId + by < 1 || eventId + by > history.last}
    aria-label=${by < 0 ? 'Previous event' : 'Next event'} onClick=${() => onSelect(eventId + by)}><span aria-hidden="true">${by < 0 ? '↑' : '↓'}</span></button>`;
  const section = useRef(null);
  useEffect(() => {
    if (document.activeElement === document.body) { // what had the focus has gone with its tab
      section.current.focus({ preventScroll: true });
    }
  }, []);
  return html`
    <section class="history-detail" ref=${section} tabindex="-1" aria-labelledby="event-title">
      <header><h2 id="event-title">Event ${eventId}${event ? html` <span class=${`history-type event-${toneOf(event.type)}`}>${event.type}</span>` : null}</h2>
        <span class="history-steps">${step(-1)}${step(1)}
          <button type="button" class="small" onClick=${() => onSelect(0)}>Close</button></span></header>
      ${event ? html`<${Body} id=${id} history=${history} event=${event} onSelect=${onSelect} actions=${actions} />` : html`<${Loading} what="Loading the event" />`}
    </section>`;
}

function Body({ id, history, event, onSelect, actions }) {
  const others = [...related(history, event.event_id)].filter((other) => other !== event.event_id).sort((a, b) => a - b);
  const facts = [
    ['Name', event.name],
    ['Time', `${absolute(event.time, true)}, ${relative(event.time)}`],
    ['Operation', others.length ? html`${others.map((other) => html`<${EventLink} history=${history} eventId=${other} onSelect=${onSelect} /> `)}` : null],
    ...fieldsOf(event, (time) => absolute(time, true)).map(([name, text]) => [name, linked(name, text)]),
  ];
  const copies = canCopyTo(event);
  return html`
    <${Facts} items=${facts} />
    ${payloadsOf(event).map(({ field, value }) => html`
      <div class="history-payload" key=${`${event.event_id} ${field}`}><h3>${field.replaceAll('_', ' ')}</h3>
        <${Payload} value=${value} name=${field} open href=${apiURL(['instances', id, 'payload'], { execution: history.execution, event: event.event_id })} /></div>`)}
    <div class="history-actions">
      ${copies && actions.rewind ? html`<button type="button" data-action="rewind-to-event" onClick=${() => actions.rewind(event.event_id)}>Rewind to here…</button>` : null}
      ${copies && actions.fork ? html`<button type="button" data-action="fork-at-event" onClick=${() => actions.fork(event.event_id)}>Fork here…</button>` : null}
      <${Copy} text=${JSON.stringify(event, null, 2)} label="Copy as JSON" />
    </div>`;
}

const linked = (name, text) => (name === 'child id' || name === 'receiver' ? html`<a href=${pageURL(['instances', text])}>${text}</a>` : text);

function EventLink({ history, eventId, onSelect }) {
  const event = history.events.get(eventId);
  return html`<button type="button" class="link" onClick=${() => onSelect(eventId)}>${eventId}${event ? ` ${event.type}` : ''}</button>`;
}
