// Reads timelines and keeps them up to date with the events that come live.
//
// Exports:
//   prefetch(id)                 begins to read the timeline before the page is drawn
//   useTimeline(id, execution, wanted)   {data, error, revision, add(events), catchUp(last),
//                                annotate(operations), reload()}
//   useChildren()                [expanded, toggle(key, row)]: timelines of expanded children by the
//                                key of their row; a text while there is none
//   eventsOf(data)               the events in what the topic of an instance sends

import { useEffect, useRef, useState } from './lib/htm-preact.js';
import { get } from './api.js';
import { follow } from './live.js';
import { annotate, createTimeline, extend } from './timeline-model.js';

const catchUpBy = 1000; // events that one request reads

let early = null;

export function prefetch(id) {
  early = { id, answer: get(['instances', id, 'timeline'], {}) };
  early.answer.catch(() => {}); // who reads the timeline gets the error
}

// prefetched returns the timeline that prefetch has read, if it is the one that is wanted.
async function prefetched(id, execution) {
  const { answer } = early?.id === id ? early : {};
  early = null;
  try {
    const timeline = answer && createTimeline(await answer);
    return timeline?.execution === execution ? timeline : null;
  } catch {
    return null;
  }
}

async function load(id, execution, signal) {
  return createTimeline(await get(['instances', id, 'timeline'], { execution }, signal));
}

export function eventsOf(data) {
  if (Array.isArray(data)) {
    return data;
  }
  return data?.events || (data?.event_id && data.type ? [data] : []);
}

/** The timeline of an execution, once it is wanted. revision changes whenever the timeline does. */
export function useTimeline(id, execution, wanted) {
  const [state, setState] = useState({ data: null, error: null, revision: 0 });
  const model = useRef(null);
  const read = async (signal) => {
    try {
      const timeline = await prefetched(id, execution) ?? await load(id, execution, signal);
      if (signal?.aborted) {
        return;
      }
      model.current = timeline;
      setState((old) => ({ data: timeline, error: null, revision: old.revision + 1 }));
    } catch (error) {
      if (error.name !== 'AbortError') {
        setState((old) => ({ ...old, error }));
      }
    }
  };
  const needed = useRef(false);
  needed.current ||= wanted;
  useEffect(() => {
    const abort = new AbortController();
    model.current = null;
    setState((old) => ({ data: null, error: null, revision: old.revision }));
    if (needed.current) {
      read(abort.signal);
    }
    return () => abort.abort();
  }, [id, execution, needed.current]);
  const changed = () => setState((old) => ({ ...old, revision: old.revision + 1 }));
  const catchingUp = useRef(0);
  // catchUp reads the events up to the last one that the timeline lacks.
  const catchUp = async (last) => {
    const timeline = model.current;
    const busy = catchingUp.current > 0;
    catchingUp.current = Math.max(catchingUp.current, last);
    if (busy || !timeline) {
      return;
    }
    try {
      while (model.current === timeline && timeline.lastEvent < catchingUp.current) {
        const answer = await get(['instances', id, 'history'], { execution, after: timeline.lastEvent, limit: catchUpBy });
        if (extend(timeline, answer.events || []) !== 'changed') {
          break;
        }
        changed();
      }
    } catch (error) {
      setState((old) => ({ ...old, error }));
    } finally {
      catchingUp.current = 0;
    }
  };
  const add = (events) => {
    const result = model.current ? extend(model.current, events) : 'same';
    if (result === 'gap') {
      catchUp(events[events.length - 1].event_id);
    } else if (result === 'changed') {
      changed();
    }
  };
  // addPending shows what is open, and the attempts of open activities.
  const addPending = (operations) => {
    const timeline = model.current;
    if (timeline && annotate(timeline, operations)) {
      changed();
    }
  };
  return { ...state, add, catchUp, annotate: addPending, reload: () => needed.current && read() };
}

/** Timelines of children, read when they are expanded and followed until they are folded. */
export function useChildren() {
  const [expanded, setExpanded] = useState(new Map());
  const stops = useRef(new Map());
  useEffect(() => () => stops.current.forEach((stop) => stop()), []);
  const put = (key, value) => stops.current.has(key) && setExpanded((map) => new Map(map).set(key, value));
  const read = async (key, id, kept) => {
    try {
      kept.timeline = await load(id);
      put(key, kept.timeline);
    } catch (error) {
      put(key, `Not loaded: ${error.message}`);
    }
  };
  const expand = (key, id) => {
    const kept = { timeline: null };
    stops.current.set(key, follow(`instance:${id}`, (kind, data) => {
      const result = kind === 'resumed' ? 'gap' : kept.timeline ? extend(kept.timeline, eventsOf(data)) : 'same';
      if (result === 'gap') {
        read(key, id, kept);
      } else if (result === 'changed') {
        put(key, kept.timeline);
      }
    }));
    put(key, 'Loading.');
    read(key, id, kept);
  };
  // fold ends a child and the children that are expanded below it.
  const fold = (key) => {
    for (const [other, stop] of [...stops.current]) {
      if (other === key || other.startsWith(key + '/')) {
        stop();
        stops.current.delete(other);
      }
    }
    setExpanded((map) => new Map([...map].filter(([other]) => stops.current.has(other))));
  };
  return [expanded, (key, row) => (stops.current.has(key) ? fold(key) : expand(key, row.childId))];
}
