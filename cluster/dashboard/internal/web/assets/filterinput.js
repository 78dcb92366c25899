// The field for a filter of instances, with completion by the API.
//
// Exports:
//   FilterInput({value, onSubmit})   onSubmit(text) is called by Enter, by leaving the field, and by
//                                    the button that clears it

import { html, useEffect, useRef, useState } from './lib/htm-preact.js';
import { get } from './api.js';
import { withSuggestion } from './filtertext.js';

const debounce = 120; // ms

function useCompletion(text, cursor, active) {
  const [answer, setAnswer] = useState({ suggestions: [], error: null, text: '', start: 0, end: 0 });
  useEffect(() => {
    if (!active) return undefined;
    const abort = new AbortController();
    const timer = setTimeout(async () => {
      try {
        const found = await get(['filter', 'complete'], { text, cursor: String(cursor) }, abort.signal);
        setAnswer({ suggestions: found.suggestions ?? [], error: found.error ?? null, text, start: found.start, end: found.end });
      } catch {
        // Completion is a help; the list itself shows what is wrong.
      }
    }, debounce);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [text, cursor, active]);
  return answer;
}

export function FilterInput({ value, onSubmit }) {
  const field = useRef(null);
  const [text, setText] = useState(value);
  const [cursor, setCursor] = useState(value.length);
  const [active, setActive] = useState(false);
  const [chosen, setChosen] = useState(-1);
  const [dismissed, setDismissed] = useState(false);
  useEffect(() => setText(value), [value]);
  const completed = useCompletion(text, cursor, active);
  const { suggestions, error } = completed;
  const open = active && !dismissed && suggestions.length > 0;
  const edit = (event) => {
    setText(event.target.value);
    setCursor(event.target.selectionStart);
    setChosen(-1);
    setDismissed(false);
  };
  const accept = (suggestion) => {
    const next = withSuggestion(text, cursor, completed, suggestion.text);
    setText(next.text);
    setCursor(next.cursor);
    setChosen(-1);
    requestAnimationFrame(() => {
      field.current.focus();
      field.current.setSelectionRange(next.cursor, next.cursor);
    });
  };
  const submit = () => {
    setDismissed(true);
    if (text.trim() !== value) onSubmit(text.trim());
  };
  const keys = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && open) setChosen((chosen + step + suggestions.length + (chosen < 0 && step < 0 ? 1 : 0)) % suggestions.length);
    else if (event.key === 'Enter' && open && chosen >= 0) accept(suggestions[chosen]);
    else if (event.key === 'Tab' && open && chosen >= 0) accept(suggestions[chosen]);
    else if (event.key === 'Enter') submit();
    else if (event.key === 'Escape' && open) setDismissed(true);
    else return;
    event.preventDefault();
    if (event.key === 'Escape') event.stopPropagation();
  };
  return html`<div class="filter">
    <div class="filter-field">
      <input type="text" class="code" aria-label="Filter of instances" role="combobox" aria-expanded=${open ? 'true' : 'false'} data-search
        aria-controls="filter-suggestions" aria-autocomplete="list" aria-invalid=${error ? 'true' : undefined}
        aria-describedby=${error ? 'filter-error' : undefined} aria-activedescendant=${open && chosen >= 0 ? `suggestion-${chosen}` : undefined}
        placeholder="All instances. Try state=failed or name=…" autocomplete="off" autocapitalize="off" spellcheck="false"
        ref=${field} value=${text} onInput=${edit} onKeyDown=${keys} onFocus=${() => { setActive(true); setDismissed(false); }}
        onClick=${(event) => setCursor(event.target.selectionStart)} onBlur=${() => { setActive(false); submit(); }} />
      ${text && html`<button type="button" class="plain" aria-label="Clear the filter" onClick=${() => { setText(''); onSubmit(''); }}>×</button>`}
    </div>
    <ul id="filter-suggestions" role="listbox" aria-label="Suggestions" class="suggestions" hidden=${!open}>
      ${open && suggestions.map((each, i) => html`<li role="option" id=${`suggestion-${i}`} key=${each.text} aria-selected=${i === chosen ? 'true' : 'false'}
        onPointerDown=${(event) => { event.preventDefault(); accept(each); }}><code>${each.text}</code>
        <span class="quiet">${each.detail || each.kind}</span></li>`)}
    </ul>
    ${error && html`<p class="filter-error bad" id="filter-error">${error.message}
      ${error.offset >= 0 && html` At <code>${text.slice(error.offset, error.offset + 24) || 'the end'}</code>.`}</p>`}
  </div>`;
}
