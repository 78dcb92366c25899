// Calls of the JSON API and URLs of pages. All URLs are relative to the dashboard's root.
//
// Exports:
//   base                      URL of the dashboard's root
//   pageURL(segments, params) relative URL of a page: pageURL(['instances', id], {tab: 'history'})
//   apiURL(segments, params)  URL of the API below api/
//   get(segments, params, signal)  answer of a GET, parsed
//   post(segments, body)      answer of a POST, parsed; {} if it is empty
//   session()                 promise of GET session, asked once per page
//   may(action)               reports whether the user may do it, after session() has resolved
//   ApiError                  what get and post throw: {status, code, message, field, outcome}
//
// Segments are encoded here. Undefined, null and empty parameters are left out; arrays are repeated.

export const base = new URL(document.documentElement.dataset.base ?? './', location.href);

export class ApiError extends Error {
  /** @param {number} status 0 if there was no answer */
  constructor(status, detail) {
    super(detail.message);
    this.name = 'ApiError';
    this.status = status;
    this.code = detail.code;
    this.field = detail.field;
    this.outcome = detail.outcome;
    this.detail = detail;
  }
}

function resolve(prefix, segments, params) {
  const url = new URL(prefix + segments.map((part) => encodeURIComponent(part)).join('/'), base);
  for (const [name, value] of Object.entries(params ?? {})) {
    for (const each of [value].flat()) {
      if (each !== undefined && each !== null && each !== '') url.searchParams.append(name, each);
    }
  }
  return url.href;
}

export function pageURL(segments, params) {
  return resolve('', segments, params);
}

export function apiURL(segments, params) {
  return resolve('api/', segments, params);
}

export function get(segments, params, signal) {
  return call(apiURL(segments, params), { signal });
}

export function post(segments, body) {
  return call(apiURL(segments), {
    method: 'POST',
    headers: { 'Content-Type': 'application/json', 'Tenuto-Request': '1' },
    body: JSON.stringify(body ?? {}),
  });
}

async function call(url, options) {
  let response;
  try {
    response = await fetch(url, options);
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError(0, { code: 'unreachable', message: 'The node does not answer.', outcome: 'unknown' });
  }
  const text = await response.text();
  let answer = {};
  try {
    if (text) answer = JSON.parse(text);
  } catch {
    answer = { error: { code: 'internal', message: text.slice(0, 300) } };
  }
  if (!response.ok) {
    const detail = answer.error ?? { code: 'internal', message: `The node answered ${response.status}.` };
    throw new ApiError(response.status, detail);
  }
  return answer;
}

let asked = null;
let known = null;

export function session() {
  asked ??= get(['session']).then((answer) => {
    known = answer;
    return answer;
  }, (error) => {
    asked = null;
    throw error;
  });
  return asked;
}

export function may(action) {
  return Boolean(known) && !known.read_only && known.actions?.[action] === true;
}
