// What the list of bulk jobs and the page of one share.
//
// Exports:
//   Progress({job})         a bar with the numbers of done, refused and unknown
//   JobActions({job, onDone})  pause, resume, stop
//   isOver(job)

import { html } from './lib/htm-preact.js';
import { may, post } from './api.js';
import { ask, Meter, notify } from './components.js';
import { count } from './format.js';

export function isOver(job) {
  return !['running', 'paused'].includes(job.state);
}

export function Progress({ job }) {
  const visited = job.visited ?? 0;
  const total = Math.max(job.total ?? job.matching ?? 0, visited);
  const parts = [`${count(job.done ?? 0)} done`];
  if (job.refused) parts.push(`${count(job.refused)} refused`);
  if (job.unknown) parts.push(`${count(job.unknown)} unknown`);
  const tone = job.unknown ? 'bad' : job.refused ? 'warn' : 'good';
  const known = total > 0 && (isOver(job) || total > visited);
  return html`<span>${known && html`<${Meter} value=${visited} max=${total} tone=${tone}
    label=${`${count(visited)} of ${count(total)} visited`} /> `}${parts.join(', ')}</span>`;
}

const verbs = {
  pause: { dataAction: 'job-pause', label: 'Pause', done: 'is paused', text: 'The job acts on nothing until it is resumed.' },
  resume: { dataAction: 'job-resume', label: 'Resume', done: 'continues', text: 'The job continues after the instance that it visited last.' },
  stop: { dataAction: 'job-stop', label: 'Stop', done: 'is stopped', text: 'A stopped job cannot be resumed. What it has done stays done.', danger: true },
};

function askFor(verb, job, onDone) {
  const { label, done, text, danger } = verbs[verb];
  return ask({
    title: `${label} the job ${job.id}`,
    text: html`<p>${text}</p>`,
    reason: true,
    confirm: label,
    danger,
    run: async (values) => {
      await post(['jobs', job.id, verb], values);
      notify(`The job ${job.id} ${done}.`);
      onDone();
    },
  });
}

export function JobActions({ job, onDone }) {
  if (isOver(job) || !may('update')) return null;
  const shown = [job.state === 'paused' ? 'resume' : 'pause', 'stop'];
  return shown.map((verb) => html`<button type="button" key=${verb} data-action=${verbs[verb].dataAction} class=${`small ${verbs[verb].danger ? 'danger' : ''}`}
    aria-label=${`${verbs[verb].label} the job ${job.id}`} onClick=${() => askFor(verb, job, onDone)}>${verbs[verb].label}…</button>`);
}
