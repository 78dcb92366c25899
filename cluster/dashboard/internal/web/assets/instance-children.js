// The children of an instance as a tree that expands in place.
//
// Exports:
//   Children({id})

import { html, useState } from './lib/htm-preact.js';
import { get, pageURL } from './api.js';
import { Empty, StateBadge } from './basics.js';
import { Time } from './format.js';
import { More, usePages } from './table.js';

export function Children({ id }) {
  return html`<div class="children"><${Level} id=${id} label=${`Children of ${id}`} root /></div>`;
}

function Level({ id, label, root }) {
  const pages = usePages(id, async ({ after, signal }) => {
    const answer = await get(['instances', id, 'children'], { after }, signal);
    return { items: answer.children || answer.instances || [], next: answer.next || '' };
  });
  if (pages.done && pages.rows.length === 0) {
    return root
      ? html`<${Empty} title="This instance has started no children.">Children appear here as soon as the code starts one.<//>`
      : html`<p class="quiet children-none">no children</p>`;
  }
  return html`
    <ul aria-label=${label}>${pages.rows.map((child) => html`<${Child} key=${child.id} child=${child} />`)}</ul>
    ${pages.done && !pages.error ? null : html`<${More} pages=${pages} what="children" />`}`;
}

function Child({ child }) {
  const [open, setOpen] = useState(false);
  return html`
    <li>
      <div class="children-row">
        <button type="button" class="timeline-expand" aria-expanded=${open ? 'true' : 'false'} aria-label=${`Children of ${child.id}`}
          onClick=${() => setOpen(!open)}><span aria-hidden="true">${open ? '▾' : '▸'}</span></button>
        <a href=${pageURL(['instances', child.id])}>${child.id}</a>
        <${StateBadge} state=${child.state} />
        <span class="quiet">${child.name}${child.version ? ` ${child.version}` : ''}</span>
        ${child.summary ? html`<span>${child.summary}</span>` : null}
        <span class="quiet"><${Time} value=${child.created_at} /></span>
      </div>
      ${open ? html`<${Level} id=${child.id} label=${`Children of ${child.id}`} />` : null}
    </li>`;
}
