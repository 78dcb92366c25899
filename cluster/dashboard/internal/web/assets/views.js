// Saved views of the list of instances. A view is a filter; its URL can be shared. Views that the user
// saves have names, which this browser keeps.
//
// Exports:
//   Views({filter, onSelect})

import { html, useState } from './lib/htm-preact.js';
import { pageURL } from './api.js';
import { ask, Copy, notify } from './components.js';
import { store, stored } from './prefs.js';

const builtIn = [
  ['All', 'order=-updated'],
  ['Running', 'state=running order=-updated'],
  ['Stuck', 'state=stalled,hung,waiting-for-code order=-updated'],
  ['Failing', 'failing>=3 order=-updated'],
  ['Failed today', 'state=failed ended<1d order=-ended'],
  ['Due next', 'waiting=timer order=timer'],
];

export function Views({ filter, onSelect }) {
  const [own, setOwn] = useState(() => stored('views', []));
  const keep = (views) => {
    setOwn(views);
    store('views', views);
  };
  const save = () => ask({
    title: 'Save this view',
    text: html`<p>The name is kept in this browser. To share the view, copy its link.</p><p><code>${filter || 'all instances'}</code></p>`,
    fields: [{ name: 'name', label: 'Name', required: true }],
    confirm: 'Save',
    run: ({ name }) => keep([...own.filter(([each]) => each !== name), [name, filter]]),
  });
  const remove = (name) => {
    keep(own.filter(([each]) => each !== name));
    notify(`The view ${name} is removed.`);
  };
  const isOwn = own.find(([, text]) => text === filter);
  const known = isOwn || builtIn.some(([, text]) => text === filter);
  return html`<nav class="views" aria-label="Views">
    ${[...builtIn, ...own].map(([name, text]) => html`<a key=${name} class="view" href=${pageURL(['instances'], { filter: text })}
      aria-current=${text === filter ? 'true' : undefined}
      onClick=${(event) => { if (!event.ctrlKey && !event.metaKey && !event.shiftKey) { event.preventDefault(); onSelect(text); } }}>${name}</a>`)}
    ${!known && html`<button type="button" class="small" data-action="save-view" onClick=${save}>Save view…</button>`}
    ${isOwn && html`<button type="button" class="small" data-action="remove-view" onClick=${() => remove(isOwn[0])}>Remove view</button>`}
    <${Copy} text=${pageURL(['instances'], { filter })} label="Copy link" />
  </nav>`;
}
