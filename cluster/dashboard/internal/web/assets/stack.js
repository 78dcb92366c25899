// Where the code of an instance waits, and for a stalled instance what differs from its history.
//
// Exports:
//   Stack({id, state, lastEventId, onSelect})   the coroutines, read again when it continues
//   Mismatch({mismatch, mayRewind, onRewind})   expected and found side by side, and what to do

import { html } from './lib/htm-preact.js';
import { get } from './api.js';
import { Time } from './format.js';
import { Empty, ErrorNotice, Loading } from './basics.js';
import { hasEnded } from './instance-actions.js';
import { useFetched } from './live.js';

const without = {
  stalled: 'A stalled instance has no coroutines: its code has been stopped at the call that differs, which is shown above.',
  'waiting for code': 'No node has the code of the instance, so no coroutine runs.',
};

export function Stack({ id, state, lastEventId, onSelect }) {
  if (without[state] || hasEnded(state)) {
    return html`<${Empty} title="There is no stack.">${without[state] || 'The run has ended: its code does not wait anywhere.'}<//>`;
  }
  return html`<${Coroutines} id=${id} version=${`${state} ${lastEventId}`} onSelect=${onSelect} />`;
}

function Coroutines({ id, version, onSelect }) {
  const { data, error, loading, reload } = useFetched(`${id} ${version}`, (signal) => get(['instances', id, 'stack'], {}, signal), null);
  if (error) {
    return html`<${ErrorNotice} error=${error} retry=${reload} />`;
  }
  if (loading && !data) {
    return html`<${Loading} what="Reading the stack from the leader" />`;
  }
  const coroutines = data.coroutines || [];
  return html`
    <div class="stack-view">
      <p class="stack-tools"><button type="button" onClick=${reload}>Read again</button>
        <span class="quiet">Read from the leader, ${coroutines.length === 1 ? '1 coroutine' : `${coroutines.length} coroutines`}.</span></p>
      ${coroutines.length === 0 ? html`<p class="empty">No coroutine waits: the instance has ended, or its code is not in memory yet. Read again.</p>` : null}
      <ol class="stack-list">${coroutines.map((c, i) => html`<${Coroutine} key=${i} coroutine=${c} onSelect=${onSelect} />`)}</ol>
    </div>`;
}

function Coroutine({ coroutine, onSelect }) {
  const waits = listOf(coroutine.waits_for || coroutine.waiting_for || (coroutine.event_id && { event_id: coroutine.event_id }));
  return html`
    <li class="stack-coroutine">
      <h2>${coroutine.name || coroutine.call || 'The code runs and does not reach a durable call'}</h2>
      <p>${coroutine.since ? html`since <${Time} value=${coroutine.since} precise />` : null}
        ${coroutine.source ? html` at <code>${coroutine.source}</code>` : null}</p>
      ${waits.length ? html`<p>waits for ${waits.map((w, i) => html`${i ? ', ' : ''}<${Awaited} what=${w} onSelect=${onSelect} />`)}</p>` : null}
      <${Frames} coroutine=${coroutine} />
    </li>`;
}

function listOf(value) {
  if (!value) {
    return [];
  }
  return (Array.isArray(value) ? value : [value]).map((w) => (typeof w === 'string' ? { name: w } : w));
}

function Awaited({ what, onSelect }) {
  const text = [what.type || what.event_type, what.name, what.instance || what.child_id].filter(Boolean).join(' ') || 'event';
  return what.event_id
    ? html`<button type="button" class="link" onClick=${() => onSelect(what.event_id, '')}>${text} ${what.event_id}</button>`
    : html`<span>${text}</span>`;
}

function Frames({ coroutine }) {
  const frames = coroutine.frames || framesOf(coroutine.stack || '');
  if (!frames.length) {
    return null;
  }
  return html`<ol class="stack-frames">${frames.map((frame) => html`
    <li><code>${frame.function}</code> <span class="quiet stack-file">${frame.file}${frame.line ? `:${frame.line}` : ''}</span></li>`)}</ol>`;
}

// framesOf reads a stack with two lines for each function: its name, and file:line.
function framesOf(stack) {
  const lines = stack.split('\n').map((line) => line.trim()).filter(Boolean);
  return lines.flatMap((line, i) => (i % 2 === 0 ? [{ function: line, file: lines[i + 1] || '' }] : []));
}

/** Why an instance is stalled. */
export function Mismatch({ mismatch, mayRewind, onRewind, onSelect }) {
  const before = (mismatch.event_id || 1) - 1;
  return html`
    <section class="mismatch" aria-labelledby="mismatch-title">
      <h2 id="mismatch-title">The code does not fit the history${mismatch.kind ? `: ${mismatch.kind}` : ''}</h2>
      <div class="mismatch-sides">
        <div><h3>Expected by the history${mismatch.event_id ? html`, event <button type="button" class="link"
          onClick=${() => onSelect(mismatch.event_id, '')}>${mismatch.event_id}</button>` : null}</h3>
          <pre tabindex="0" aria-label="Expected">${mismatch.expected || 'nothing: the history ends here'}</pre></div>
        <div><h3>Found in the code</h3>
          <pre tabindex="0" aria-label="Found">${mismatch.found || 'nothing: the code did not get there'}</pre></div>
      </div>
      ${mismatch.source ? html`<p>The call is at <code>${mismatch.source}</code>.</p>` : null}
      <p>${mismatch.hint || 'The history is unchanged.'}</p>
      <ul>
        <li>Deploy code that does what the history says there, or register the earlier version again. The instance then continues by itself.</li>
        ${mayRewind && before > 0 ? html`<li>Or begin a new run that keeps the events before the difference:${' '}
          <button type="button" data-action="rewind-before-mismatch" onClick=${() => onRewind(before)}>Rewind to event ${before}…</button></li>` : null}
      </ul>
    </section>`;
}
