// Package expect ends a test at the first answer that is not the right one.
package expect

import "testing"

// Must unwraps the answer of a call that has to succeed: expect.Must(call())(t).
func Must[T any](answer T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
}

// NoError is for calls that answer nothing else.
func NoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Equal compares two values, and says in a failure what they are.
func Equal[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}
