// Package plugin makes the analyzer of package vet a module plugin of golangci-lint, named
// "tenuto".
//
// "golangci-lint custom" builds a golangci-lint with the plugin from .custom-gcl.yml. The version
// there is that of golangci-lint, v2 or later:
//
//	version: v2.15.0
//	plugins:
//	  - module: github.com/tenuto-dev/tenuto/replay/vet
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
//	        description: code that makes orchestrations disagree with their history
//
// There are no settings. Silence a line as package vet says, or with "//nolint:tenuto".
package plugin
