// Reads the history of an execution in pages and keeps it up to date.
//
// Exports:
//   useHistory(id, execution, last)   {history, revision, need(first, last), add(events),
//                                     all(signal, progress), error, retry}

import { useEffect, useRef, useState } from './lib/htm-preact.js';
import { get } from './api.js';
import { addEvents, createHistory, missingPages, pageSize } from './history-model.js';

const searchedAtOnce = 1000; // events that a search reads with one request

export function useHistory(id, execution, last) {
  const model = useRef(null);
  const [revision, setRevision] = useState(0);
  const [error, setError] = useState(null);
  if (!model.current || model.current.execution !== execution) {
    model.current = createHistory(execution, last);
  }
  const history = model.current;
  history.last = Math.max(history.last, last);
  const changed = () => model.current === history && setRevision((n) => n + 1);

  // read reads limit events, with several requests if the API answers with fewer.
  const read = async (after, limit, signal) => {
    for (let at = after; at < after + limit;) {
      const answer = await get(['instances', id, 'history'], { execution, after: at || undefined, limit: after + limit - at, payloads: true }, signal);
      const events = answer.events || [];
      addEvents(history, events);
      if (!events.length || !answer.next) {
        return;
      }
      at = events[events.length - 1].event_id;
    }
  };
  const readPage = async (page) => {
    history.pages.set(page, 'loading');
    try {
      await read(page * pageSize, pageSize);
      history.pages.delete(page);
      setError(null);
    } catch (problem) {
      history.pages.set(page, 'failed');
      setError(problem);
    }
    changed();
  };
  const need = (first, end) => missingPages(history, first, end).forEach(readPage);
  const retry = () => {
    for (const [page, state] of history.pages) {
      if (state === 'failed') {
        readPage(page);
      }
    }
  };
  const add = (events) => {
    addEvents(history, events.filter((e) => !e.execution || e.execution === execution));
    changed();
  };
  // all reads what is missing of the whole history, and calls progress with the number of events.
  const all = async (signal, progress) => {
    for (let after = 0; after < history.last && !signal.aborted; after += searchedAtOnce) {
      if (missingPages(history, after, after + searchedAtOnce).length) {
        await read(after, searchedAtOnce, signal);
      }
      progress(Math.min(history.last, after + searchedAtOnce));
    }
    changed();
  };
  useEffect(() => setError(null), [id, execution]);
  return { history, revision, need, add, all, error, retry };
}
