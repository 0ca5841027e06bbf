package clientsuite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"leaseway/compat-tests/harness"
)

const (
	leaseNotFound = "etcdserver: requested lease not found"
	// shortestTTL is what a server with default settings grants at least.
	shortestTTL = 2
	maxTTL      = 9_000_000_000
)

func TestLeaseGrant(t *testing.T) {
	_, client, ctx := start(t)
	lease := pb.NewLeaseClient(client.ActiveConnection())
	generated := must(lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: 30}))(t)
	equal(t, "generated id is positive", generated.ID > 0, true)
	equal(t, "ttl", generated.TTL, 30)
	equal(t, "a grant makes no revision", generated.Header.Revision, 1)
	chosen := must(lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: 30, ID: 77}))(t)
	equal(t, "chosen id", chosen.ID, 77)
	_, err := lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: 30, ID: 77})
	wantStatus(t, err, codes.FailedPrecondition, "etcdserver: lease already exists")
	equal(t, "negative id", must(lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: 30, ID: -5}))(t).ID, -5)
	for _, ttl := range []int64{1, 0, -1} {
		equal(t, fmt.Sprintf("ttl %d", ttl), must(lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: ttl}))(t).TTL, shortestTTL)
	}
	equal(t, "longest", must(lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: maxTTL}))(t).TTL, maxTTL)
	_, err = lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: maxTTL + 1})
	wantStatus(t, err, codes.OutOfRange, "etcdserver: too large lease TTL")
}

func TestLeaseListAndTimeToLive(t *testing.T) {
	_, client, ctx := start(t)
	first := must(client.Grant(ctx, 100))(t).ID
	second := must(client.Grant(ctx, 200))(t).ID
	must(client.Put(ctx, "b", "1", clientv3.WithLease(first)))(t)
	must(client.Put(ctx, "a", "1", clientv3.WithLease(first)))(t)
	must(client.Put(ctx, "c", "1", clientv3.WithLease(second)))(t)

	var ids []clientv3.LeaseID
	for _, status := range must(client.Leases(ctx))(t).Leases {
		ids = append(ids, status.ID)
	}
	slices.Sort(ids)
	want := []clientv3.LeaseID{first, second}
	slices.Sort(want)
	equal(t, "leases", fmt.Sprint(ids), fmt.Sprint(want))

	plain := must(client.TimeToLive(ctx, first))(t)
	equal(t, "granted", plain.GrantedTTL, 100)
	equal(t, "remaining", plain.TTL > 90 && plain.TTL <= 100, true)
	equal(t, "keys unless asked", len(plain.Keys), 0)
	var keys []string
	for _, key := range must(client.TimeToLive(ctx, first, clientv3.WithAttachedKeys()))(t).Keys {
		keys = append(keys, string(key))
	}
	slices.Sort(keys)
	equal(t, "keys", fmt.Sprint(keys), "[a b]")

	unknown := must(client.TimeToLive(ctx, 404, clientv3.WithAttachedKeys()))(t)
	equal(t, "ttl of an unknown lease", unknown.TTL, -1)
	equal(t, "granted ttl of an unknown lease", unknown.GrantedTTL, 0)
}

func TestLeaseRevoke(t *testing.T) {
	_, client, ctx := start(t)
	id := must(client.Grant(ctx, 100))(t).ID
	for _, key := range []string{"c", "a", "b"} {
		must(client.Put(ctx, key, "1", clientv3.WithLease(id)))(t)
	}
	watch := client.Watch(ctx, "", clientv3.WithPrefix(), clientv3.WithRev(5), clientv3.WithPrevKV())
	revoked := must(client.Revoke(ctx, id))(t)
	equal(t, "one revision", revoked.Header.Revision, 5)
	wantEvents(t, watch, "DELETE a @5 [1 @3]", "DELETE b @5 [1 @4]", "DELETE c @5 [1 @2]")
	_, err := client.Revoke(ctx, id)
	wantStatus(t, err, codes.NotFound, leaseNotFound)
	_, err = client.Put(ctx, "a", "1", clientv3.WithLease(id))
	wantStatus(t, err, codes.NotFound, leaseNotFound)
	_, err = client.Revoke(ctx, 0)
	wantStatus(t, err, codes.NotFound, leaseNotFound)

	withoutKeys := must(client.Grant(ctx, 100))(t).ID
	equal(t, "no keys, no revision", must(client.Revoke(ctx, withoutKeys))(t).Header.Revision, 5)
}

func TestLeaseAttachment(t *testing.T) {
	_, client, ctx := start(t)
	old := must(client.Grant(ctx, 100))(t).ID
	young := must(client.Grant(ctx, 100))(t).ID
	for _, key := range []string{"moved", "freed", "deleted", "kept"} {
		must(client.Put(ctx, key, "1", clientv3.WithLease(old)))(t)
	}
	must(client.Put(ctx, "moved", "2", clientv3.WithLease(young)))(t)
	must(client.Put(ctx, "freed", "2"))(t)
	must(client.Delete(ctx, "deleted"))(t)
	must(client.Put(ctx, "deleted", "reborn"))(t)
	must(client.Put(ctx, "kept", "2", clientv3.WithIgnoreLease()))(t)
	keys := must(client.TimeToLive(ctx, old, clientv3.WithAttachedKeys()))(t).Keys
	equal(t, "attached", fmt.Sprintf("%s", keys), "[kept]")
	must(client.Revoke(ctx, old))(t)
	equal(t, "left", pairs(must(client.Get(ctx, "", clientv3.WithPrefix()))(t).Kvs), "deleted=reborn freed=2 moved=2")
	must(client.Revoke(ctx, young))(t)
	equal(t, "left", pairs(must(client.Get(ctx, "", clientv3.WithPrefix()))(t).Kvs), "deleted=reborn freed=2")
}

func TestLeaseInsideTxn(t *testing.T) {
	_, client, ctx := start(t)
	id := must(client.Grant(ctx, 100))(t).ID
	other := must(client.Grant(ctx, 100))(t).ID
	must(client.Put(ctx, "a", "1", clientv3.WithLease(id)))(t)
	// Detached and moved inside one transaction.
	must(client.Txn(ctx).Then(
		clientv3.OpPut("a", "2"),
		clientv3.OpPut("b", "2", clientv3.WithLease(id)),
		clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut("c", "2", clientv3.WithLease(other))}, nil),
	).Commit())(t)
	must(client.Revoke(ctx, id))(t)
	equal(t, "left", pairs(must(client.Get(ctx, "", clientv3.WithPrefix()))(t).Kvs), "a=2 c=2")
}

func TestLeaseKeepAliveOnce(t *testing.T) {
	_, client, ctx := start(t)
	id := must(client.Grant(ctx, 50))(t).ID
	equal(t, "ttl", must(client.KeepAliveOnce(ctx, id))(t).TTL, 50)
	_, err := client.KeepAliveOnce(ctx, 404)
	wantStatus(t, err, codes.NotFound, leaseNotFound)
}

func TestLeaseKeepAliveStream(t *testing.T) {
	_, client, ctx := start(t)
	id := must(client.Grant(ctx, 50))(t).ID
	stream := must(pb.NewLeaseClient(client.ActiveConnection()).LeaseKeepAlive(ctx))(t)
	// Unknown leases are answered with a TTL of zero and leave the stream usable.
	for _, step := range []struct{ id, ttl int64 }{{404, 0}, {int64(id), 50}, {0, 0}, {int64(id), 50}} {
		noError(t, stream.Send(&pb.LeaseKeepAliveRequest{ID: step.id}))
		answer := must(stream.Recv())(t)
		equal(t, "id", answer.ID, step.id)
		equal(t, "ttl", answer.TTL, step.ttl)
	}
}

func TestLeaseExpires(t *testing.T) {
	_, client, ctx := start(t)
	watch := client.Watch(ctx, "", clientv3.WithPrefix(), clientv3.WithRev(1))
	before := time.Now()
	id := must(client.Grant(ctx, shortestTTL))(t).ID
	must(client.Txn(ctx).Then(
		clientv3.OpPut("b", "1", clientv3.WithLease(id)),
		clientv3.OpPut("a", "1", clientv3.WithLease(id)),
	).Commit())(t)
	wantEvents(t, watch, "PUT b=1 @2", "PUT a=1 @2")
	wantEvents(t, watch, "DELETE a @3", "DELETE b @3")
	lived := time.Since(before)
	equal(t, fmt.Sprintf("not early (%v)", lived), lived >= shortestTTL*time.Second, true)
	equal(t, fmt.Sprintf("not very late (%v)", lived), lived < (shortestTTL+4)*time.Second, true)
	equal(t, "ttl", must(client.TimeToLive(ctx, id))(t).TTL, -1)
	_, err := client.KeepAliveOnce(ctx, id)
	wantStatus(t, err, codes.NotFound, leaseNotFound)
	equal(t, "leases", len(must(client.Leases(ctx))(t).Leases), 0)
}

func TestLeaseKeptAliveOutlivesItsTTL(t *testing.T) {
	_, client, ctx := start(t)
	id := must(client.Grant(ctx, shortestTTL))(t).ID
	must(client.Put(ctx, "k", "1", clientv3.WithLease(id)))(t)
	watch := client.Watch(ctx, "k", clientv3.WithRev(3))
	kept, stop := context.WithCancel(ctx)
	defer stop()
	answers := must(client.KeepAlive(kept, id))(t)
	deadline := time.Now().Add(3 * shortestTTL * time.Second)
	for time.Now().Before(deadline) {
		select {
		case answer, open := <-answers:
			equal(t, "open", open, true)
			equal(t, "ttl", answer.TTL, shortestTTL)
		case response := <-watch:
			t.Fatalf("deleted while kept alive: %v", response.Events)
		case <-time.After(callDeadline):
			t.Fatal("no answer")
		}
	}
	stop()
	wantEvents(t, watch, "DELETE k @3")
}

func TestLeaseRevokedUnderKeepAlive(t *testing.T) {
	_, client, ctx := start(t)
	id := must(client.Grant(ctx, shortestTTL))(t).ID
	answers := must(client.KeepAlive(ctx, id))(t)
	must(client.Revoke(ctx, id))(t)
	harness.Eventually(t, callDeadline, "keep-alive channel closes", func() error {
		for {
			select {
			case _, open := <-answers:
				if !open {
					return nil
				}
			default:
				return errors.New("still open")
			}
		}
	})
}

func TestLeaseWithManyKeys(t *testing.T) {
	_, client, ctx := start(t)
	id := must(client.Grant(ctx, 100))(t).ID
	const batches = 40
	for batch := range batches {
		var ops []clientv3.Op
		for i := range 100 {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("k%02d/%02d", batch, i), "v", clientv3.WithLease(id)))
		}
		must(client.Txn(ctx).Then(ops...).Commit())(t)
	}
	equal(t, "keys", len(must(client.TimeToLive(ctx, id, clientv3.WithAttachedKeys()))(t).Keys), batches*100)
	watch := client.Watch(ctx, "k", clientv3.WithPrefix(), clientv3.WithRev(batches+2))
	equal(t, "one revision", must(client.Revoke(ctx, id))(t).Header.Revision, batches+2)
	response := nextResponse(t, watch)
	equal(t, "one response", len(response.Events), batches*100)
	for i, e := range response.Events {
		equal(t, "sorted by key", string(e.Kv.Key), fmt.Sprintf("k%02d/%02d", i/100, i%100))
	}
	equal(t, "left", must(client.Get(ctx, "k", clientv3.WithPrefix()))(t).Count, 0)
}

func TestLeaseSurvivesRestart(t *testing.T) {
	for _, how := range []string{"SIGTERM", "SIGKILL"} {
		t.Run(how, func(t *testing.T) {
			server, client, ctx := start(t)
			long := must(client.Grant(ctx, 100))(t).ID
			short := must(client.Grant(ctx, 3))(t).ID
			must(client.Put(ctx, "long", "1", clientv3.WithLease(long)))(t)
			must(client.Put(ctx, "short", "1", clientv3.WithLease(short)))(t)
			watch := client.Watch(ctx, "", clientv3.WithPrefix(), clientv3.WithRev(4))
			if how == "SIGTERM" {
				server.Stop()
			} else {
				server.Kill()
			}
			server.Resume()
			resumed := time.Now()
			after := server.Client()
			status := must(after.TimeToLive(ctx, long, clientv3.WithAttachedKeys()))(t)
			equal(t, "granted", status.GrantedTTL, 100)
			equal(t, "a restart does not shorten", status.TTL >= 98, true)
			equal(t, "keys", fmt.Sprintf("%s", status.Keys), "[long]")
			equal(t, "keep-alive", must(after.KeepAliveOnce(ctx, long))(t).TTL, 100)
			// The short one still ends, counted anew from the restart at the latest.
			wantEvents(t, watch, "DELETE short @4")
			equal(t, "in time", time.Since(resumed) < 8*time.Second, true)
			equal(t, "left", pairs(must(after.Get(ctx, "", clientv3.WithPrefix()))(t).Kvs), "long=1")
		})
	}
}

func TestManyLeasesExpireTogether(t *testing.T) {
	_, client, ctx := start(t)
	const leases = 1000
	watch := client.Watch(ctx, "k", clientv3.WithPrefix(), clientv3.WithFilterPut(), clientv3.WithRev(1))
	var group sync.WaitGroup
	for worker := range 20 {
		group.Go(func() {
			for i := worker; i < leases; i += 20 {
				lease, err := client.Grant(ctx, shortestTTL)
				if err == nil {
					_, err = client.Put(ctx, fmt.Sprintf("k%04d", i), "v", clientv3.WithLease(lease.ID))
				}
				if err != nil {
					t.Errorf("lease %d: %v", i, err)
					return
				}
			}
		})
	}
	group.Wait()
	if t.Failed() {
		return
	}
	// Writes flow on while the leases end.
	stop, slowest := make(chan struct{}), make(chan time.Duration, 1)
	go func() {
		var longest time.Duration
		for {
			select {
			case <-stop:
				slowest <- longest
				return
			default:
			}
			began := time.Now()
			if _, err := client.Put(ctx, "other", "v"); err != nil {
				t.Errorf("put: %v", err)
				slowest <- longest
				return
			}
			longest = max(longest, time.Since(began))
		}
	}()
	revisions := map[int64]bool{}
	for len(revisions) < leases {
		for _, e := range nextResponse(t, watch).Events {
			equal(t, "a revision of its own for every lease", revisions[e.Kv.ModRevision], false)
			revisions[e.Kv.ModRevision] = true
		}
	}
	close(stop)
	longest := <-slowest
	equal(t, fmt.Sprintf("puts went on (slowest %v)", longest), longest < 5*time.Second, true)
	equal(t, "left", must(client.Get(ctx, "k", clientv3.WithPrefix()))(t).Count, 0)
}
