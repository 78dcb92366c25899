package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// A Format is how results are written.
type Format string

// The formats.
const (
	Table Format = "table"
	Wide  Format = "wide" // a table with more columns
	JSON  Format = "json" // one document per line
	YAML  Format = "yaml" // documents separated by "---"
	IDs   Format = "ids"  // one ID per line
)

// A Column is a column of a table of values.
type Column[T any] struct {
	Name string
	Wide bool // only in the format Wide
	Cell func(value T) string
}

// A Printer writes values of one type. It is not for concurrent use.
type Printer[T any] struct {
	format    Format
	documents *Documents
	out       io.Writer
	columns   []Column[T]
	id        func(value T) string
	rows      *Rows
}

// NewPrinter returns a printer. id returns what the format IDs writes.
func NewPrinter[T any](out io.Writer, format Format, columns []Column[T], id func(value T) string) *Printer[T] {
	p := &Printer[T]{format: format, documents: &Documents{out: out, yaml: format == YAML}, out: out, id: id, rows: &Rows{out: out}}
	var names []string
	for _, c := range columns {
		if !c.Wide || format == Wide {
			p.columns = append(p.columns, c)
			names = append(names, c.Name)
		}
	}
	if format == Table || format == Wide {
		p.rows.Add(names...)
	}
	return p
}

// Write writes a value. Rows of a table are written by Flush.
func (p *Printer[T]) Write(value T) error {
	switch p.format {
	case JSON, YAML:
		return p.documents.Write(value)
	case IDs:
		_, err := fmt.Fprintln(p.out, p.id(value))
		return err
	}
	cells := make([]string, len(p.columns))
	for i, c := range p.columns {
		cells[i] = c.Cell(value)
	}
	p.rows.Add(cells...)
	return nil
}

// Flush writes the rows so far. Later rows are aligned with them, if they are not longer.
func (p *Printer[T]) Flush() error { return p.rows.Flush() }

// Rows align the cells of a table with spaces. Escape sequences for colors take no space.
type Rows struct {
	out    io.Writer
	rows   [][]string
	widths []int
}

// NewRows returns an empty table.
func NewRows(out io.Writer) *Rows { return &Rows{out: out} }

// Add adds a row.
func (r *Rows) Add(cells ...string) { r.rows = append(r.rows, cells) }

// Flush writes the rows that were added since the last call.
func (r *Rows) Flush() error {
	for _, row := range r.rows {
		for i, cell := range row {
			if i == len(r.widths) {
				r.widths = append(r.widths, 0)
			}
			if i < len(row)-1 {
				r.widths[i] = max(r.widths[i], visibleWidth(cell))
			}
		}
	}
	var text strings.Builder
	for _, row := range r.rows {
		for i, cell := range row {
			text.WriteString(cell)
			if i < len(row)-1 {
				text.WriteString(strings.Repeat(" ", r.widths[i]-visibleWidth(cell)+2))
			}
		}
		text.WriteByte('\n')
	}
	r.rows = nil
	if text.Len() == 0 {
		return nil
	}
	_, err := io.WriteString(r.out, text.String())
	return err
}

// visibleWidth is the number of characters without those of escape sequences, which only this
// program adds.
func visibleWidth(cell string) int {
	width := utf8.RuneCountInString(cell)
	for rest := cell; ; {
		_, after, found := strings.Cut(rest, "\x1b[")
		if !found {
			return width
		}
		code, tail, _ := strings.Cut(after, "m")
		width -= len("\x1b[") + len(code) + len("m")
		rest = tail
	}
}

// Documents write values as JSON or YAML.
type Documents struct {
	out   io.Writer
	yaml  bool
	count int
}

// NewDocuments returns a writer of JSON lines, or of YAML documents.
func NewDocuments(out io.Writer, format Format) *Documents {
	return &Documents{out: out, yaml: format == YAML}
}

// Write writes one value.
func (d *Documents) Write(value any) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return err
	}
	if d.yaml {
		document, err := toYAML(text.Bytes())
		if err != nil {
			return err
		}
		text.Reset()
		if d.count > 0 {
			text.WriteString("---\n")
		}
		text.Write(document)
	}
	d.count++
	_, err := d.out.Write(text.Bytes())
	return err
}
