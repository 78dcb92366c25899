// Package plugin makes the analyzer of package vet a module plugin of
// golangci-lint, under the name "tenuto".
//
// In .custom-gcl.yml, from which "golangci-lint custom" builds a golangci-lint
// that has it (version is that of golangci-lint, from v2 on):
//
//	version: v2.15.0
//	plugins:
//	  - module: github.com/tenuto-dev/tenuto
//	    import: github.com/tenuto-dev/tenuto/replay/vet/plugin
//	    version: latest
//
// In .golangci.yml:
//
//	version: "2"
//	linters:
//	  enable:
//	    - tenuto
//	  settings:
//	    custom:
//	      tenuto:
//	        type: module
//	        description: what makes orchestrations disagree with their history
//
// There are no settings. A line is silenced as package vet says, or by
// golangci-lint's own "//nolint:tenuto".
package plugin
