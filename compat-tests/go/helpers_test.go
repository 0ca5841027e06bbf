// Package clientsuite drives a server with etcd's own Go client and its
// helpers. Every test starts a server of its own, so that revisions can be
// stated exactly: the first write of a store has revision 2.
package clientsuite

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"leaseway/compat-tests/expect"
	"leaseway/compat-tests/harness"
)

const callDeadline = 20 * time.Second

// start runs a fresh server and returns a client of it and a bounded context.
func start(t *testing.T, flags ...string) (*harness.Server, *clientv3.Client, context.Context) {
	t.Helper()
	t.Parallel()
	server := harness.Start(t, flags...)
	return server, server.Client(), harness.Context(t, 2*time.Minute)
}

// wantStatus requires a gRPC error with exactly this code and text.
func wantStatus(t *testing.T, err error, code codes.Code, text string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want %v %q", code, text)
	}
	gotCode, gotText := codes.Unknown, err.Error()
	if translated, ok := err.(rpctypes.EtcdError); ok {
		gotCode, gotText = translated.Code(), translated.Error()
	} else if raw, ok := status.FromError(err); ok {
		gotCode, gotText = raw.Code(), raw.Message()
	}
	if gotCode != code || gotText != text {
		t.Fatalf("got %v %q, want %v %q", gotCode, gotText, code, text)
	}
}

// putAll writes key=value pairs in order and returns the last revision.
func putAll(t *testing.T, ctx context.Context, kv clientv3.KV, pairs ...string) int64 {
	t.Helper()
	var revision int64
	for _, pair := range pairs {
		key, value, _ := strings.Cut(pair, "=")
		revision = expect.Must(kv.Put(ctx, key, value))(t).Header.Revision
	}
	return revision
}

// pairs renders keys and values as "k=v k=v".
func pairs(kvs []*mvccpb.KeyValue) string {
	parts := make([]string, len(kvs))
	for i, kv := range kvs {
		parts[i] = fmt.Sprintf("%s=%s", kv.Key, kv.Value)
	}
	return strings.Join(parts, " ")
}

// versions renders a key's bookkeeping as "k c2 m3 v2" (create revision,
// modification revision, version), with " lN" if a lease holds it.
func versions(kvs []*mvccpb.KeyValue) string {
	parts := make([]string, len(kvs))
	for i, kv := range kvs {
		parts[i] = fmt.Sprintf("%s c%d m%d v%d", kv.Key, kv.CreateRevision, kv.ModRevision, kv.Version)
		if kv.Lease != 0 {
			parts[i] += fmt.Sprintf(" l%d", kv.Lease)
		}
	}
	return strings.Join(parts, ", ")
}

// event renders one event as "PUT k=v @rev" or "DELETE k @rev", with the
// previous value in brackets if it came along.
func event(e *clientv3.Event) string {
	text := fmt.Sprintf("%s %s", e.Type, e.Kv.Key)
	if e.Type == clientv3.EventTypePut {
		text += "=" + string(e.Kv.Value)
	}
	text += fmt.Sprintf(" @%d", e.Kv.ModRevision)
	if e.PrevKv != nil {
		text += fmt.Sprintf(" [%s @%d]", e.PrevKv.Value, e.PrevKv.ModRevision)
	}
	return text
}

// nextResponse waits for the next response of a watch that is still open.
func nextResponse(t *testing.T, watch clientv3.WatchChan) clientv3.WatchResponse {
	t.Helper()
	select {
	case response, open := <-watch:
		if !open {
			t.Fatal("the watch channel was closed")
		}
		return response
	case <-time.After(callDeadline):
		t.Fatal("no watch response")
	}
	panic("unreachable")
}

// nextEvents collects count events, whatever responses they come in.
func nextEvents(t *testing.T, watch clientv3.WatchChan, count int) []string {
	t.Helper()
	var events []string
	for len(events) < count {
		response := nextResponse(t, watch)
		if err := response.Err(); err != nil {
			t.Fatalf("watch failed: %v", err)
		}
		for _, e := range response.Events {
			events = append(events, event(e))
		}
	}
	if len(events) > count {
		t.Fatalf("got %d events, want %d: %q", len(events), count, events)
	}
	return events
}

func wantEvents(t *testing.T, watch clientv3.WatchChan, want ...string) {
	t.Helper()
	got := strings.Join(nextEvents(t, watch, len(want)), "\n")
	if expected := strings.Join(want, "\n"); got != expected {
		t.Fatalf("got events\n%s\nwant\n%s", got, expected)
	}
}
