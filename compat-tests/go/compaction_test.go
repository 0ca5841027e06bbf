package clientsuite

import (
	"fmt"
	"math"
	"testing"

	"google.golang.org/grpc/codes"

	clientv3 "go.etcd.io/etcd/client/v3"

	"leaseway/compat-tests/expect"
	"leaseway/compat-tests/harness"
)

const (
	compactedText = "etcdserver: mvcc: required revision has been compacted"
	futureText    = "etcdserver: mvcc: required revision is a future revision"
)

func TestCompaction(t *testing.T) {
	for _, mode := range []struct {
		name    string
		options []clientv3.CompactOption
	}{{"scheduled", nil}, {"physical", []clientv3.CompactOption{clientv3.WithCompactPhysical()}}} {
		t.Run(mode.name, func(t *testing.T) {
			_, client, ctx := start(t)
			putAll(t, ctx, client, "a=1", "b=1", "a=2") // 2, 3, 4
			expect.Must(client.Delete(ctx, "b"))(t)     // 5
			putAll(t, ctx, client, "a=3")               // 6
			expect.Equal(t, "revision", expect.Must(client.Compact(ctx, 4, mode.options...))(t).Header.Revision, 6)

			_, err := client.Get(ctx, "a", clientv3.WithRev(3))
			wantStatus(t, err, codes.OutOfRange, compactedText)
			at := expect.Must(client.Get(ctx, "", clientv3.WithPrefix(), clientv3.WithRev(4)))(t)
			expect.Equal(t, "the compacted revision itself can be read", pairs(at.Kvs), "a=2 b=1")
			expect.Equal(t, "after it", pairs(expect.Must(client.Get(ctx, "", clientv3.WithPrefix(), clientv3.WithRev(5)))(t).Kvs), "a=2")

			_, err = client.Compact(ctx, 4, mode.options...)
			wantStatus(t, err, codes.OutOfRange, compactedText)
			_, err = client.Compact(ctx, 7, mode.options...)
			wantStatus(t, err, codes.OutOfRange, futureText)

			expect.Must(client.Compact(ctx, 6, mode.options...))(t)
			for _, revision := range []int64{0, 6} {
				got := expect.Must(client.Get(ctx, "", clientv3.WithPrefix(), clientv3.WithRev(revision)))(t)
				expect.Equal(t, "compacted to the head", versions(got.Kvs), "a c2 m6 v3")
			}
			putAll(t, ctx, client, "b=2")
			expect.Equal(t, "a deleted key starts over", versions(expect.Must(client.Get(ctx, "b"))(t).Kvs), "b c7 m7 v1")
		})
	}
}

func TestCompactionOfAnEmptyStore(t *testing.T) {
	_, client, ctx := start(t)
	expect.Must(client.Compact(ctx, 1))(t)
	_, err := client.Compact(ctx, 1)
	wantStatus(t, err, codes.OutOfRange, compactedText)
	_, err = client.Compact(ctx, -1)
	wantStatus(t, err, codes.OutOfRange, compactedText)
	expect.Equal(t, "revision", expect.Must(client.Get(ctx, "a"))(t).Header.Revision, 1)
}

// TestCompactionOfNothing covers revisions that no key can have.
func TestCompactionOfNothing(t *testing.T) {
	for _, physical := range []bool{false, true} {
		t.Run(fmt.Sprint("physical ", physical), func(t *testing.T) {
			_, client, ctx := start(t)
			var options []clientv3.CompactOption
			if physical {
				options = append(options, clientv3.WithCompactPhysical())
			}
			putAll(t, ctx, client, "a=1", "a=2") // 2, 3
			for _, revision := range []int64{-1, -2, math.MinInt64} {
				_, err := client.Compact(ctx, revision, options...)
				wantStatus(t, err, codes.OutOfRange, compactedText)
			}
			_, err := client.Compact(ctx, math.MaxInt64, options...)
			wantStatus(t, err, codes.OutOfRange, futureText)
			expect.Equal(t, "revision", expect.Must(client.Compact(ctx, 0, options...))(t).Header.Revision, 3)
			_, err = client.Compact(ctx, 0, options...)
			wantStatus(t, err, codes.OutOfRange, compactedText)
			_, err = client.Compact(ctx, -1, options...)
			wantStatus(t, err, codes.OutOfRange, compactedText)
			expect.Equal(t, "all history", pairs(expect.Must(client.Get(ctx, "a", clientv3.WithRev(2)))(t).Kvs), "a=1")
			expect.Must(client.Compact(ctx, 1, options...))(t)
			expect.Must(client.Compact(ctx, 3, options...))(t)
			_, err = client.Get(ctx, "a", clientv3.WithRev(2))
			wantStatus(t, err, codes.OutOfRange, compactedText)
			expect.Equal(t, "the newest", pairs(expect.Must(client.Get(ctx, "a"))(t).Kvs), "a=2")
		})
	}
}

func TestCompactedReadInsideTxn(t *testing.T) {
	_, client, ctx := start(t)
	putAll(t, ctx, client, "a=1", "a=2", "a=3")
	expect.Must(client.Compact(ctx, 3))(t)
	_, err := client.Txn(ctx).Then(clientv3.OpPut("b", "1"), clientv3.OpGet("a", clientv3.WithRev(2))).Commit()
	wantStatus(t, err, codes.OutOfRange, compactedText)
	expect.Equal(t, "nothing applied", expect.Must(client.Get(ctx, "b"))(t).Count, 0)
}

func TestPhysicalCompactionOfLargeHistory(t *testing.T) {
	_, client, ctx := start(t)
	const rounds, keys = 20, 100
	var revision int64
	for round := range rounds {
		var ops []clientv3.Op
		for key := range keys {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("k%03d", key), fmt.Sprintf("%d", round)))
		}
		revision = expect.Must(client.Txn(ctx).Then(ops...).Commit())(t).Header.Revision
	}
	expect.Must(client.Compact(ctx, revision-1, clientv3.WithCompactPhysical()))(t)
	previous := expect.Must(client.Get(ctx, "k", clientv3.WithPrefix(), clientv3.WithRev(revision-1)))(t)
	expect.Equal(t, "keys", previous.Count, keys)
	for _, kv := range previous.Kvs {
		expect.Equal(t, "value", string(kv.Value), fmt.Sprintf("%d", rounds-2))
		expect.Equal(t, "version", kv.Version, rounds-1)
	}
}

func TestPeriodicAutoCompaction(t *testing.T) {
	server, client, ctx := start(t, "--auto-compaction-mode=periodic", "--auto-compaction-retention=1s")
	revision := putAll(t, ctx, client, "a=1", "a=2", "a=3")
	harness.Eventually(t, callDeadline, "history is given up", func() error {
		putAll(t, ctx, client, "tick=1") // what is old is counted from what was current
		if compacted := expect.Must(client.HashKV(ctx, server.Endpoint, 0))(t).CompactRevision; compacted < revision {
			return fmt.Errorf("compacted to %d", compacted)
		}
		return nil
	})
	_, err := client.Get(ctx, "a", clientv3.WithRev(revision-1))
	wantStatus(t, err, codes.OutOfRange, compactedText)
	expect.Equal(t, "value", pairs(expect.Must(client.Get(ctx, "a"))(t).Kvs), "a=3")
}

func TestAutoCompactionSettings(t *testing.T) {
	// The revision mode acts every five minutes only; here it has to be taken.
	_, client, ctx := start(t, "--auto-compaction-mode=revision", "--auto-compaction-retention=1000")
	expect.Equal(t, "serves", putAll(t, ctx, client, "a=1"), 2)
}
