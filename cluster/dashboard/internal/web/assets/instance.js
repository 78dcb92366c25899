// The page of one instance.

import { html, useEffect } from './lib/htm-preact.js';
import { get, pageURL } from './api.js';
import { Badge, ErrorNotice, Fetched, Loading, Tabs } from './basics.js';
import { now as clusterNow, useNow } from './format.js';
import { History } from './history.js';
import { useHistory } from './history-load.js';
import { hasEnded, instanceActions } from './instance-actions.js';
import { Children } from './instance-children.js';
import { executionsOf, Header } from './instance-header.js';
import { useKeys } from './keys.js';
import { useFetched, useLive } from './live.js';
import { mount, useParam } from './page.js';
import { Pending } from './pending.js';
import { Mismatch, Stack } from './stack.js';
import { Timeline } from './timeline.js';
import { eventsOf, prefetch, useTimeline } from './timeline-load.js';

const tabNames = ['timeline', 'history', 'pending', 'stack', 'children'];
const pendingEvery = 5000; // ms between reads of what is open, because attempts are no events

function Page({ id }) {
  const topic = `instance:${id}`;
  const status = useFetched(id, (signal) => get(['instances', id], {}, signal), topic);
  return html`${status.data ? null : html`<h1>${id}</h1>`}<${Fetched} result=${status} what="Loading the instance">
    ${(data) => html`<${Instance} id=${id} topic=${topic} status=${data} reload=${status.reload} />`}<//>`;
}

function Instance({ id, topic, status, reload }) {
  const [named, setTab] = useParam('tab', 'timeline');
  const tab = tabNames.includes(named) ? named : 'timeline';
  const [eventText, setEvent] = useParam('event', '');
  const [pinned, setPinned] = useParam('execution', '');
  const execution = Number(pinned) || status.execution;
  const isLatest = execution === status.execution;
  const ended = hasEnded(status.state) || !isLatest;
  const earlier = executionsOf(status).find((e) => e.number === execution);
  const history = useHistory(id, execution, isLatest ? status.last_event_id : earlier?.events || 0);
  const timeline = useTimeline(id, execution, tab === 'timeline');
  const pending = usePending(id, status, topic, timeline);
  const onEvents = (events) => {
    history.add(events);
    timeline.add(events);
  };
  useLive(topic, (kind, data) => {
    if (kind === 'resumed') {
      reload();
    }
    onEvents(eventsOf(data));
  });
  useEffect(() => {
    if (isLatest && timeline.data) {
      timeline.catchUp(status.last_event_id);
    }
  }, [status.last_event_id, timeline.data]);
  const onDone = () => {
    reload();
    pending.reload();
  };
  const actions = instanceActions(status, execution, onDone);
  const select = (eventId, instanceId) => {
    if (instanceId) {
      location.assign(pageURL(['instances', instanceId], { tab: 'history', event: eventId }));
      return;
    }
    setEvent(eventId ? String(eventId) : '', { replace: true });
    if (eventId && tab !== 'history') {
      setTab('history');
    }
  };
  const selected = Number(eventText) || 0;
  usePageKeys(setTab);
  const panels = {
    timeline: () => html`<${TimelinePanel} timeline=${timeline} ended=${ended} onSelect=${select} selected=${selected} />`,
    history: () => html`<${History} key=${execution} id=${id} source=${history} selected=${selected} onSelect=${select} actions=${actions} />`,
    pending: () => html`<${Fetched} result=${pending} what="Loading what is open">${(data) => html`<${Pending} id=${id}
      state=${status.state} operations=${data.operations || []} onDone=${onDone} onSelect=${select} />`}<//>`,
    stack: () => html`<${Stack} id=${id} state=${status.state} lastEventId=${status.last_event_id} onSelect=${select} />`,
    children: () => html`<${Children} id=${id} />`,
  };
  return html`
    <${Header} status=${status} execution=${execution} actions=${actions} onTab=${setTab}
      onExecution=${(n) => { setEvent('', { replace: true }); setPinned(n === status.execution ? '' : String(n)); }} />
    ${status.mismatch ? html`<${Mismatch} mismatch=${status.mismatch} mayRewind=${Boolean(actions.rewind)} onRewind=${actions.rewind} onSelect=${select} />` : null}
    <${Tabs} label="Parts of the instance" current=${tab} onSelect=${setTab} tabs=${tabsOf(status, pending)} />
    <div class="instance-panel" role="tabpanel" id=${`panel-${tab}`} aria-labelledby=${`tab-${tab}`} tabindex="-1">${panels[tab]()}</div>`;
}

function tabsOf(status, pending) {
  const open = pending.data ? (pending.data.operations || []).length : 0;
  return [
    { id: 'timeline', label: 'Timeline' },
    { id: 'history', label: 'History' },
    { id: 'pending', label: html`Pending${open ? html` <${Badge}>${open.toLocaleString('en')}<//>` : ''}` },
    { id: 'stack', label: 'Stack' },
    { id: 'children', label: 'Children' },
  ];
}

/** j and k move in the list that is shown, the numbers choose a tab. */
function usePageKeys(setTab) {
  const focusList = () => document.querySelector('.instance-panel [tabindex="0"]:is(.timeline-name, .history-id)')?.focus();
  const names = { timeline: 'timeline', history: 'history', pending: 'open operations', stack: 'stack', children: 'children' };
  const panelHasList = () => document.querySelector('.timeline-rows, .history-rows');
  const bindings = Object.fromEntries(Object.entries(names).map(([tab, name], i) => [String(i + 1), [`Show the ${name}`, () => setTab(tab)]]));
  if (panelHasList()) {
    bindings.j = ['Into the rows, and the next row', focusList];
    bindings.k = ['Into the rows, and the previous row', focusList];
  }
  useKeys(bindings);
}

/** Reads what is open, again when the instance changes and while attempts may fail. */
function usePending(id, status, topic, timeline) {
  const open = !hasEnded(status.state);
  const load = (signal) => (open ? get(['instances', id, 'pending'], {}, signal) : Promise.resolve({ operations: [] }));
  const pending = useFetched(`${id} ${open}`, load, open ? topic : null);
  useEffect(() => {
    if (!open) {
      return undefined;
    }
    const timer = setInterval(() => document.hidden || pending.reload(), pendingEvery);
    return () => clearInterval(timer);
  }, [id, open]);
  useEffect(() => timeline.annotate(pending.data?.operations || []), [pending.data, timeline.data]);
  return pending;
}

function TimelinePanel({ timeline, ended, onSelect, selected }) {
  const data = timeline.data;
  const live = !ended && data && data.endedAt === null;
  useNow(live ? 1000 : 3600000);
  if (!data) {
    return timeline.error ? html`<${ErrorNotice} error=${timeline.error} retry=${timeline.reload} />` : html`<${Loading} what="Loading the timeline" />`;
  }
  return html`
    ${timeline.error ? html`<${ErrorNotice} error=${timeline.error} retry=${timeline.reload} />` : null}
    <${Timeline} timeline=${data} revision=${timeline.revision} now=${clusterNow()} onSelect=${onSelect}
      selected=${new Set(selected ? [selected] : [])} />`;
}

const parameters = new URLSearchParams(location.search);
if ((parameters.get('tab') ?? 'timeline') === 'timeline' && !parameters.has('execution')) {
  prefetch(document.getElementById('page').dataset.id);
}
mount(Page);
