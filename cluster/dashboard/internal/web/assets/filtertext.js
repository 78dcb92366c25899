// The text of a filter (package cluster/filter), as far as pages read and write it. No elements.
//
// Exports:
//   orderOf(filter)            {column, descending} of the word order=
//   withOrder(filter, column)  the filter with another order; the same column again reverses it
//   withoutOrder(filter)
//   quote(text)                a key or a value, in quotes if it needs them
//   withSuggestion(text, cursor, completed, suggestion)
//                              {text, cursor} with the suggestion in place of what it completes: the
//                              part of completed.text from completed.start to completed.end

const orderWord = /(?:^|\s)order=(-?)([a-z]+)(?=\s|$)/;
const plain = /^[^\s"=<>]+$/;

export function orderOf(filter) {
  const match = orderWord.exec(filter);
  return match ? { column: match[2], descending: match[1] === '-' } : { column: 'id', descending: false };
}

export function withoutOrder(filter) {
  return filter.replace(orderWord, '').trim();
}

export function withOrder(filter, column) {
  const old = orderOf(filter);
  // Times are most useful with the newest first, due times with the next first.
  const descending = old.column === column ? !old.descending : column !== 'id' && column !== 'timer';
  return `${withoutOrder(filter)} order=${descending ? '-' : ''}${column}`.trim();
}

export function quote(text) {
  return plain.test(text) ? text : JSON.stringify(text);
}

export function withSuggestion(text, cursor, completed, suggestion) {
  // The user may have typed since, in the same word: what precedes it and what follows it is the same.
  const head = completed.text.slice(0, completed.start);
  const tail = completed.text.slice(completed.end);
  const fits = text.length >= head.length + tail.length && text.startsWith(head) && text.endsWith(tail);
  if (!fits || cursor < head.length || cursor > text.length - tail.length) return { text, cursor };
  const complete = !/[=<>.:,]$/.test(suggestion);
  const before = head + suggestion + (complete ? ' ' : '');
  return { text: before + (complete ? tail.trimStart() : tail), cursor: before.length };
}
