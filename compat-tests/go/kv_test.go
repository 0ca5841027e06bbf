package clientsuite

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"leaseway/compat-tests/expect"
)

func TestPutCountsRevisionsAndVersions(t *testing.T) {
	_, client, ctx := start(t)
	empty := expect.Must(client.Get(ctx, "a"))(t)
	expect.Equal(t, "revision of an empty store", empty.Header.Revision, 1)
	expect.Equal(t, "count", empty.Count, 0)

	first := expect.Must(client.Put(ctx, "a", "1", clientv3.WithPrevKV()))(t)
	expect.Equal(t, "first revision", first.Header.Revision, 2)
	if first.PrevKv != nil {
		t.Fatalf("a new key has no previous value, got %v", first.PrevKv)
	}
	putAll(t, ctx, client, "b=1")
	second := expect.Must(client.Put(ctx, "a", "2", clientv3.WithPrevKV()))(t)
	expect.Equal(t, "second revision", second.Header.Revision, 4)
	expect.Equal(t, "previous value", pairs([]*mvccpb.KeyValue{second.PrevKv}), "a=1")
	putAll(t, ctx, client, "a=2")
	got := expect.Must(client.Get(ctx, "a"))(t)
	expect.Equal(t, "key", versions(got.Kvs), "a c2 m5 v3")

	// A key that is written again after its deletion starts over.
	expect.Must(client.Delete(ctx, "a"))(t)
	putAll(t, ctx, client, "a=3")
	expect.Equal(t, "reborn key", versions(expect.Must(client.Get(ctx, "a"))(t).Kvs), "a c7 m7 v1")
}

func TestPutKeepingValueOrLease(t *testing.T) {
	_, client, ctx := start(t)
	kv := pb.NewKVClient(client.ActiveConnection())
	put := func(request *pb.PutRequest) error {
		_, err := kv.Put(ctx, request)
		return err
	}
	lease := expect.Must(client.Grant(ctx, 3600))(t).ID

	wantStatus(t, put(&pb.PutRequest{Key: []byte("a"), IgnoreValue: true}),
		codes.InvalidArgument, "etcdserver: key not found")
	wantStatus(t, put(&pb.PutRequest{Key: []byte("a"), IgnoreLease: true}),
		codes.InvalidArgument, "etcdserver: key not found")
	expect.NoError(t, put(&pb.PutRequest{Key: []byte("a"), Value: []byte("1"), Lease: int64(lease)}))
	wantStatus(t, put(&pb.PutRequest{Key: []byte("a"), Value: []byte("2"), IgnoreValue: true}),
		codes.InvalidArgument, "etcdserver: value is provided")
	wantStatus(t, put(&pb.PutRequest{Key: []byte("a"), Lease: int64(lease), IgnoreLease: true}),
		codes.InvalidArgument, "etcdserver: lease is provided")
	wantStatus(t, put(&pb.PutRequest{}), codes.InvalidArgument, "etcdserver: key is not provided")
	wantStatus(t, put(&pb.PutRequest{Key: []byte("a"), Lease: 404}),
		codes.NotFound, "etcdserver: requested lease not found")

	expect.NoError(t, put(&pb.PutRequest{Key: []byte("a"), IgnoreLease: true, Value: []byte("2")}))
	got := expect.Must(client.Get(ctx, "a"))(t)
	expect.Equal(t, "value", pairs(got.Kvs), "a=2")
	expect.Equal(t, "lease", got.Kvs[0].Lease, int64(lease))
	expect.NoError(t, put(&pb.PutRequest{Key: []byte("a"), IgnoreValue: true}))
	got = expect.Must(client.Get(ctx, "a"))(t)
	expect.Equal(t, "value", pairs(got.Kvs), "a=2")
	expect.Equal(t, "detached key", versions(got.Kvs), "a c2 m4 v3")
}

func TestRangeForms(t *testing.T) {
	_, client, ctx := start(t)
	putAll(t, ctx, client, "a=1", "ab=2", "b=3", "b\x00=4", "c=5")
	for _, test := range []struct {
		name, key string
		options   []clientv3.OpOption
		want      string
	}{
		{"one key", "b", nil, "b=3"},
		{"missing key", "bb", nil, ""},
		{"half-open", "ab", []clientv3.OpOption{clientv3.WithRange("c")}, "ab=2 b=3 b\x00=4"},
		{"end before start", "c", []clientv3.OpOption{clientv3.WithRange("a")}, ""},
		{"empty interval", "b", []clientv3.OpOption{clientv3.WithRange("b")}, ""},
		{"only the key", "b", []clientv3.OpOption{clientv3.WithRange("b\x00")}, "b=3"},
		{"prefix", "a", []clientv3.OpOption{clientv3.WithPrefix()}, "a=1 ab=2"},
		{"from key", "b\x00", []clientv3.OpOption{clientv3.WithFromKey()}, "b\x00=4 c=5"},
		{"everything", "", []clientv3.OpOption{clientv3.WithPrefix()}, "a=1 ab=2 b=3 b\x00=4 c=5"},
		{"serializable", "c", []clientv3.OpOption{clientv3.WithSerializable()}, "c=5"},
	} {
		got := expect.Must(client.Get(ctx, test.key, test.options...))(t)
		expect.Equal(t, test.name, pairs(got.Kvs), test.want)
		expect.Equal(t, test.name+" count", got.Count, int64(len(got.Kvs)))
		expect.Equal(t, test.name+" more", got.More, false)
		expect.Equal(t, test.name+" revision", got.Header.Revision, 6)
	}
	_, err := pb.NewKVClient(client.ActiveConnection()).Range(ctx, &pb.RangeRequest{})
	wantStatus(t, err, codes.InvalidArgument, "etcdserver: key is not provided")
}

func TestRangeLimitCountAndKeysOnly(t *testing.T) {
	_, client, ctx := start(t)
	putAll(t, ctx, client, "k1=a", "k2=b", "k3=c", "k4=d")
	for _, test := range []struct {
		limit int64
		keys  int
		more  bool
	}{{0, 4, false}, {2, 2, true}, {4, 4, false}, {9, 4, false}, {-1, 4, false}} {
		got := expect.Must(client.Get(ctx, "k", clientv3.WithPrefix(), clientv3.WithLimit(test.limit)))(t)
		name := fmt.Sprintf("limit %d", test.limit)
		expect.Equal(t, name, len(got.Kvs), test.keys)
		expect.Equal(t, name+" more", got.More, test.more)
		expect.Equal(t, name+" count", got.Count, 4)
	}
	counted := expect.Must(client.Get(ctx, "k", clientv3.WithPrefix(), clientv3.WithCountOnly(), clientv3.WithLimit(1)))(t)
	expect.Equal(t, "counted keys", len(counted.Kvs), 0)
	expect.Equal(t, "count", counted.Count, 4)
	expect.Equal(t, "more", counted.More, false)
	keys := expect.Must(client.Get(ctx, "k", clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(2)))(t)
	expect.Equal(t, "keys only", pairs(keys.Kvs), "k1= k2=")
	expect.Equal(t, "keys only bookkeeping", versions(keys.Kvs), "k1 c2 m2 v1, k2 c3 m3 v1")
}

func TestRangeSorting(t *testing.T) {
	_, client, ctx := start(t)
	// Every sort target orders these differently.
	putAll(t, ctx, client, "b=3", "a=2", "c=1", "a=2", "a=2", "b=3")
	for _, test := range []struct {
		target clientv3.SortTarget
		ascend string
	}{
		{clientv3.SortByKey, "a b c"},
		{clientv3.SortByVersion, "c b a"},
		{clientv3.SortByCreateRevision, "b a c"},
		{clientv3.SortByModRevision, "c a b"},
		{clientv3.SortByValue, "c a b"},
	} {
		for _, order := range []clientv3.SortOrder{clientv3.SortAscend, clientv3.SortDescend} {
			want := strings.Fields(test.ascend)
			if order == clientv3.SortDescend {
				want[0], want[2] = want[2], want[0]
			}
			for limit := int64(1); limit <= 3; limit++ {
				got := expect.Must(client.Get(ctx, "", clientv3.WithPrefix(), clientv3.WithSort(test.target, order), clientv3.WithLimit(limit)))(t)
				var keys []string
				for _, kv := range got.Kvs {
					keys = append(keys, string(kv.Key))
				}
				name := fmt.Sprintf("target %d order %d limit %d", test.target, order, limit)
				expect.Equal(t, name, strings.Join(keys, " "), strings.Join(want[:limit], " "))
				expect.Equal(t, name+" more", got.More, limit < 3)
				expect.Equal(t, name+" count", got.Count, 3)
			}
		}
	}
	kv := pb.NewKVClient(client.ActiveConnection())
	_, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte("a"), SortOrder: 9})
	wantStatus(t, err, codes.InvalidArgument, "etcdserver: invalid sort option")
	_, err = kv.Range(ctx, &pb.RangeRequest{Key: []byte("a"), SortTarget: 9})
	wantStatus(t, err, codes.InvalidArgument, "etcdserver: invalid sort option")
}

func TestRangeRevisionFilters(t *testing.T) {
	_, client, ctx := start(t)
	putAll(t, ctx, client, "a=1", "b=1", "c=1", "b=2", "a=2") // a c2 m6, b c3 m5, c c4 m4
	for _, test := range []struct {
		name   string
		option clientv3.OpOption
		want   string
	}{
		{"modified since", clientv3.WithMinModRev(5), "a=2 b=2"},
		{"modified until", clientv3.WithMaxModRev(5), "b=2 c=1"},
		{"created since", clientv3.WithMinCreateRev(3), "b=2 c=1"},
		{"created until", clientv3.WithMaxCreateRev(3), "a=2 b=2"},
	} {
		got := expect.Must(client.Get(ctx, "", clientv3.WithPrefix(), test.option))(t)
		expect.Equal(t, test.name, pairs(got.Kvs), test.want)
		// The count is taken before the filter.
		expect.Equal(t, test.name+" count", got.Count, 3)
		limited := expect.Must(client.Get(ctx, "", clientv3.WithPrefix(), test.option, clientv3.WithLimit(1)))(t)
		expect.Equal(t, test.name+" limited", pairs(limited.Kvs), strings.Fields(test.want)[0])
		expect.Equal(t, test.name+" more", limited.More, true)
	}
}

func TestRangeInHistory(t *testing.T) {
	_, client, ctx := start(t)
	putAll(t, ctx, client, "a=1", "b=1", "a=2")
	expect.Must(client.Delete(ctx, "b"))(t)
	for revision, want := range map[int64]string{1: "", 2: "a=1", 3: "a=1 b=1", 4: "a=2 b=1", 5: "a=2", 0: "a=2", -1: "a=2"} {
		got := expect.Must(client.Get(ctx, "", clientv3.WithPrefix(), clientv3.WithRev(revision)))(t)
		name := fmt.Sprintf("revision %d", revision)
		expect.Equal(t, name, pairs(got.Kvs), want)
		expect.Equal(t, name+" count", got.Count, int64(len(got.Kvs)))
		expect.Equal(t, name+" header", got.Header.Revision, 5)
	}
	_, err := client.Get(ctx, "a", clientv3.WithRev(6))
	wantStatus(t, err, codes.OutOfRange, "etcdserver: mvcc: required revision is a future revision")
}

func TestBinaryKeys(t *testing.T) {
	_, client, ctx := start(t)
	keys := []string{"\x00", "\x00\x00", "%", "_", "a\x00", "a\x00\xff", "a\xff", "\x80", "\xff", "\xff\xfe\x00", "\xff\xff"}
	for i := len(keys) - 1; i >= 0; i-- { // written backwards, so that order comes from the server
		expect.Must(client.Put(ctx, keys[i], "\xff\x00"+keys[i]))(t)
	}
	all := expect.Must(client.Get(ctx, "\x00", clientv3.WithFromKey()))(t)
	expect.Equal(t, "count", all.Count, int64(len(keys)))
	for i, kv := range all.Kvs {
		expect.Equal(t, "key in byte order", string(kv.Key), keys[i])
		expect.Equal(t, "value", string(kv.Value), "\xff\x00"+keys[i])
	}
	// The prefix of the highest byte has no upper end.
	expect.Equal(t, "prefix ff", expect.Must(client.Get(ctx, "\xff", clientv3.WithPrefix()))(t).Count, 3)
	expect.Equal(t, "single key", expect.Must(client.Get(ctx, "a\x00"))(t).Count, 1)
	expect.Equal(t, "empty value", expect.Must(client.Put(ctx, "empty", ""))(t).Header.Revision, int64(len(keys)+2))
	expect.Equal(t, "deleted", expect.Must(client.Delete(ctx, "\xff", clientv3.WithPrefix()))(t).Deleted, 3)
}

func TestDeleteRange(t *testing.T) {
	_, client, ctx := start(t)
	putAll(t, ctx, client, "a=1", "ab=2", "b=3", "c=4")
	nothing := expect.Must(client.Delete(ctx, "zz"))(t)
	expect.Equal(t, "deleted nothing", nothing.Deleted, 0)
	expect.Equal(t, "revision after deleting nothing", nothing.Header.Revision, 5)
	prefix := expect.Must(client.Delete(ctx, "a", clientv3.WithPrefix(), clientv3.WithPrevKV()))(t)
	expect.Equal(t, "deleted", prefix.Deleted, 2)
	expect.Equal(t, "revision", prefix.Header.Revision, 6)
	expect.Equal(t, "previous", pairs(prefix.PrevKvs), "a=1 ab=2")
	silent := expect.Must(client.Delete(ctx, "b"))(t)
	expect.Equal(t, "previous unless asked", len(silent.PrevKvs), 0)
	expect.Equal(t, "from key", expect.Must(client.Delete(ctx, "\x00", clientv3.WithFromKey()))(t).Deleted, 1)
	expect.Equal(t, "left", expect.Must(client.Get(ctx, "", clientv3.WithPrefix()))(t).Count, 0)
	_, err := pb.NewKVClient(client.ActiveConnection()).DeleteRange(ctx, &pb.DeleteRangeRequest{})
	wantStatus(t, err, codes.InvalidArgument, "etcdserver: key is not provided")
}
