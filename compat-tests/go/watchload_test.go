package clientsuite

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"leaseway/compat-tests/expect"
	"leaseway/compat-tests/harness"
)

// Watchers that start, lag or reconnect while others write: nothing may be
// missing, doubled or out of order.

// follow reads a watch until it has seen the event of the given revision. Every
// revision from first on must come exactly once and in order; each write of
// these tests makes one event, so revisions have no holes.
func follow(ctx context.Context, watch clientv3.WatchChan, first, last int64) error {
	next := first
	for next <= last {
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for revision %d: %w", next, ctx.Err())
		case response, open := <-watch:
			if !open {
				return fmt.Errorf("closed before revision %d", next)
			}
			if err := response.Err(); err != nil {
				return fmt.Errorf("before revision %d: %w", next, err)
			}
			for _, e := range response.Events {
				if e.Kv.ModRevision != next {
					return fmt.Errorf("got %s, want revision %d", event(e), next)
				}
				next++
			}
		}
	}
	return nil
}

// writeLoad puts count keys below prefix from several clients at once.
func writeLoad(t *testing.T, ctx context.Context, server *harness.Server, prefix string, writers, each int) *sync.WaitGroup {
	t.Helper()
	var group sync.WaitGroup
	for w := range writers {
		client := server.Client()
		group.Go(func() {
			for i := range each {
				if _, err := client.Put(ctx, fmt.Sprintf("%s%d/%d", prefix, w, i%50), "v"); err != nil {
					t.Errorf("put: %v", err)
					return
				}
			}
		})
	}
	return &group
}

func TestWatchersStartedUnderLoad(t *testing.T) {
	server, client, ctx := start(t)
	const writers, each, watchers = 4, 500, 60
	const last = 1 + writers*each
	load := writeLoad(t, ctx, server, "k/", writers, each)
	var group sync.WaitGroup
	for i := range watchers {
		// Some begin in history, some where the store is now.
		first := int64(2)
		if i%3 != 0 {
			now := expect.Must(client.Get(ctx, "k/", clientv3.WithPrefix(), clientv3.WithLimit(1)))(t)
			first = now.Header.Revision + 1
		}
		watch := client.Watch(ctx, "k/", clientv3.WithPrefix(), clientv3.WithRev(first))
		group.Go(func() {
			if err := follow(ctx, watch, first, last); err != nil {
				t.Errorf("watcher from %d: %v", first, err)
			}
		})
	}
	load.Wait()
	group.Wait()
}

func TestWatchFromNowMissesNothing(t *testing.T) {
	server, client, ctx := start(t)
	const writers, each, watchers = 2, 500, 20
	load := writeLoad(t, ctx, server, "k/", writers, each)
	var group sync.WaitGroup
	for range watchers {
		// Without a start revision the answer that announces the watcher tells
		// after which revision it begins.
		watch := client.Watch(ctx, "k/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
		created := nextResponse(t, watch)
		expect.Equal(t, "created", created.Created, true)
		first := created.Header.Revision + 1
		group.Go(func() {
			if err := follow(ctx, watch, first, 1+writers*each); err != nil {
				t.Errorf("watcher from now (%d): %v", first, err)
			}
		})
	}
	load.Wait()
	group.Wait()
}

func TestManyWatchersOnOneStream(t *testing.T) {
	_, client, ctx := start(t)
	const watchers = 1000
	var group sync.WaitGroup
	for i := range watchers {
		watch := client.Watch(ctx, fmt.Sprintf("k%04d", i), clientv3.WithCreatedNotify())
		expect.Equal(t, "created", nextResponse(t, watch).Created, true)
		group.Go(func() {
			select {
			case response := <-watch:
				if len(response.Events) != 1 || string(response.Events[0].Kv.Key) != fmt.Sprintf("k%04d", i) {
					t.Errorf("watcher %d got %v", i, response.Events)
				}
			case <-ctx.Done():
				t.Errorf("watcher %d got nothing", i)
			}
		})
	}
	for i := range watchers {
		putAll(t, ctx, client, fmt.Sprintf("k%04d=v", i))
	}
	group.Wait()
}

func TestSlowReaderLosesNothing(t *testing.T) {
	server, client, ctx := start(t)
	// The client library buffers without bound, so stop reading on the wire:
	// flow control then holds the server back.
	slow := openWatch(t, ctx, server.Client())
	slow.send(createRequest(&pb.WatchCreateRequest{Key: []byte("k"), RangeEnd: []byte("l")}))
	slow.want("id=0 created")
	value := string(make([]byte, 16<<10))
	const writes = 600 // about 10 MB, far more than the transport's windows
	for i := range writes {
		expect.Must(client.Put(ctx, fmt.Sprintf("k%03d", i), value))(t)
	}
	for next := int64(2); next < 2+writes; {
		response := expect.Must(slow.stream.Recv())(t)
		for _, e := range response.Events {
			expect.Equal(t, "revision", e.Kv.ModRevision, next)
			next++
		}
	}
}

func TestWatchResumesAfterRestart(t *testing.T) {
	for _, how := range []string{"SIGTERM", "SIGKILL"} {
		t.Run(how, func(t *testing.T) {
			server, client, ctx := start(t)
			putAll(t, ctx, client, "k=1")
			watch := client.Watch(ctx, "k", clientv3.WithPrefix(), clientv3.WithRev(2))
			idle := client.Watch(ctx, "idle", clientv3.WithCreatedNotify())
			expect.Equal(t, "created", nextResponse(t, idle).Created, true)
			wantEvents(t, watch, "PUT k=1 @2")
			if how == "SIGTERM" {
				server.Stop()
			} else {
				server.Kill()
			}
			server.Resume()
			// A second client writes before the first has had to reconnect.
			other := server.Client()
			putAll(t, ctx, other, "k=2", "idle=now")
			expect.Must(other.Delete(ctx, "k"))(t)
			wantEvents(t, watch, "PUT k=2 @3", "DELETE k @5")
			wantEvents(t, idle, "PUT idle=now @4")
		})
	}
}

func TestWatchUnderLoadAcrossRestarts(t *testing.T) {
	server, client, ctx := start(t)
	watch := client.Watch(ctx, "k", clientv3.WithPrefix(), clientv3.WithRev(2))
	result := make(chan error, 1)
	const rounds, each = 3, 100
	go func() { result <- follow(ctx, watch, 2, 1+rounds*each) }()
	for range rounds {
		writer := server.Client()
		for i := range each {
			putAll(t, ctx, writer, fmt.Sprintf("k%d=v", i))
		}
		server.Kill()
		server.Resume()
	}
	select {
	case err := <-result:
		expect.NoError(t, err)
	case <-time.After(time.Minute):
		t.Fatal("the watcher did not see every revision")
	}
}

func TestWatchCanceledByClient(t *testing.T) {
	_, client, ctx := start(t)
	watched, cancel := context.WithCancel(ctx)
	watch := client.Watch(watched, "k", clientv3.WithRev(1))
	putAll(t, ctx, client, "k=1")
	wantEvents(t, watch, "PUT k=1 @2")
	cancel()
	harness.Eventually(t, callDeadline, "channel closes", func() error {
		select {
		case _, open := <-watch:
			if !open {
				return nil
			}
		default:
		}
		return fmt.Errorf("still open")
	})
	// The other watchers of the client are not disturbed.
	putAll(t, ctx, client, "k=2")
	wantEvents(t, client.Watch(ctx, "k", clientv3.WithRev(3)), "PUT k=2 @3")
}

func TestWatchOvertakenByCompaction(t *testing.T) {
	server, client, ctx := start(t)
	slow := openWatch(t, ctx, server.Client())
	slow.send(createRequest(&pb.WatchCreateRequest{Key: []byte("k"), RangeEnd: []byte("l")}))
	slow.want("id=0 created")
	value := string(make([]byte, 32<<10))
	const writes = 600
	for i := range writes {
		expect.Must(client.Put(ctx, fmt.Sprintf("k%d", i%10), value))(t)
	}
	expect.Must(client.Compact(ctx, 1+writes, clientv3.WithCompactPhysical()))(t)
	// Either every event, or a cancel that names the compacted revision; never a gap.
	for next := int64(2); next < 2+writes; {
		response := expect.Must(slow.stream.Recv())(t)
		if response.Canceled {
			expect.Equal(t, "compact revision", response.CompactRevision, 1+writes)
			return
		}
		for _, e := range response.Events {
			expect.Equal(t, "revision", e.Kv.ModRevision, next)
			next++
		}
	}
}
