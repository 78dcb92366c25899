package report

import (
	_ "embed"
	"html/template"
	"io"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"rows":          Rows,
	"notes":         notes,
	"label":         label,
	"ratio":         ratio,
	"wanted":        wanted,
	"yes":           yes,
	"format":        format,
	"strip":         strip,
	"reach":         reach,
	"scaling":       scaling,
	"distributions": distributions,
}).Parse(pageText))

// WriteHTML writes a page with tables and plots. It refers to nothing outside
// of itself, and holds no script.
func (r *Report) WriteHTML(w io.Writer) error { return page.Execute(w, r) }
