package clientsuite

import (
	"fmt"
	"strconv"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"leaseway/compat-tests/expect"
)

// maxTxnOps is the default limit of operations in one transaction.
const maxTxnOps = 128

func TestTxnCompares(t *testing.T) {
	_, client, ctx := start(t)
	lease := expect.Must(client.Grant(ctx, 3600))(t).ID
	putAll(t, ctx, client, "a=1", "a=5") // c2 m3 v2
	expect.Must(client.Put(ctx, "b", "7", clientv3.WithLease(lease)))(t)
	for _, test := range []struct {
		name    string
		compare clientv3.Cmp
		want    bool
	}{
		{"value =", clientv3.Compare(clientv3.Value("a"), "=", "5"), true},
		{"value !=", clientv3.Compare(clientv3.Value("a"), "!=", "5"), false},
		{"value >", clientv3.Compare(clientv3.Value("a"), ">", "49"), true},
		{"value <", clientv3.Compare(clientv3.Value("a"), "<", "49"), false},
		{"version =", clientv3.Compare(clientv3.Version("a"), "=", 2), true},
		{"version >", clientv3.Compare(clientv3.Version("a"), ">", 2), false},
		{"create =", clientv3.Compare(clientv3.CreateRevision("a"), "=", 2), true},
		{"create <", clientv3.Compare(clientv3.CreateRevision("a"), "<", 3), true},
		{"mod =", clientv3.Compare(clientv3.ModRevision("a"), "=", 3), true},
		{"mod !=", clientv3.Compare(clientv3.ModRevision("a"), "!=", 2), true},
		{"lease =", clientv3.Compare(clientv3.LeaseValue("b"), "=", lease), true},
		{"no lease", clientv3.Compare(clientv3.LeaseValue("a"), "=", 0), true},
		{"missing version", clientv3.Compare(clientv3.Version("zz"), "=", 0), true},
		{"missing create", clientv3.Compare(clientv3.CreateRevision("zz"), "=", 0), true},
		{"missing mod", clientv3.Compare(clientv3.ModRevision("zz"), ">", 0), false},
		{"missing value", clientv3.Compare(clientv3.Value("zz"), "=", ""), false},
		{"missing value differs", clientv3.Compare(clientv3.Value("zz"), "!=", ""), false},
		{"range all", clientv3.Compare(clientv3.CreateRevision("a").WithRange("c"), ">", 1), true},
		{"range one fails", clientv3.Compare(clientv3.CreateRevision("a").WithRange("c"), ">", 2), false},
		{"prefix", clientv3.Compare(clientv3.Value("a").WithPrefix(), "=", "5"), true},
		{"empty range version", clientv3.Compare(clientv3.Version("x").WithRange("y"), "=", 0), true},
		{"empty range positive", clientv3.Compare(clientv3.Version("x").WithRange("y"), ">", 0), false},
		{"empty range value", clientv3.Compare(clientv3.Value("x").WithRange("y"), "=", ""), false},
	} {
		answer := expect.Must(client.Txn(ctx).If(test.compare).Then(clientv3.OpGet("a")).Else(clientv3.OpGet("b")).Commit())(t)
		expect.Equal(t, test.name, answer.Succeeded, test.want)
		key := "b"
		if test.want {
			key = "a"
		}
		expect.Equal(t, test.name+" branch", string(answer.Responses[0].GetResponseRange().Kvs[0].Key), key)
		expect.Equal(t, test.name+" revision", answer.Header.Revision, 4)
	}
}

func TestTxnIsOneRevision(t *testing.T) {
	_, client, ctx := start(t)
	putAll(t, ctx, client, "a=1", "b=1")
	answer := expect.Must(client.Txn(ctx).
		If(clientv3.Compare(clientv3.Value("a"), "=", "1"), clientv3.Compare(clientv3.Value("b"), "=", "1")).
		Then(
			clientv3.OpPut("c", "1", clientv3.WithPrevKV()),
			clientv3.OpGet("", clientv3.WithPrefix()),
			clientv3.OpPut("a", "2", clientv3.WithPrevKV()),
			clientv3.OpDelete("b", clientv3.WithPrevKV()),
			clientv3.OpDelete("b"),
			clientv3.OpGet("", clientv3.WithPrefix()),
			clientv3.OpGet("", clientv3.WithPrefix(), clientv3.WithRev(3)),
		).Commit())(t)
	expect.Equal(t, "succeeded", answer.Succeeded, true)
	expect.Equal(t, "revision", answer.Header.Revision, 4)
	expect.Equal(t, "new key has no previous", answer.Responses[0].GetResponsePut().PrevKv == nil, true)
	expect.Equal(t, "put revision", answer.Responses[0].GetResponsePut().Header.Revision, 4)
	expect.Equal(t, "seen after the first put", versions(answer.Responses[1].GetResponseRange().Kvs), "a c2 m2 v1, b c3 m3 v1, c c4 m4 v1")
	expect.Equal(t, "previous of a", string(answer.Responses[2].GetResponsePut().PrevKv.Value), "1")
	expect.Equal(t, "previous of b", pairs(answer.Responses[3].GetResponseDeleteRange().PrevKvs), "b=1")
	expect.Equal(t, "second delete", answer.Responses[4].GetResponseDeleteRange().Deleted, 0)
	expect.Equal(t, "seen at the end", versions(answer.Responses[5].GetResponseRange().Kvs), "a c2 m4 v2, c c4 m4 v1")
	expect.Equal(t, "history", pairs(answer.Responses[6].GetResponseRange().Kvs), "a=1 b=1")
	expect.Equal(t, "stored", versions(expect.Must(client.Get(ctx, "", clientv3.WithPrefix()))(t).Kvs), "a c2 m4 v2, c c4 m4 v1")
}

func TestTxnWithoutEffectKeepsTheRevision(t *testing.T) {
	_, client, ctx := start(t)
	putAll(t, ctx, client, "a=1")
	empty := expect.Must(client.Txn(ctx).Commit())(t)
	expect.Equal(t, "empty succeeds", empty.Succeeded, true)
	expect.Equal(t, "responses", len(empty.Responses), 0)
	for name, op := range map[string]clientv3.Op{"read": clientv3.OpGet("a"), "delete of nothing": clientv3.OpDelete("zz")} {
		answer := expect.Must(client.Txn(ctx).Then(op).Commit())(t)
		expect.Equal(t, name, answer.Header.Revision, 2)
	}
}

func TestTxnNested(t *testing.T) {
	_, client, ctx := start(t)
	putAll(t, ctx, client, "a=1")
	isOne := clientv3.Compare(clientv3.Value("a"), "=", "1")
	isTwo := clientv3.Compare(clientv3.Value("a"), "=", "2")
	answer := expect.Must(client.Txn(ctx).If(isTwo).Else(
		clientv3.OpTxn([]clientv3.Cmp{isOne},
			[]clientv3.Op{clientv3.OpPut("b", "then"), clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut("c", "deep")}, nil)},
			[]clientv3.Op{clientv3.OpPut("b", "else")}),
		clientv3.OpGet("", clientv3.WithPrefix()),
	).Commit())(t)
	expect.Equal(t, "outer", answer.Succeeded, false)
	inner := answer.Responses[0].GetResponseTxn()
	expect.Equal(t, "inner", inner.Succeeded, true)
	expect.Equal(t, "innermost", inner.Responses[1].GetResponseTxn().Succeeded, true)
	expect.Equal(t, "sees the inner writes", pairs(answer.Responses[1].GetResponseRange().Kvs), "a=1 b=then c=deep")
	expect.Equal(t, "one revision", versions(expect.Must(client.Get(ctx, "b", clientv3.WithFromKey()))(t).Kvs), "b c3 m3 v1, c c3 m3 v1")
}

func TestTxnRefusals(t *testing.T) {
	_, client, ctx := start(t)
	putAll(t, ctx, client, "k=1")
	isMissing := clientv3.Compare(clientv3.Version("k"), "=", 0)
	put := func(key string) clientv3.Op { return clientv3.OpPut(key, "x") }
	nested := func(ops ...clientv3.Op) clientv3.Op { return clientv3.OpTxn(nil, ops, nil) }
	const duplicate = "etcdserver: duplicate key given in txn request"
	for _, test := range []struct {
		name string
		txn  clientv3.Txn
		code codes.Code
		text string
	}{
		{"same put twice", client.Txn(ctx).Then(put("a"), put("a")), codes.InvalidArgument, duplicate},
		{"untaken branch", client.Txn(ctx).Else(put("a"), put("a")), codes.InvalidArgument, duplicate},
		{"delete over put", client.Txn(ctx).Then(put("b"), clientv3.OpDelete("a", clientv3.WithRange("c"))), codes.InvalidArgument, duplicate},
		{"put under delete", client.Txn(ctx).Then(clientv3.OpDelete("b"), put("b")), codes.InvalidArgument, duplicate},
		{"parent and nested", client.Txn(ctx).Then(put("a"), nested(put("a"))), codes.InvalidArgument, duplicate},
		{"sibling nested", client.Txn(ctx).Then(nested(put("a")), nested(put("a"))), codes.InvalidArgument, duplicate},
		{"no key", client.Txn(ctx).Then(put("")), codes.InvalidArgument, "etcdserver: key is not provided"},
		{"no key, untaken", client.Txn(ctx).Else(clientv3.OpGet("")), codes.InvalidArgument, "etcdserver: key is not provided"},
		{"no key in compare", client.Txn(ctx).If(clientv3.Compare(clientv3.Version(""), "=", 0)), codes.InvalidArgument, "etcdserver: key is not provided"},
		{"unknown lease", client.Txn(ctx).Then(put("a"), clientv3.OpPut("b", "x", clientv3.WithLease(404))), codes.NotFound, "etcdserver: requested lease not found"},
		{"ignored value of nothing", client.Txn(ctx).Then(put("a"), clientv3.OpPut("b", "", clientv3.WithIgnoreValue())), codes.InvalidArgument, "etcdserver: key not found"},
		{"future", client.Txn(ctx).Then(put("a"), clientv3.OpGet("b", clientv3.WithRev(99))), codes.OutOfRange, "etcdserver: mvcc: required revision is a future revision"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := test.txn.Commit()
			wantStatus(t, err, test.code, test.text)
			expect.Equal(t, "nothing was applied", expect.Must(client.Get(ctx, "", clientv3.WithPrefix()))(t).Header.Revision, 2)
		})
	}
	// A lease that does not exist matters only where it would be used.
	expect.Must(client.Txn(ctx).If(isMissing).Then(clientv3.OpPut("b", "x", clientv3.WithLease(404))).Commit())(t)
	// The two branches may write the same key, and a key may be deleted twice.
	expect.Must(client.Txn(ctx).Then(put("a")).Else(put("a")).Commit())(t)
	expect.Must(client.Txn(ctx).Then(clientv3.OpDelete("a"), clientv3.OpDelete("a")).Commit())(t)
}

func TestTxnOperationLimit(t *testing.T) {
	_, client, ctx := start(t)
	const tooMany = "etcdserver: too many operations in txn request"
	puts := func(count int) (ops []clientv3.Op) {
		for i := range count {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("k%03d", i), "v"))
		}
		return ops
	}
	compares := func(count int) (cmps []clientv3.Cmp) {
		for range count {
			cmps = append(cmps, clientv3.Compare(clientv3.Version("zz"), "=", 0))
		}
		return cmps
	}
	full := expect.Must(client.Txn(ctx).If(compares(maxTxnOps)...).Then(puts(maxTxnOps)...).Else(puts(maxTxnOps)...).Commit())(t)
	expect.Equal(t, "responses", len(full.Responses), maxTxnOps)
	for name, txn := range map[string]clientv3.Txn{
		"compares": client.Txn(ctx).If(compares(maxTxnOps + 1)...),
		"then":     client.Txn(ctx).Then(puts(maxTxnOps + 1)...),
		"else":     client.Txn(ctx).Else(puts(maxTxnOps + 1)...),
	} {
		_, err := txn.Commit()
		if err == nil {
			t.Fatalf("%s: accepted", name)
		}
		wantStatus(t, err, codes.InvalidArgument, tooMany)
	}
	// A nested transaction has what its parent left.
	_, err := client.Txn(ctx).Then(append(puts(100)[:100:100], clientv3.OpTxn(nil, gets(28), nil))...).Commit()
	wantStatus(t, err, codes.InvalidArgument, tooMany)
	expect.Must(client.Txn(ctx).Then(append(puts(100)[:100:100], clientv3.OpTxn(nil, gets(27), nil))...).Commit())(t)
}

func gets(count int) (ops []clientv3.Op) {
	for i := range count {
		ops = append(ops, clientv3.OpGet(fmt.Sprintf("g%03d", i)))
	}
	return ops
}

func TestTxnOperationLimitFlag(t *testing.T) {
	_, client, ctx := start(t, "--max-txn-ops=200")
	expect.Must(client.Txn(ctx).Then(gets(200)...).Commit())(t)
	_, err := client.Txn(ctx).Then(gets(201)...).Commit()
	wantStatus(t, err, codes.InvalidArgument, "etcdserver: too many operations in txn request")
}

func TestTxnOperationWithoutContent(t *testing.T) {
	_, client, ctx := start(t)
	kv := pb.NewKVClient(client.ActiveConnection())
	for _, request := range []*pb.TxnRequest{
		{Success: []*pb.RequestOp{{}}},
		{Failure: []*pb.RequestOp{{}}},
	} {
		_, err := kv.Txn(ctx, request)
		wantStatus(t, err, codes.InvalidArgument, "etcdserver: key not found")
	}
}

func TestCompareAndSwapCounter(t *testing.T) {
	server, client, ctx := start(t)
	putAll(t, ctx, client, "counter=0")
	const workers, increments = 8, 40
	var group sync.WaitGroup
	var mu sync.Mutex
	wonRevisions := map[int64]bool{}
	for range workers {
		worker := server.Client()
		group.Go(func() {
			for done := 0; done < increments && ctx.Err() == nil; {
				current, err := worker.Get(ctx, "counter")
				if err != nil {
					t.Error(err)
					return
				}
				value, _ := strconv.Atoi(string(current.Kvs[0].Value))
				answer, err := worker.Txn(ctx).
					If(clientv3.Compare(clientv3.ModRevision("counter"), "=", current.Kvs[0].ModRevision)).
					Then(clientv3.OpPut("counter", strconv.Itoa(value+1))).Commit()
				if err != nil {
					t.Error(err)
					return
				}
				if !answer.Succeeded {
					continue
				}
				done++
				mu.Lock()
				if wonRevisions[answer.Header.Revision] {
					t.Errorf("revision %d was won twice", answer.Header.Revision)
				}
				wonRevisions[answer.Header.Revision] = true
				mu.Unlock()
			}
		})
	}
	group.Wait()
	got := expect.Must(client.Get(ctx, "counter"))(t)
	expect.Equal(t, "counter", string(got.Kvs[0].Value), strconv.Itoa(workers*increments))
	expect.Equal(t, "versions", got.Kvs[0].Version, int64(workers*increments+1))
	expect.Equal(t, "winners", len(wonRevisions), workers*increments)
}
