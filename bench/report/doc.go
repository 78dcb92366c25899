// Package report turns what was measured into what is read: medians and their
// spread with the ratios to the yardsticks ([Row]), bars that were set
// ([Bar]), as Markdown, as JSON, and as a page with plots that needs nothing
// but a browser.
package report
