// Package api serves the JSON API of the dashboard, which is also a gateway for programs.
//
// It guarantees:
//
//  1. GET changes nothing. Every change is a POST with the header Tenuto-Request.
//  2. Each call asks the rights of the user for each action that it makes.
//  3. Payloads leave the process as JSON values or base64, after the redaction.
//
// It must not be assumed that a read without "fresh=true" shows what was acknowledged just before:
// it reads the replica of the client's node.
package api
