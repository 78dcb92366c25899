// The strip of the cluster's nodes.
//
// Exports:
//   NodeStrip({nodes})     one panel per node: whether it answers, what it leads, lag, disk, overload

import { html } from './lib/htm-preact.js';
import { Badge, Empty, Meter } from './basics.js';
import { behindOf, diskOf, leads, livenessOf, overloadOf } from './nodestate.js';

export function NodeStrip({ nodes }) {
  if (nodes.length === 0) return html`<${Empty} title="No node has reported yet.">The reports come within a few seconds.<//>`;
  return html`<ul class="nodes">${nodes.map((node) => html`<${NodeLine} key=${node.id} node=${node} />`)}</ul>`;
}

function NodeLine({ node }) {
  const live = livenessOf(node);
  const led = leads(node);
  const disk = diskOf(node);
  const behind = behindOf(node);
  const load = overloadOf(node);
  return html`<li class="panel node-line">
    <div class="row"><strong>${node.id}</strong><${Badge} tone=${live.tone}>${live.text}<//>
      ${led.length > 0 && html`<span class="quiet">leads ${led.length === 1 ? 'partition' : 'partitions'} ${led.join(', ')}</span>`}</div>
    ${live.tone !== 'bad' && html`<dl class="node-facts">
      <div><dt>Behind</dt><dd class=${behind.tone}>${behind.text}</dd></div>
      ${disk && html`<div><dt>Disk writes</dt><dd class=${disk.tone}>${disk.text}</dd></div>`}
      ${load && html`<div><dt>Load</dt><dd><${Meter} value=${load.share} label=${`Load: ${load.text}`} tone=${load.tone} /> ${load.text}</dd></div>`}
    </dl>`}
  </li>`;
}
