// Package report presents results: medians and ranges with the ratios to baselines ([Row]),
// and targets ([Target]), as Markdown, as JSON, and as a self-contained HTML page with plots.
package report
