package api

import (
	_ "embed"
	"net/http"
)

// document describes the API in OpenAPI 3.1. A test makes it from the routes, the types of bodies
// and answers, and their comments: go test -run TestDocument -update.
//
//go:embed openapi.json
var document []byte

func (a *API) serveDocument(w http.ResponseWriter, _ *request) error {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_, _ = w.Write(document) // an error means that the client has gone
	return nil
}
