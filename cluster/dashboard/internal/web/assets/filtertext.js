// The text of a filter (package cluster/filter), as far as pages read and write it. No elements.
//
// Exports:
//   orderOf(filter)            {column, descending} of the word order=
//   withOrder(filter, column)  the filter with another order; the same column again reverses it
//   withoutOrder(filter)
//   quote(text)                a key or a value, in quotes if it needs them
//   wordAt(text, position)     start of the word at a position; spaces in quotes end no word

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

export function wordAt(text, position) {
  let start = 0;
  let quoted = false;
  for (let i = 0; i < position; i++) {
    if (quoted && text[i] === '\\') i++;
    else if (text[i] === '"') quoted = !quoted;
    else if (text[i] === ' ' && !quoted) start = i + 1;
  }
  return start;
}
