package web

import (
	"path"
	"regexp"
)

// importPattern matches the imports and the exports from other modules, as all assets write them.
var importPattern = regexp.MustCompile(`(?m)^(?:import|export)[^;'"]* from '(\./[^']+)';|^import '(\./[^']+)';`)

// importsOf returns the modules that a module imports, directly or not, in the order in which they
// are found. A page names them, so that the browser fetches all of them at once.
func (s *site) importsOf(module string) []string {
	var found []string
	seen := map[string]bool{module: true}
	for next := []string{module}; len(next) > 0; next = next[1:] {
		for _, match := range importPattern.FindAllSubmatch(s.assets[next[0]].plain, -1) {
			name := path.Join(path.Dir(next[0]), string(match[1])+string(match[2]))
			if !seen[name] {
				seen[name] = true
				found = append(found, name)
				next = append(next, name)
			}
		}
	}
	return found
}
