package clientsuite

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"leaseway/compat-tests/expect"
)

func TestWatchFromNowAndFromHistory(t *testing.T) {
	_, client, ctx := start(t)
	putAll(t, ctx, client, "a=1", "b=1") // 2, 3
	now := client.Watch(ctx, "a", clientv3.WithCreatedNotify())
	expect.Equal(t, "created", nextResponse(t, now).Created, true)
	past := client.Watch(ctx, "a", clientv3.WithRev(2), clientv3.WithPrevKV())
	prefix := client.Watch(ctx, "", clientv3.WithPrefix(), clientv3.WithRev(3), clientv3.WithPrevKV())
	putAll(t, ctx, client, "a=2") // 4
	expect.Must(client.Delete(ctx, "a"))(t)
	putAll(t, ctx, client, "a=3")
	wantEvents(t, now, "PUT a=2 @4", "DELETE a @5", "PUT a=3 @6")
	wantEvents(t, past, "PUT a=1 @2", "PUT a=2 @4 [1 @2]", "DELETE a @5 [2 @4]", "PUT a=3 @6")
	wantEvents(t, prefix, "PUT b=1 @3", "PUT a=2 @4 [1 @2]", "DELETE a @5 [2 @4]", "PUT a=3 @6")
}

func TestWatchEventShape(t *testing.T) {
	_, client, ctx := start(t)
	lease := expect.Must(client.Grant(ctx, 3600))(t).ID
	watch := client.Watch(ctx, "a", clientv3.WithRev(1))
	expect.Must(client.Put(ctx, "a", "1", clientv3.WithLease(lease)))(t)
	expect.Must(client.Delete(ctx, "a"))(t)
	var events []*clientv3.Event
	for len(events) < 2 {
		events = append(events, nextResponse(t, watch).Events...)
	}
	expect.Equal(t, "create", events[0].IsCreate(), true)
	expect.Equal(t, "bookkeeping", versions([]*mvccpb.KeyValue{events[0].Kv}), fmt.Sprintf("a c2 m2 v1 l%d", lease))
	deletion := events[1].Kv
	expect.Equal(t, "a deletion carries key and revision only", versions([]*mvccpb.KeyValue{deletion}), "a c0 m3 v0")
	expect.Equal(t, "value of a deletion", len(deletion.Value), 0)
}

func TestWatchKeepsRevisionsWhole(t *testing.T) {
	_, client, ctx := start(t)
	putAll(t, ctx, client, "g2=0")
	live := client.Watch(ctx, "g", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	expect.Equal(t, "created", nextResponse(t, live).Created, true)
	expect.Must(client.Txn(ctx).Then(clientv3.OpPut("g3", "x"), clientv3.OpPut("g1", "y"), clientv3.OpDelete("g2")).Commit())(t)
	history := client.Watch(ctx, "g", clientv3.WithPrefix(), clientv3.WithRev(3))
	for name, watch := range map[string]clientv3.WatchChan{"live": live, "history": history} {
		response := nextResponse(t, watch)
		expect.Equal(t, name+" revision", response.Header.Revision, 3)
		var got []string
		for _, e := range response.Events {
			got = append(got, event(e))
		}
		// In the order of the operations, not of the keys.
		expect.Equal(t, name, strings.Join(got, ", "), "PUT g3=x @3, PUT g1=y @3, DELETE g2 @3")
	}
}

func TestWatchFilters(t *testing.T) {
	_, client, ctx := start(t)
	deletes := client.Watch(ctx, "k", clientv3.WithPrefix(), clientv3.WithFilterPut(), clientv3.WithPrevKV(), clientv3.WithRev(1))
	puts := client.Watch(ctx, "k", clientv3.WithPrefix(), clientv3.WithFilterDelete(), clientv3.WithRev(1))
	putAll(t, ctx, client, "k1=a", "k2=b")
	expect.Must(client.Delete(ctx, "k1"))(t)
	expect.Must(client.Txn(ctx).Then(clientv3.OpPut("k3", "c"), clientv3.OpDelete("k2")).Commit())(t)
	wantEvents(t, deletes, "DELETE k1 @4 [a @2]", "DELETE k2 @5 [b @3]")
	wantEvents(t, puts, "PUT k1=a @2", "PUT k2=b @3", "PUT k3=c @5")
}

func TestWatchFutureRevision(t *testing.T) {
	_, client, ctx := start(t)
	future := client.Watch(ctx, "k", clientv3.WithPrefix(), clientv3.WithRev(5), clientv3.WithCreatedNotify())
	expect.Equal(t, "created", nextResponse(t, future).Created, true)
	for i := range 6 {
		putAll(t, ctx, client, fmt.Sprintf("k%d=v", i)) // 2..7
	}
	wantEvents(t, future, "PUT k3=v @5", "PUT k4=v @6", "PUT k5=v @7")
}

func TestWatchCompacted(t *testing.T) {
	_, client, ctx := start(t)
	putAll(t, ctx, client, "k=1", "k=2")
	expect.Must(client.Delete(ctx, "k"))(t) // 4
	putAll(t, ctx, client, "k=3")           // 5
	expect.Must(client.Compact(ctx, 4))(t)

	// The compacted revision itself may be watched, its tombstone included.
	wantEvents(t, client.Watch(ctx, "k", clientv3.WithRev(4), clientv3.WithPrevKV()), "DELETE k @4", "PUT k=3 @5")

	response := nextResponse(t, client.Watch(ctx, "k", clientv3.WithRev(3)))
	expect.Equal(t, "canceled", response.Canceled, true)
	expect.Equal(t, "compact revision", response.CompactRevision, 4)
	expect.Equal(t, "error", response.Err().Error(), compactedText)
}

func TestWatchFragments(t *testing.T) {
	_, client, ctx := start(t)
	// One revision of about 4 MB, whatever the 1.5 MiB limit on requests: three
	// keys of 1.3 MB are too much, so lay them down first and delete them at once.
	value := strings.Repeat("x", 1300*1000)
	for i := range 3 {
		expect.Must(client.Put(ctx, fmt.Sprintf("big%d", i), value))(t)
	}
	whole := client.Watch(ctx, "big", clientv3.WithPrefix(), clientv3.WithRev(5), clientv3.WithPrevKV())
	split := client.Watch(ctx, "big", clientv3.WithPrefix(), clientv3.WithRev(5), clientv3.WithPrevKV(), clientv3.WithFragment())
	expect.Equal(t, "deleted", expect.Must(client.Delete(ctx, "big", clientv3.WithPrefix()))(t).Deleted, 3)
	for name, watch := range map[string]clientv3.WatchChan{"whole": whole, "split": split} {
		response := nextResponse(t, watch) // the client joins the fragments
		expect.Equal(t, name, len(response.Events), 3)
		for i, e := range response.Events {
			expect.Equal(t, name+" key", string(e.Kv.Key), fmt.Sprintf("big%d", i))
			expect.Equal(t, name+" previous", string(e.PrevKv.Value) == value, true)
		}
	}
}

func TestWatchFragmentsOnTheWire(t *testing.T) {
	_, client, ctx := start(t)
	value := []byte(strings.Repeat("x", 1300*1000))
	for i := range 3 {
		expect.Must(client.Put(ctx, fmt.Sprintf("big%d", i), string(value)))(t)
	}
	watch := expect.Must(pb.NewWatchClient(client.ActiveConnection()).Watch(ctx))(t)
	expect.NoError(t, watch.Send(createRequest(&pb.WatchCreateRequest{
		Key: []byte("big"), RangeEnd: []byte("bih"), StartRevision: 5, PrevKv: true, Fragment: true,
	})))
	expect.Equal(t, "created", expect.Must(watch.Recv())(t).Created, true)
	expect.Must(client.Delete(ctx, "big", clientv3.WithPrefix()))(t)
	events := 0
	for fragment := true; fragment; {
		response := expect.Must(watch.Recv())(t)
		events += len(response.Events)
		fragment = response.Fragment
		expect.Equal(t, "one event a message", len(response.Events), 1)
		expect.Equal(t, "more to come", fragment, events < 3)
	}
	expect.Equal(t, "events", events, 3)
}

func TestWatchProgress(t *testing.T) {
	_, client, ctx := start(t)
	watches := []clientv3.WatchChan{
		client.Watch(ctx, "a", clientv3.WithCreatedNotify()),
		client.Watch(ctx, "b", clientv3.WithCreatedNotify()),
	}
	for _, watch := range watches {
		expect.Equal(t, "created", nextResponse(t, watch).Created, true)
	}
	revision := putAll(t, ctx, client, "z=1", "z=2", "z=3") // seen by neither
	// The request may reach the server before its watchers have caught up, and is
	// then not answered: ask until it is.
	asked, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		for asked.Err() == nil {
			_ = client.RequestProgress(asked)
			select {
			case <-asked.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	}()
	for _, watch := range watches {
		response := nextResponse(t, watch)
		expect.Equal(t, "is progress", response.IsProgressNotify(), true)
		expect.Equal(t, "revision", response.Header.Revision, revision)
	}
}

func TestWatchPeriodicProgress(t *testing.T) {
	_, client, ctx := start(t, "--watch-progress-notify-interval=300ms")
	revision := putAll(t, ctx, client, "other=1")
	watch := client.Watch(ctx, "idle", clientv3.WithProgressNotify())
	for range 2 {
		response := nextResponse(t, watch)
		expect.Equal(t, "is progress", response.IsProgressNotify(), true)
		expect.Equal(t, "revision", response.Header.Revision, revision)
	}
}
