// One server-sent stream per page for all topics that its components follow.
//
// Exports:
//   follow(topic, listener)   calls listener(kind, data) for each event; returns a function that stops
//   useLive(topic, listener)  hook form of follow; a topic of null follows nothing
//   useConnection()           hook: 'none' (nothing is followed) | 'connecting' | 'live' | 'lost'
//   useReload(topic, reload, take)  hook: calls reload when the topic changes, at most once a second
//                             and for about a tenth of the time, and every 10 s while there is no
//                             stream or topic. If take(kind, data) returns true, the event needs
//                             no reload.
//   useFetched(key, load, topic, take)  hook: {data, error, loading, reload}. Loads again as useReload
//                             says. take(kind, data) may return the new data instead, or false: the
//                             event does not concern it.
//
// The stream is opened again when the set of topics changes, and by the browser when it breaks. A
// hidden page closes it after hiddenFor, and a page that the user leaves closes it at once: a
// browser opens only a few connections to one host. After each break, listeners get the kind
// 'resumed' once: what they show may be old.

import { useCallback, useEffect, useRef, useState } from './lib/htm-preact.js';
import { apiURL } from './api.js';

const kinds = ['state', 'count', 'changed', 'events', 'status', 'error'];
const retryAfter = 5000; // ms
const pollEvery = 10000; // ms
const coalesce = 1000; // ms
const pausePart = 10; // a page waits this many times as long as its last read took, up to pollEvery
const hiddenFor = 10000; // ms until a hidden page closes its stream

/** @type {Map<string, Set<Function>>} */
const listeners = new Map();
const connectionListeners = new Set();
let source = null;
let opening = false;
let connection = 'none';
let broken = false;
let asleep = false; // the page is hidden and has closed its stream
let sleepTimer = 0;

function sleep() {
  clearTimeout(sleepTimer);
  asleep = true;
  broken = true;
  open();
}

function wake() {
  clearTimeout(sleepTimer);
  if (!asleep) return;
  asleep = false;
  reopen();
}

document.addEventListener('visibilitychange', () => {
  if (document.hidden) sleepTimer = setTimeout(sleep, hiddenFor);
  else wake();
});

// The browser keeps pages that the user has left, to show them when the user goes back. Their timers
// do not run, and their streams would stay open.
addEventListener('pagehide', sleep);
addEventListener('pageshow', wake);

function setConnection(state) {
  if (connection === state) return;
  connection = state;
  connectionListeners.forEach((listener) => listener(state));
}

function open() {
  opening = false;
  source?.close();
  source = null;
  setConnection(listeners.size === 0 ? 'none' : 'connecting');
  if (listeners.size === 0 || asleep) return;
  const stream = new EventSource(apiURL(['events'], { topics: [...listeners.keys()] }));
  source = stream;
  stream.onopen = () => {
    setConnection('live');
    if (broken) for (const topic of listeners.keys()) tell(topic, 'resumed', {});
    broken = false;
  };
  stream.onerror = () => {
    broken = true;
    setConnection('lost');
    // The browser tries again by itself, unless the answer was an error.
    if (stream.readyState === EventSource.CLOSED && source === stream) setTimeout(reopen, retryAfter);
  };
  for (const topic of listeners.keys()) {
    for (const kind of kinds) {
      stream.addEventListener(`${topic}-${kind}`, (event) => tell(topic, kind, parse(event.data)));
    }
  }
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return {};
  }
}

function tell(topic, kind, data) {
  listeners.get(topic)?.forEach((listener) => listener(kind, data));
}

// Several components begin and stop to follow topics in one redraw: one new stream is enough.
function reopen() {
  if (opening) return;
  opening = true;
  setTimeout(open, 0);
}

export function follow(topic, listener) {
  if (!listeners.has(topic)) {
    listeners.set(topic, new Set());
    reopen();
  }
  listeners.get(topic).add(listener);
  return () => {
    const set = listeners.get(topic);
    set?.delete(listener);
    if (set?.size === 0) {
      listeners.delete(topic);
      reopen();
    }
  };
}

export function useLive(topic, listener) {
  const latest = useRef(listener);
  latest.current = listener;
  useEffect(() => {
    if (topic) return follow(topic, (kind, data) => latest.current(kind, data));
    return undefined;
  }, [topic]);
}

export function useConnection() {
  const [state, setState] = useState(connection);
  useEffect(() => {
    connectionListeners.add(setState);
    setState(connection);
    return () => connectionListeners.delete(setState);
  }, []);
  return state;
}

export function useReload(topic, reload, take) {
  const timer = useRef(0);
  const took = useRef(0);
  const latest = useRef(reload);
  latest.current = reload;
  useEffect(() => () => {
    clearTimeout(timer.current);
    timer.current = 0;
  }, [topic]);
  useLive(topic, (kind, data) => {
    if (take?.(kind, data)) return;
    timer.current ||= setTimeout(async () => {
      timer.current = 0;
      const began = performance.now();
      await latest.current();
      took.current = performance.now() - began;
    }, Math.min(Math.max(coalesce, pausePart * took.current), pollEvery));
  });
  const live = useConnection() === 'live' && Boolean(topic);
  useEffect(() => {
    if (live) return undefined;
    const polling = setInterval(() => document.hidden || latest.current(), pollEvery);
    return () => clearInterval(polling);
  }, [live]);
}

/**
 * @param {string} key identifies what is loaded; another key loads anew
 * @param {(signal: AbortSignal) => Promise<any>} load
 * @param {string|null} topic
 * @param {(kind: string, data: any) => any} [take]
 */
export function useFetched(key, load, topic, take) {
  const [result, setResult] = useState({ data: undefined, error: null, loading: true });
  const latest = useRef(load);
  latest.current = load;
  const abort = useRef(null);
  const reload = useCallback(async () => {
    abort.current?.abort();
    const mine = new AbortController();
    abort.current = mine;
    try {
      const data = await latest.current(mine.signal);
      if (!mine.signal.aborted) setResult({ data, error: null, loading: false });
    } catch (error) {
      if (!mine.signal.aborted) setResult((old) => ({ data: old.data, error, loading: false }));
    }
  }, []);
  useEffect(() => {
    setResult({ data: undefined, error: null, loading: true });
    reload();
    return () => abort.current?.abort();
  }, [key]);
  useReload(topic, reload, (kind, event) => {
    const data = take?.(kind, event);
    if (data === undefined) return false;
    if (data !== false) setResult({ data, error: null, loading: false });
    return true;
  });
  return { ...result, reload };
}
