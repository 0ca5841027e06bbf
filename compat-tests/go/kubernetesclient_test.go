package clientsuite

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.uber.org/zap"

	"leaseway/compat-tests/expect"
)

// TestKubernetesInterface covers the narrow interface through which the API
// server uses the client.
func TestKubernetesInterface(t *testing.T) {
	server, _, ctx := start(t)
	client := expect.Must(kubernetes.New(clientv3.Config{Endpoints: []string{server.Endpoint}, DialTimeout: 10 * time.Second, Logger: zap.NewNop()}))(t)
	t.Cleanup(func() { _ = client.Close() })

	created := expect.Must(client.Kubernetes.OptimisticPut(ctx, "/r/a", []byte("1"), 0, kubernetes.PutOptions{}))(t)
	expect.Equal(t, "created", fmt.Sprint(created.Succeeded, created.Revision), "true 2")
	again := expect.Must(client.Kubernetes.OptimisticPut(ctx, "/r/a", []byte("2"), 0, kubernetes.PutOptions{GetOnFailure: true}))(t)
	expect.Equal(t, "not created twice", fmt.Sprint(again.Succeeded, again.Revision), "false 2")
	expect.Equal(t, "the present value", string(again.KV.Value), "1")
	updated := expect.Must(client.Kubernetes.OptimisticPut(ctx, "/r/a", []byte("2"), 2, kubernetes.PutOptions{GetOnFailure: true}))(t)
	expect.Equal(t, "updated", fmt.Sprint(updated.Succeeded, updated.Revision), "true 3")

	missing := expect.Must(client.Kubernetes.Get(ctx, "/r/none", kubernetes.GetOptions{}))(t)
	expect.Equal(t, "missing", fmt.Sprint(missing.KV == nil, missing.Revision), "true 3")
	old := expect.Must(client.Kubernetes.Get(ctx, "/r/a", kubernetes.GetOptions{Revision: 2}))(t)
	expect.Equal(t, "old value", string(old.KV.Value), "1")

	for i := range 10 {
		expect.Must(client.Kubernetes.OptimisticPut(ctx, fmt.Sprintf("/r/k%d", i), []byte("v"), 0, kubernetes.PutOptions{}))(t)
	}
	expect.Equal(t, "count", expect.Must(client.Kubernetes.Count(ctx, "/r/", kubernetes.CountOptions{}))(t), 11)
	page := expect.Must(client.Kubernetes.List(ctx, "/r/", kubernetes.ListOptions{Limit: 4}))(t)
	expect.Equal(t, "first page", fmt.Sprint(len(page.Kvs), page.Count, page.Revision), "4 11 13")
	// Pages are read at the revision of the first, whatever is written meanwhile.
	expect.Must(client.Kubernetes.OptimisticPut(ctx, "/r/k99", []byte("v"), 0, kubernetes.PutOptions{}))(t)
	rest := expect.Must(client.Kubernetes.List(ctx, "/r/", kubernetes.ListOptions{Revision: page.Revision, Continue: string(page.Kvs[3].Key) + "\x00"}))(t)
	expect.Equal(t, "rest", fmt.Sprint(len(rest.Kvs), rest.Count), "7 7")

	stale := expect.Must(client.Kubernetes.OptimisticDelete(ctx, "/r/a", 2, kubernetes.DeleteOptions{GetOnFailure: true}))(t)
	expect.Equal(t, "stale delete", fmt.Sprintf("%v %s", stale.Succeeded, stale.KV.Value), "false 2")
	deleted := expect.Must(client.Kubernetes.OptimisticDelete(ctx, "/r/a", 3, kubernetes.DeleteOptions{}))(t)
	expect.Equal(t, "deleted", fmt.Sprint(deleted.Succeeded, deleted.Revision), "true 15")
	_, err := client.Kubernetes.Get(ctx, "/r/a", kubernetes.GetOptions{Revision: 99})
	wantStatus(t, err, codes.OutOfRange, futureText)
}

// TestCompactionKey is the exchange by which several API servers agree on who
// compacts: it relies on exact versions.
func TestCompactionKey(t *testing.T) {
	_, client, ctx := start(t)
	compact := func(version int64, revision string) *clientv3.TxnResponse {
		t.Helper()
		return expect.Must(client.Txn(ctx).
			If(clientv3.Compare(clientv3.Version("compact_rev_key"), "=", version)).
			Then(clientv3.OpPut("compact_rev_key", revision)).
			Else(clientv3.OpGet("compact_rev_key")).Commit())(t)
	}
	expect.Equal(t, "first", compact(0, "0").Succeeded, true)
	expect.Equal(t, "second", compact(1, "100").Succeeded, true)
	lost := compact(1, "200")
	expect.Equal(t, "lost", lost.Succeeded, false)
	winner := lost.Responses[0].GetResponseRange().Kvs[0]
	expect.Equal(t, "winner", fmt.Sprintf("v%d %s", winner.Version, winner.Value), "v2 100")
}
