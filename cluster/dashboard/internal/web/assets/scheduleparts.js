// What the list of schedules and the page of one share.
//
// Exports:
//   specText(spec)       'cron 30 2 * * *, Europe/Berlin'
//   ScheduleState({schedule})
//   Results({schedule})  the last results as small marks, newest last
//   ScheduleActions({schedule, onDone})  trigger, backfill, pause or resume

import { html } from './lib/htm-preact.js';
import { may, pageURL, post } from './api.js';
import { ask, Badge, Menu, notify } from './components.js';
import { absolute, duration } from './format.js';

export function specText(spec) {
  if (!spec) return '';
  const parts = [];
  if (spec.cron?.length) parts.push(spec.cron.join(' · '));
  if (spec.every_seconds) parts.push(`every ${duration(spec.every_seconds)}${spec.offset_seconds ? ` plus ${duration(spec.offset_seconds)}` : ''}`);
  if (spec.calendars?.length) parts.push(`${spec.calendars.length} ${spec.calendars.length === 1 ? 'calendar' : 'calendars'}`);
  if (spec.time_zone && spec.time_zone !== 'UTC') parts.push(spec.time_zone);
  return parts.join(', ');
}

export function ScheduleState({ schedule }) {
  if (schedule.unanswered) return '';
  if (schedule.error) return html`<${Badge} tone="bad">no answer<//>`;
  if (schedule.problem) return html`<${Badge} tone="bad">problem<//>`;
  if (schedule.ended) return html`<${Badge}>ended<//>`;
  if (schedule.paused) return html`<${Badge} tone="warn">paused<//>`;
  if (schedule.state && schedule.state !== 'running') return html`<${Badge} tone="bad">${schedule.state}<//>`;
  return html`<${Badge} tone="good">active<//>`;
}

const marks = {
  completed: ['good', '✓'], failed: ['bad', '✗'], running: ['busy', '●'], canceled: ['quiet', '–'], terminated: ['quiet', '–'],
  skipped: ['quiet', '○'], buffered: ['busy', '…'], missed: ['warn', '!'], exists: ['warn', '='],
};

export function Results({ schedule }) {
  const results = (schedule.last ?? []).slice(0, 10).reverse();
  if (results.length === 0) return html`<span class="quiet">no runs yet</span>`;
  return html`<span class="results">${results.map((each) => {
    const outcome = each.outcome ?? each.state;
    const [tone, mark] = marks[outcome] ?? ['quiet', '·'];
    const label = `${outcome}, due ${absolute(each.due)}`;
    const shown = html`<span aria-hidden="true">${mark}</span><span class="visually-hidden">${label}</span>`;
    return each.run_id
      ? html`<a key=${each.due} class=${`result tone-${tone}`} title=${label} href=${pageURL(['instances', each.run_id])}>${shown}</a>`
      : html`<span key=${each.due} class=${`result tone-${tone}`} title=${label}>${shown}</span>`;
  })}</span>`;
}

const overlaps = [
  ['skip', 'Skip'], ['buffer-one', 'Buffer one'], ['buffer-all', 'Buffer all'],
  ['cancel', 'Cancel the others'], ['terminate', 'Terminate the others'], ['allow', 'Allow'],
];
const overlapField = (standard) => ({
  name: 'overlap', label: 'While an earlier run is in progress', type: 'select', options: [['', standard], ...overlaps],
});

const verbs = {
  trigger: {
    dataAction: 'schedule-trigger', label: 'Start a run now', confirm: 'Start a run', fields: [overlapField('As the schedule says')],
    text: 'It starts a run at once, also while the schedule is paused.',
    done: (answer) => `Trigger: ${answer.outcome ?? 'accepted'}.`,
  },
  backfill: {
    dataAction: 'schedule-backfill', label: 'Backfill', fields: [
      { name: 'from', label: 'From (your local time)', type: 'time', required: true },
      { name: 'until', label: 'Before (your local time)', type: 'time', required: true, help: 'Not later than now. At most 1,000 due times.' },
      overlapField('Buffer all: one after another')],
    text: 'It starts a run for each due time in the interval that has had none.',
    done: (answer) => `Backfill: ${answer.started ?? answer.count ?? ''} accepted.`,
  },
  pause: { dataAction: 'schedule-pause', label: 'Pause', text: 'No runs start for due times until it is resumed. Runs in progress continue.', done: () => 'The schedule is paused.' },
  resume: { dataAction: 'schedule-resume', label: 'Resume', text: 'It continues with the due times after now.', done: () => 'The schedule is active.' },
};

function askFor(name, schedule, onDone) {
  const verb = verbs[name];
  return ask({
    title: `${verb.label}: ${schedule.id}`,
    text: html`<p>${verb.text}</p>`,
    fields: verb.fields,
    reason: true,
    confirm: verb.confirm ?? verb.label,
    run: async (values) => {
      const answer = await post(['schedules', schedule.id, name], values);
      notify(verb.done(answer));
      onDone();
    },
  });
}

export function ScheduleActions({ schedule, onDone }) {
  if (schedule.ended || schedule.error || !may('update')) return null;
  const verb = (name) => ({ label: `${verbs[name].label}…`, dataAction: verbs[name].dataAction, act: () => askFor(name, schedule, onDone) });
  const change = schedule.paused ? 'resume' : 'pause';
  return html`<${Menu} label=${html`Actions<span class="visually-hidden"> of ${schedule.id}</span>`}
    items=${[verb('trigger'), verb('backfill'), verb(change)]} />`;
}
