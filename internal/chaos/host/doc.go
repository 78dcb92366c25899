// Package host is the process under test: it embeds a node with the code of the workloads and
// serves the calls of the harness's clients. It knows nothing of faults and uses only the public
// API and package internal/harness.
package host
