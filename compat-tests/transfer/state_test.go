// Package transfersuite moves keyspaces between servers as etcd's database file:
// snapshots that are saved from one and imported or restored into another. What
// arrives is compared with what left: keys and their history with all revisions,
// leases, users and roles, alarms, and the hash of it all.
//
// Every test has the real etcd on at least one side. With SUBJECT=etcd it is on
// both, which proves the comparison.
package transfersuite

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sort"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	clientv3 "go.etcd.io/etcd/client/v3"

	"leaseway/compat-tests/expect"
	"leaseway/compat-tests/harness"
)

// fill writes a bit of everything: overwrites, deletions, transactions, values larger
// than a page, leases, a compaction in the middle, users and roles.
func fill(t *testing.T, client *clientv3.Client, seed uint64) {
	t.Helper()
	// Hundreds of writes, each of which three nodes sync where the subject is a gateway.
	ctx := harness.Context(t, 4*time.Minute)
	random := rand.New(rand.NewPCG(seed, 0))
	var leases []clientv3.LeaseID
	for n := range 5 {
		leases = append(leases, expect.Must(client.Grant(ctx, int64(3600+100*n)))(t).ID)
	}
	key := func() string { return fmt.Sprintf("key/%03d", random.IntN(120)) }
	for step := range 600 {
		value := strings.Repeat(string(rune('a'+step%26)), random.IntN(300))
		switch random.IntN(12) {
		case 0, 1:
			expect.Must(client.Delete(ctx, key()))(t)
		case 2:
			expect.Must(client.Txn(ctx).Then(
				clientv3.OpPut("txn/"+key(), value),
				clientv3.OpDelete(key()),
				clientv3.OpPut("txn/other/"+key(), "x"),
			).Commit())(t)
		case 3:
			expect.Must(client.Delete(ctx, key(), clientv3.WithRange("key/1")))(t)
		case 4:
			expect.Must(client.Put(ctx, key(), value, clientv3.WithLease(leases[random.IntN(len(leases))])))(t)
		case 5:
			expect.Must(client.Put(ctx, key(), strings.Repeat("large ", 100+random.IntN(3000))))(t)
		default:
			expect.Must(client.Put(ctx, key(), value))(t)
		}
		if step == 250 {
			revision := expect.Must(client.Get(ctx, "k"))(t).Header.Revision
			expect.Must(client.Compact(ctx, revision-20, clientv3.WithCompactPhysical()))(t)
		}
	}
	expect.Must(client.Revoke(ctx, leases[0]))(t)
	expect.Must(client.RoleAdd(ctx, "reader"))(t)
	expect.Must(client.RoleGrantPermission(ctx, "reader", "key/", "key0", clientv3.PermissionType(clientv3.PermRead)))(t)
	expect.Must(client.RoleGrantPermission(ctx, "reader", "own", "", clientv3.PermissionType(clientv3.PermReadWrite)))(t)
	expect.Must(client.UserAdd(ctx, "root", "secret"))(t)
	expect.Must(client.UserGrantRole(ctx, "root", "root"))(t)
	expect.Must(client.UserAdd(ctx, "reader", "other"))(t)
	expect.Must(client.UserGrantRole(ctx, "reader", "reader"))(t)
	expect.Must(client.UserAddWithOptions(ctx, "certificate", "", &clientv3.UserAddOptions{NoPassword: true}))(t)
}

// enableAuth turns authentication on and returns a client of root's.
func enableAuth(t *testing.T, server *harness.Server, client *clientv3.Client) *clientv3.Client {
	t.Helper()
	expect.Must(client.AuthEnable(harness.Context(t, 10*time.Second)))(t)
	return server.ClientWith(clientv3.Config{Username: "root", Password: "secret"})
}

// state is everything that moves, as text. Lines that differ are easy to read.
type state struct {
	lines []string
	// hash is HashKV's at the current revision.
	hash uint32
	// compacted is the compacted revision.
	compacted int64
}

// stateOf reads what a server has. history adds the state at all revisions that are
// left, and the events between them.
func stateOf(t *testing.T, client *clientv3.Client, history bool) state {
	t.Helper()
	ctx := harness.Context(t, time.Minute)
	var s state
	add := func(format string, args ...any) { s.lines = append(s.lines, fmt.Sprintf(format, args...)) }
	message := func(what string, m proto.Message) {
		text, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		expect.NoError(t, err)
		add("%s %q", what, text)
	}

	hash := expect.Must(client.HashKV(ctx, client.Endpoints()[0], 0))(t)
	s.hash, s.compacted = hash.Hash, hash.CompactRevision
	current := hash.Header.Revision
	add("revision %d, compacted %d", current, hash.CompactRevision)
	at := func(revision int64) {
		got := expect.Must(client.Get(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithRev(revision)))(t)
		for _, kv := range got.Kvs {
			message(fmt.Sprintf("at %d:", revision), kv)
		}
	}
	at(0)
	if history {
		for revision := max(hash.CompactRevision, 1); revision <= current; revision += 7 {
			at(revision)
		}
		for _, event := range events(t, ctx, client, max(hash.CompactRevision, 1), current) {
			add("event %v", event.Type)
			message("of:", event.Kv)
		}
	}
	for _, lease := range expect.Must(client.Leases(ctx))(t).Leases {
		info := expect.Must(client.TimeToLive(ctx, lease.ID, clientv3.WithAttachedKeys()))(t)
		var keys []string
		for _, key := range info.Keys {
			keys = append(keys, string(key))
		}
		sort.Strings(keys)
		add("lease %x granted %d, with %q", info.ID, info.GrantedTTL, keys)
	}
	auth := expect.Must(client.AuthStatus(ctx))(t)
	add("auth %v, revision %d", auth.Enabled, auth.AuthRevision)
	for _, user := range expect.Must(client.UserList(ctx))(t).Users {
		add("user %s %q", user, expect.Must(client.UserGet(ctx, user))(t).Roles)
	}
	for _, role := range expect.Must(client.RoleList(ctx))(t).Roles {
		for _, permission := range expect.Must(client.RoleGet(ctx, role))(t).Perm {
			message("role "+role, permission)
		}
	}
	alarms := expect.Must(client.AlarmList(ctx))(t).Alarms
	for _, alarm := range alarms {
		add("alarm %v", alarm.Alarm)
	}
	sort.Strings(s.lines)
	return s
}

func events(t *testing.T, ctx context.Context, client *clientv3.Client, from, to int64) []*clientv3.Event {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all []*clientv3.Event
	for answer := range client.Watch(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithRev(from)) {
		expect.NoError(t, answer.Err())
		all = append(all, answer.Events...)
		if answer.Events[len(answer.Events)-1].Kv.ModRevision >= to {
			return all
		}
	}
	t.Fatalf("the watch ended with %v", ctx.Err())
	return nil
}

// sameState compares what arrived with what left.
func sameState(t *testing.T, got, want state) {
	t.Helper()
	have := map[string]bool{}
	for _, line := range got.lines {
		have[line] = true
	}
	wanted := map[string]bool{}
	for _, line := range want.lines {
		wanted[line] = true
		if !have[line] {
			t.Errorf("missing: %.200s", line)
		}
	}
	for _, line := range got.lines {
		if !wanted[line] {
			t.Errorf("too much: %.200s", line)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
	expect.Equal(t, "hash", got.hash, want.hash)
}
