// The head of the page of one instance: what it is, how it is, and what can be done with it.
//
// Exports:
//   Header({status, execution, onExecution, actions, onTab})
//   executionsOf(status)   the executions of the instance: [{number, events, state}]

import { html } from './lib/htm-preact.js';
import { pageURL } from './api.js';
import { Copy, Facts, Menu, StateBadge, Texts } from './basics.js';
import { count, duration, Payload, Time } from './format.js';
import { hasEnded } from './instance-actions.js';
import { milliseconds } from './timeline-model.js';

export function Header({ status, execution, onExecution, actions, onTab }) {
  return html`
    <header class="instance-head">
      <div class="instance-title">
        <h1>${status.id}</h1><${StateBadge} state=${status.state} />
        <span class="instance-name">${status.name}${status.version ? html` <span class="quiet">${status.version}</span>` : null}</span>
        <${Copy} text=${status.id} label="Copy ID" />
      </div>
      <div class="instance-actions">
        ${actions.buttons.map((item) => html`<button type="button" key=${item.label} data-action=${item.dataAction} onClick=${item.act}>${item.label}</button>`)}
        <${Menu} label="Actions" items=${actions.menu} />
      </div>
      ${status.summary ? html`<p class="instance-summary">${status.summary}</p>` : null}
      <${Facts} items=${factsOf(status, execution, onExecution)} />
      <${Advice} status=${status} onTab=${onTab} />
      ${status.error && status.state !== 'stalled' ? html`<${Failure} error=${status.error} state=${status.state} />` : null}
    </header>`;
}

function factsOf(status, execution, onExecution) {
  const ended = hasEnded(status.state);
  const took = (milliseconds(status.updated_at) - milliseconds(status.created_at)) / 1000;
  return [
    ['Created', html`<${Time} value=${status.created_at} />`],
    [ended ? 'Ended' : 'Updated', html`<${Time} value=${status.updated_at} />`],
    [`Cluster ${status.continued}`, status.continued ? html`<${Time} value=${status.continued_at} />` : null],
    ['Quarantined', status.quarantined?.length ? html`<span class="bad">the replica on ${status.quarantined.join(', ')} differs from the majority and is repaired</span>` : null],
    ['Took', ended ? duration(took) : null],
    ['Events', count(status.last_event_id)],
    ['Execution', html`<${Executions} status=${status} execution=${execution} onExecution=${onExecution} />`],
    ['Parent', status.parent_id ? html`<a href=${pageURL(['instances', status.parent_id])}>${status.parent_id}</a>` : null],
    ['Tags', size(status.tags) ? html`<${Texts} values=${status.tags} filter="tag" />` : null],
    ['Hidden attributes', status.attributes_redacted?.join(', ')],
    ['Attributes', size(status.attributes) ? html`<${Texts} values=${status.attributes} filter="attr" />` : null],
    ['Status', shown(status.custom_status) && status.custom_status.json !== null ? html`<${Payload} value=${status.custom_status} name="custom status" />` : null],
    ['Output', shown(status.output) ? html`<${Payload} value=${status.output} name="output" />` : null],
  ];
}

const size = (values) => Object.keys(values || {}).length;
const shown = (payload) => payload !== undefined && payload !== null && !(payload.base64 === '' || Object.keys(payload).length === 0);

// Executions shows which execution the page is about, and lets one choose another.
function Executions({ status, execution, onExecution }) {
  const all = executionsOf(status);
  if (all.length < 2) {
    return html`${execution}`;
  }
  return html`<label><span class="visually-hidden">Execution to show</span>
    <select value=${String(execution)} onChange=${(e) => onExecution(Number(e.currentTarget.value))}>
      ${all.map(({ number, state }) => html`<option key=${number} value=${String(number)} selected=${number === execution}>
        ${number}, ${number === status.execution ? 'the latest' : state}</option>`)}
    </select></label>`;
}

/** Returns the executions of an instance, the earliest first. */
export function executionsOf(status) {
  return (status.executions || []).map((e) => ({ number: e.execution ?? e.number, events: e.events ?? e.last_event_id ?? 0, state: e.state }));
}

// Advice says what to do about a state in which the instance does not continue by itself.
function Advice({ status, onTab }) {
  const link = (tab, text) => html`<button type="button" class="link" onClick=${() => onTab(tab)}>${text}</button>`;
  const code = `${status.name}${status.version ? ` ${status.version}` : ''}`;
  const texts = {
    hung: () => html`The code has been running without reaching a durable call. ${link('stack', 'The stack')} shows where it is. Correct the code
      and restart the node: the instance continues from its history.`,
    'waiting for code': () => html`No node has the code of ${code}. Start a node that has it, or look which node lacks it under
      ${' '}<a href=${pageURL(['code'])}>code</a>. The instance then continues by itself.`,
    suspended: () => html`The instance does not continue until it is resumed. Events that come meanwhile are kept.`,
  };
  const text = texts[status.state];
  return text ? html`<div class=${`notice ${status.state === 'suspended' ? 'tone-quiet' : 'tone-warn'}`}><p>${text()}</p></div>` : null;
}

function Failure({ error, state }) {
  return html`
    <div class="instance-error">
      <strong>${state === 'failed' ? 'The run failed' : `The run is ${state}`}${error.code ? html`: <code>${error.code}</code>` : ''}</strong>
      <p>${error.message}</p>
      ${error.stack ? html`<details><summary>Stack</summary><pre tabindex="0" aria-label="Stack of the error">${error.stack}</pre></details>` : null}
    </div>`;
}
