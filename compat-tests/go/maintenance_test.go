package clientsuite

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"leaseway/compat-tests/harness"
)

func TestStatus(t *testing.T) {
	server, client, ctx := start(t)
	putAll(t, ctx, client, "k=1")
	var got *clientv3.StatusResponse
	// A new etcd raises its storage version some time after it serves.
	harness.Eventually(t, 10*time.Second, "storage version 3.7.0", func() error {
		got = must(client.Status(ctx, server.Endpoint))(t)
		if got.StorageVersion != "3.7.0" {
			return fmt.Errorf("it is %s", got.StorageVersion)
		}
		return nil
	})
	equal(t, "version", got.Version, harness.EtcdVersion)
	equal(t, "revision", got.Header.Revision, 2)
	equal(t, "leads itself", got.Leader, got.Header.MemberId)
	equal(t, "member id", got.Header.MemberId != 0, true)
	equal(t, "cluster id", got.Header.ClusterId != 0, true)
	equal(t, "raft term", got.RaftTerm > 0 && got.RaftTerm == got.Header.RaftTerm, true)
	equal(t, "raft index", got.RaftIndex > 0 && got.RaftAppliedIndex > 0 && got.RaftAppliedIndex <= got.RaftIndex, true)
	equal(t, "size", got.DbSize > 0 && got.DbSizeInUse > 0 && got.DbSizeInUse <= got.DbSize, true)
	equal(t, "quota", got.DbSizeQuota, 2<<30)
	equal(t, "learner", got.IsLearner, false)
	equal(t, "errors", len(got.Errors), 0)
	equal(t, "downgrade info", got.DowngradeInfo != nil && !got.DowngradeInfo.Enabled, true)
	// The identity stays the same from answer to answer and over a restart.
	server.Restart()
	again := must(server.Client().Status(ctx, server.Endpoint))(t)
	equal(t, "same member", again.Header.MemberId, got.Header.MemberId)
	equal(t, "same cluster", again.Header.ClusterId, got.Header.ClusterId)
}

func TestHashKV(t *testing.T) {
	server, client, ctx := start(t)
	putAll(t, ctx, client, "a=1", "b=1", "a=2")
	head := must(client.HashKV(ctx, server.Endpoint, 0))(t)
	equal(t, "hash revision", head.HashRevision, 4)
	equal(t, "header revision", head.Header.Revision, 4)
	equal(t, "nothing is compacted yet", head.CompactRevision, -1)
	equal(t, "same state, same hash", must(client.HashKV(ctx, server.Endpoint, 4))(t).Hash, head.Hash)
	past := must(client.HashKV(ctx, server.Endpoint, 3))(t)
	equal(t, "other state, other hash", past.Hash != head.Hash, true)
	putAll(t, ctx, client, "c=1")
	equal(t, "the past does not change", must(client.HashKV(ctx, server.Endpoint, 3))(t).Hash, past.Hash)
	_, err := client.HashKV(ctx, server.Endpoint, 99)
	wantStatus(t, err, codes.OutOfRange, futureText)
	must(client.Compact(ctx, 3, clientv3.WithCompactPhysical()))(t)
	_, err = client.HashKV(ctx, server.Endpoint, 2)
	wantStatus(t, err, codes.OutOfRange, compactedText)
	compacted := must(client.HashKV(ctx, server.Endpoint, 0))(t)
	equal(t, "compact revision", compacted.CompactRevision, 3)
	server.Restart()
	reopened := must(server.Client().HashKV(ctx, server.Endpoint, 0))(t)
	equal(t, "a restart does not change it", fmt.Sprint(reopened.Hash, reopened.CompactRevision, reopened.HashRevision),
		fmt.Sprint(compacted.Hash, compacted.CompactRevision, compacted.HashRevision))
}

func TestHashOfTheWholeStore(t *testing.T) {
	_, client, ctx := start(t)
	putAll(t, ctx, client, "a=1")
	hash := must(pb.NewMaintenanceClient(client.ActiveConnection()).Hash(ctx, &pb.HashRequest{}))(t)
	equal(t, "hash", hash.Hash != 0, true)
	equal(t, "revision", hash.Header.Revision, 2)
}

func TestDefragment(t *testing.T) {
	server, client, ctx := start(t)
	value := strings.Repeat("x", 64<<10)
	for i := range 200 {
		must(client.Put(ctx, fmt.Sprintf("k%d", i%5), value))(t)
	}
	must(client.Compact(ctx, 201, clientv3.WithCompactPhysical()))(t)
	before := must(client.Status(ctx, server.Endpoint))(t)
	must(client.Defragment(ctx, server.Endpoint))(t)
	after := must(client.Status(ctx, server.Endpoint))(t)
	equal(t, fmt.Sprintf("smaller (%d -> %d)", before.DbSize, after.DbSize), after.DbSize < before.DbSize, true)
	equal(t, "keys", must(client.Get(ctx, "k", clientv3.WithPrefix()))(t).Count, 5)
	equal(t, "revision", after.Header.Revision, 201)
}

func TestAlarmsAndQuota(t *testing.T) {
	server, client, ctx := start(t)
	maintenance := pb.NewMaintenanceClient(client.ActiveConnection())
	lease := must(client.Grant(ctx, 100))(t).ID
	putAll(t, ctx, client, "a=1", "b=1")
	equal(t, "alarms", len(must(client.AlarmList(ctx))(t).Alarms), 0)
	member := must(client.Status(ctx, server.Endpoint))(t).Header.MemberId
	raise := &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, MemberID: member, Alarm: pb.AlarmType_NOSPACE}
	for range 2 { // raising twice is as good as once
		equal(t, "raised", len(must(maintenance.Alarm(ctx, raise))(t).Alarms), 1)
	}
	errorTexts := must(client.Status(ctx, server.Endpoint))(t).Errors
	equal(t, "errors in the status", len(errorTexts), 1)
	// Go's protobuf library varies the white space of this text from build to build.
	equal(t, "status", strings.Join(strings.Fields(errorTexts[0]), " "), fmt.Sprintf("memberID:%d alarm:NOSPACE", member))

	const noSpace = "etcdserver: mvcc: database space exceeded"
	_, err := client.Put(ctx, "a", "2")
	wantStatus(t, err, codes.ResourceExhausted, noSpace)
	_, err = client.Txn(ctx).Then(clientv3.OpPut("a", "2")).Commit()
	wantStatus(t, err, codes.ResourceExhausted, noSpace)
	_, err = client.Txn(ctx).Then(clientv3.OpTxn(nil, nil, []clientv3.Op{clientv3.OpPut("a", "2")})).Commit()
	wantStatus(t, err, codes.ResourceExhausted, noSpace)
	_, err = client.Grant(ctx, 100)
	wantStatus(t, err, codes.ResourceExhausted, noSpace)
	equal(t, "reads go on", must(client.Get(ctx, "a"))(t).Count, 1)
	must(client.KeepAliveOnce(ctx, lease))(t)
	must(client.Txn(ctx).Then(clientv3.OpGet("a"), clientv3.OpDelete("b")).Commit())(t)
	equal(t, "deletions go on", must(client.Delete(ctx, "a"))(t).Deleted, 1)

	disarmed := must(client.AlarmDisarm(ctx, &clientv3.AlarmMember{MemberID: member, Alarm: pb.AlarmType_NOSPACE}))(t)
	equal(t, "disarmed", len(disarmed.Alarms), 1)
	disarmed = must(client.AlarmDisarm(ctx, &clientv3.AlarmMember{MemberID: member, Alarm: pb.AlarmType_NOSPACE}))(t)
	equal(t, "disarmed again", len(disarmed.Alarms), 0)
	putAll(t, ctx, client, "a=3")
}

func TestQuotaRaisesTheAlarm(t *testing.T) {
	server, client, ctx := start(t, "--quota-backend-bytes=4194304")
	value := strings.Repeat("x", 256<<10)
	var refused error
	for i := range 60 { // 15 MB, well over the quota
		if _, refused = client.Put(ctx, fmt.Sprintf("k%d", i), value); refused != nil {
			break
		}
	}
	wantStatus(t, refused, codes.ResourceExhausted, "etcdserver: mvcc: database space exceeded")
	alarms := must(client.AlarmList(ctx))(t).Alarms
	equal(t, "alarms", len(alarms), 1)
	equal(t, "alarm", alarms[0].Alarm, pb.AlarmType_NOSPACE)
	equal(t, "quota", must(client.Status(ctx, server.Endpoint))(t).DbSizeQuota, 4<<20)
	// The alarm outlives a restart; deleting, compacting, defragmenting and
	// disarming brings the writes back.
	server.Restart()
	client = server.Client()
	_, err := client.Put(ctx, "k", "v")
	wantStatus(t, err, codes.ResourceExhausted, "etcdserver: mvcc: database space exceeded")
	revision := must(client.Delete(ctx, "k", clientv3.WithPrefix()))(t).Header.Revision
	must(client.Compact(ctx, revision, clientv3.WithCompactPhysical()))(t)
	must(client.Defragment(ctx, server.Endpoint))(t)
	must(client.AlarmDisarm(ctx, &clientv3.AlarmMember{}))(t)
	putAll(t, ctx, client, "k=v")
}

func TestMembers(t *testing.T) {
	server, client, ctx := start(t)
	list := must(client.MemberList(ctx))(t)
	equal(t, "members", len(list.Members), 1)
	member := list.Members[0]
	equal(t, "id", member.ID, list.Header.MemberId)
	equal(t, "name", member.Name, "subject")
	equal(t, "client URLs", fmt.Sprint(member.ClientURLs), "["+server.URL()+"]")
	equal(t, "peer URLs", fmt.Sprint(member.PeerURLs), "["+server.PeerURL()+"]")
	equal(t, "learner", member.IsLearner, false)
	equal(t, "no revision in this header", list.Header.Revision, 0)
	noError(t, client.Sync(ctx))
	equal(t, "endpoints", fmt.Sprint(client.Endpoints()), "["+server.URL()+"]")

	_, err := client.MemberRemove(ctx, 404)
	wantStatus(t, err, codes.NotFound, "etcdserver: member not found")
	_, err = client.MemberUpdate(ctx, 404, []string{"http://127.0.0.1:1"})
	wantStatus(t, err, codes.NotFound, "etcdserver: member not found")
	_, err = client.MemberPromote(ctx, 404)
	wantStatus(t, err, codes.NotFound, "etcdserver: member not found")
	_, err = pb.NewClusterClient(client.ActiveConnection()).MemberAdd(ctx, &pb.MemberAddRequest{PeerURLs: []string{"not a url"}})
	wantStatus(t, err, codes.InvalidArgument, "etcdserver: given member URLs are invalid")
	_, err = client.MoveLeader(ctx, 404)
	wantStatus(t, err, codes.FailedPrecondition, "etcdserver: bad leader transferee")
}

func TestSnapshot(t *testing.T) {
	server, client, ctx := start(t)
	putAll(t, ctx, client, "a=1")
	stream := must(pb.NewMaintenanceClient(client.ActiveConnection()).Snapshot(ctx, &pb.SnapshotRequest{}))(t)
	var content bytes.Buffer
	var last *pb.SnapshotResponse
	for {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		noError(t, err)
		content.Write(chunk.Blob)
		last = chunk
	}
	equal(t, "a whole number of pages and a checksum", content.Len() > 32 && content.Len()%512 == 32, true)
	database, checksum := content.Bytes()[:content.Len()-32], content.Bytes()[content.Len()-32:]
	equal(t, "checksum", sha256.Sum256(database), [32]byte(checksum))
	equal(t, "remaining at the end", last.RemainingBytes, uint64(0))
	// A new etcd raises its storage version some time after it serves.
	if server.Subject().IsOurs() {
		equal(t, "version", last.Version, "3.7.0")
	}
}

func TestHealthService(t *testing.T) {
	_, client, ctx := start(t)
	health := healthpb.NewHealthClient(client.ActiveConnection())
	equal(t, "server", must(health.Check(ctx, &healthpb.HealthCheckRequest{}))(t).Status, healthpb.HealthCheckResponse_SERVING)
	_, err := health.Check(ctx, &healthpb.HealthCheckRequest{Service: "no.such.Service"})
	wantStatus(t, err, codes.NotFound, "unknown service")
	watch := must(health.Watch(ctx, &healthpb.HealthCheckRequest{}))(t)
	equal(t, "watched", must(watch.Recv())(t).Status, healthpb.HealthCheckResponse_SERVING)
	unknown := must(health.Watch(ctx, &healthpb.HealthCheckRequest{Service: "no.such.Service"}))(t)
	equal(t, "unknown", must(unknown.Recv())(t).Status, healthpb.HealthCheckResponse_SERVICE_UNKNOWN)
}
