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
	"wanted":        formatTarget,
	"yes":           yesNo,
	"format":        format,
	"strip":         drawValues,
	"reach":         drawReached,
	"scaling":       scaling,
	"distributions": distributions,
}).Parse(pageText))

// WriteHTML writes a self-contained page with tables and plots, without scripts.
func (r *Report) WriteHTML(w io.Writer) error { return page.Execute(w, r) }
