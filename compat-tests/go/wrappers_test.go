package clientsuite

import (
	"fmt"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/leasing"
	"go.etcd.io/etcd/client/v3/mirror"
	"go.etcd.io/etcd/client/v3/namespace"
	"go.etcd.io/etcd/client/v3/naming/endpoints"
	"go.etcd.io/etcd/client/v3/ordering"

	"leaseway/compat-tests/expect"
	"leaseway/compat-tests/harness"
)

func TestNamespace(t *testing.T) {
	_, client, ctx := start(t)
	putAll(t, ctx, client, "outside=1")
	kv := namespace.NewKV(client.KV, "ns/")
	watcher := namespace.NewWatcher(client.Watcher, "ns/")
	lease := namespace.NewLease(client.Lease, "ns/")
	watch := watcher.Watch(ctx, "", clientv3.WithPrefix(), clientv3.WithRev(1))
	granted := expect.Must(lease.Grant(ctx, 100))(t)
	expect.Must(kv.Put(ctx, "a", "1", clientv3.WithLease(granted.ID)))(t)
	expect.Must(kv.Txn(ctx).If(clientv3.Compare(clientv3.Value("a"), "=", "1")).Then(clientv3.OpPut("b", "2"), clientv3.OpGet("a")).Commit())(t)
	expect.Equal(t, "inside", pairs(expect.Must(kv.Get(ctx, "", clientv3.WithFromKey()))(t).Kvs), "a=1 b=2")
	expect.Equal(t, "outside", pairs(expect.Must(client.Get(ctx, "ns/", clientv3.WithPrefix()))(t).Kvs), "ns/a=1 ns/b=2")
	expect.Equal(t, "lease keys", fmt.Sprintf("%s", expect.Must(lease.TimeToLive(ctx, granted.ID, clientv3.WithAttachedKeys()))(t).Keys), "[a]")
	expect.Equal(t, "deleted", expect.Must(kv.Delete(ctx, "", clientv3.WithPrefix()))(t).Deleted, 2)
	wantEvents(t, watch, "PUT a=1 @3", "PUT b=2 @4", "DELETE a @5", "DELETE b @5")
	expect.Equal(t, "outside is untouched", expect.Must(client.Get(ctx, "outside"))(t).Count, 1)
}

func TestLeasingCache(t *testing.T) {
	server, client, ctx := start(t)
	first, closeFirst, err := leasing.NewKV(client, "leases/")
	expect.NoError(t, err)
	t.Cleanup(closeFirst)
	second, closeSecond, err := leasing.NewKV(server.Client(), "leases/")
	expect.NoError(t, err)
	t.Cleanup(closeSecond)

	putAll(t, ctx, client, "k=1")
	for range 3 {
		expect.Equal(t, "cached", pairs(expect.Must(first.Get(ctx, "k"))(t).Kvs), "k=1")
	}
	// A writer elsewhere has to take the key's lease away first.
	expect.Must(second.Put(ctx, "k", "2"))(t)
	expect.Equal(t, "after a foreign write", pairs(expect.Must(first.Get(ctx, "k"))(t).Kvs), "k=2")
	expect.Must(first.Txn(ctx).If(clientv3.Compare(clientv3.Value("k"), "=", "2")).Then(clientv3.OpPut("k", "3")).Commit())(t)
	expect.Equal(t, "after a transaction", pairs(expect.Must(second.Get(ctx, "k"))(t).Kvs), "k=3")
	expect.Must(second.Delete(ctx, "k"))(t)
	expect.Equal(t, "after a deletion", len(expect.Must(first.Get(ctx, "k"))(t).Kvs), 0)
}

func TestMirror(t *testing.T) {
	_, client, ctx := start(t)
	for i := range 2500 { // more than one page of the syncer
		if i%100 == 0 {
			var ops []clientv3.Op
			for j := range 100 {
				ops = append(ops, clientv3.OpPut(fmt.Sprintf("m/%04d", i+j), "v"))
			}
			expect.Must(client.Txn(ctx).Then(ops...).Commit())(t)
		}
	}
	syncer := mirror.NewSyncer(client, "m/", 0)
	pages, errs := syncer.SyncBase(ctx)
	copied := 0
	for page := range pages {
		copied += len(page.Kvs)
	}
	for err := range errs {
		t.Fatal(err)
	}
	expect.Equal(t, "copied", copied, 2500)
	updates := syncer.SyncUpdates(ctx)
	putAll(t, ctx, client, "m/new=1", "other=1")
	expect.Must(client.Delete(ctx, "m/0000"))(t)
	wantEvents(t, updates, "PUT m/new=1 @27", "DELETE m/0000 @29")
}

func TestOrdering(t *testing.T) {
	_, client, ctx := start(t)
	violations := 0
	kv := ordering.NewKV(client.KV, func(clientv3.Op, clientv3.OpResponse, int64) error {
		violations++
		return nil
	})
	for i := range 20 {
		expect.Must(kv.Put(ctx, "k", fmt.Sprint(i)))(t)
		expect.Equal(t, "read", pairs(expect.Must(kv.Get(ctx, "k", clientv3.WithSerializable()))(t).Kvs), fmt.Sprintf("k=%d", i))
	}
	expect.Equal(t, "violations", violations, 0)
}

func TestNamingEndpoints(t *testing.T) {
	_, client, ctx := start(t)
	manager := expect.Must(endpoints.NewManager(client, "service"))(t)
	updates := expect.Must(manager.NewWatchChannel(ctx))(t)
	lease := expect.Must(client.Grant(ctx, 100))(t).ID
	expect.NoError(t, manager.AddEndpoint(ctx, "service/a", endpoints.Endpoint{Addr: "10.0.0.1:80"}))
	expect.NoError(t, manager.AddEndpoint(ctx, "service/b", endpoints.Endpoint{Addr: "10.0.0.2:80", Metadata: "m"}, clientv3.WithLease(lease)))
	expect.NoError(t, manager.DeleteEndpoint(ctx, "service/a"))
	var seen []string
	for len(seen) < 3 {
		for _, update := range <-updates {
			seen = append(seen, fmt.Sprintf("%d %s %s", update.Op, update.Key, update.Endpoint.Addr))
		}
	}
	expect.Equal(t, "updates", strings.Join(seen, ", "), "0 service/a 10.0.0.1:80, 0 service/b 10.0.0.2:80, 1 service/a ")
	listed := expect.Must(manager.List(ctx))(t)
	expect.Equal(t, "listed", fmt.Sprintf("%d %s", len(listed), listed["service/b"].Addr), "1 10.0.0.2:80")
	expect.Must(client.Revoke(ctx, lease))(t)
	harness.Eventually(t, callDeadline, "the leased endpoint goes", func() error {
		if listed := expect.Must(manager.List(ctx))(t); len(listed) != 0 {
			return fmt.Errorf("still %v", listed)
		}
		return nil
	})
}
