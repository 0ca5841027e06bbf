// Package pagesuite looks at Leaseway's page for people with a real browser: headless Chromium, driven by the
// DevTools protocol. It does what somebody at a keyboard does, and fails as well when the browser complains or
// when the page asks anybody but its own server for anything.
package pagesuite
