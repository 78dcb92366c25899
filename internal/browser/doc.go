// Package browser tests the dashboard in Chromium against a cluster of three nodes. It has tests
// only. "make browser" runs them and "make screenshots" writes pictures of all pages.
//
// The tests need a program named chromium (Debian: apt-get install chromium) and fail without it.
// TENUTO_CHROMIUM names another one.
package browser
