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

	"leaseway/compat-tests/expect"
	"leaseway/compat-tests/harness"
)

func TestStatus(t *testing.T) {
	server, client, ctx := start(t)
	putAll(t, ctx, client, "k=1")
	var got *clientv3.StatusResponse
	// A new etcd raises its storage version some time after it serves.
	harness.Eventually(t, 10*time.Second, "storage version 3.7.0", func() error {
		got = expect.Must(client.Status(ctx, server.Endpoint))(t)
		if got.StorageVersion != "3.7.0" {
			return fmt.Errorf("it is %s", got.StorageVersion)
		}
		return nil
	})
	expect.Equal(t, "version", got.Version, harness.EtcdVersion)
	expect.Equal(t, "revision", got.Header.Revision, 2)
	expect.Equal(t, "leads itself", got.Leader, got.Header.MemberId)
	expect.Equal(t, "member id", got.Header.MemberId != 0, true)
	expect.Equal(t, "cluster id", got.Header.ClusterId != 0, true)
	expect.Equal(t, "raft term", got.RaftTerm > 0 && got.RaftTerm == got.Header.RaftTerm, true)
	expect.Equal(t, "raft index", got.RaftIndex > 0 && got.RaftAppliedIndex > 0 && got.RaftAppliedIndex <= got.RaftIndex, true)
	expect.Equal(t, "size", got.DbSize > 0 && got.DbSizeInUse > 0 && got.DbSizeInUse <= got.DbSize, true)
	expect.Equal(t, "quota", got.DbSizeQuota, 2<<30)
	expect.Equal(t, "learner", got.IsLearner, false)
	expect.Equal(t, "errors", len(got.Errors), 0)
	expect.Equal(t, "downgrade info", got.DowngradeInfo != nil && !got.DowngradeInfo.Enabled, true)
	// The identity stays the same from answer to answer and over a restart.
	server.Restart()
	again := expect.Must(server.Client().Status(ctx, server.Endpoint))(t)
	expect.Equal(t, "same member", again.Header.MemberId, got.Header.MemberId)
	expect.Equal(t, "same cluster", again.Header.ClusterId, got.Header.ClusterId)
}

func TestHashKV(t *testing.T) {
	server, client, ctx := start(t)
	putAll(t, ctx, client, "a=1", "b=1", "a=2")
	head := expect.Must(client.HashKV(ctx, server.Endpoint, 0))(t)
	expect.Equal(t, "hash revision", head.HashRevision, 4)
	expect.Equal(t, "header revision", head.Header.Revision, 4)
	expect.Equal(t, "nothing is compacted yet", head.CompactRevision, -1)
	expect.Equal(t, "same state, same hash", expect.Must(client.HashKV(ctx, server.Endpoint, 4))(t).Hash, head.Hash)
	past := expect.Must(client.HashKV(ctx, server.Endpoint, 3))(t)
	expect.Equal(t, "other state, other hash", past.Hash != head.Hash, true)
	putAll(t, ctx, client, "c=1")
	expect.Equal(t, "the past does not change", expect.Must(client.HashKV(ctx, server.Endpoint, 3))(t).Hash, past.Hash)
	_, err := client.HashKV(ctx, server.Endpoint, 99)
	wantStatus(t, err, codes.OutOfRange, futureText)
	expect.Must(client.Compact(ctx, 3, clientv3.WithCompactPhysical()))(t)
	_, err = client.HashKV(ctx, server.Endpoint, 2)
	wantStatus(t, err, codes.OutOfRange, compactedText)
	compacted := expect.Must(client.HashKV(ctx, server.Endpoint, 0))(t)
	expect.Equal(t, "compact revision", compacted.CompactRevision, 3)
	server.Restart()
	reopened := expect.Must(server.Client().HashKV(ctx, server.Endpoint, 0))(t)
	expect.Equal(t, "a restart does not change it", fmt.Sprint(reopened.Hash, reopened.CompactRevision, reopened.HashRevision),
		fmt.Sprint(compacted.Hash, compacted.CompactRevision, compacted.HashRevision))
}

func TestHashOfTheWholeStore(t *testing.T) {
	_, client, ctx := start(t)
	putAll(t, ctx, client, "a=1")
	hash := expect.Must(pb.NewMaintenanceClient(client.ActiveConnection()).Hash(ctx, &pb.HashRequest{}))(t)
	expect.Equal(t, "hash", hash.Hash != 0, true)
	expect.Equal(t, "revision", hash.Header.Revision, 2)
}

func TestDefragment(t *testing.T) {
	server, client, ctx := start(t)
	value := strings.Repeat("x", 64<<10)
	for i := range 200 {
		expect.Must(client.Put(ctx, fmt.Sprintf("k%d", i%5), value))(t)
	}
	expect.Must(client.Compact(ctx, 201, clientv3.WithCompactPhysical()))(t)
	before := expect.Must(client.Status(ctx, server.Endpoint))(t)
	expect.Must(client.Defragment(ctx, server.Endpoint))(t)
	after := expect.Must(client.Status(ctx, server.Endpoint))(t)
	expect.Equal(t, fmt.Sprintf("smaller (%d -> %d)", before.DbSize, after.DbSize), after.DbSize < before.DbSize, true)
	expect.Equal(t, "keys", expect.Must(client.Get(ctx, "k", clientv3.WithPrefix()))(t).Count, 5)
	expect.Equal(t, "revision", after.Header.Revision, 201)
}

func TestAlarmsAndQuota(t *testing.T) {
	server, client, ctx := start(t)
	maintenance := pb.NewMaintenanceClient(client.ActiveConnection())
	lease := expect.Must(client.Grant(ctx, 100))(t).ID
	putAll(t, ctx, client, "a=1", "b=1")
	expect.Equal(t, "alarms", len(expect.Must(client.AlarmList(ctx))(t).Alarms), 0)
	member := expect.Must(client.Status(ctx, server.Endpoint))(t).Header.MemberId
	raise := &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, MemberID: member, Alarm: pb.AlarmType_NOSPACE}
	for range 2 { // raising twice is as good as once
		expect.Equal(t, "raised", len(expect.Must(maintenance.Alarm(ctx, raise))(t).Alarms), 1)
	}
	errorTexts := expect.Must(client.Status(ctx, server.Endpoint))(t).Errors
	expect.Equal(t, "errors in the status", len(errorTexts), 1)
	// Go's protobuf library varies the white space of this text from build to build.
	expect.Equal(t, "status", strings.Join(strings.Fields(errorTexts[0]), " "), fmt.Sprintf("memberID:%d alarm:NOSPACE", member))

	const noSpace = "etcdserver: mvcc: database space exceeded"
	_, err := client.Put(ctx, "a", "2")
	wantStatus(t, err, codes.ResourceExhausted, noSpace)
	_, err = client.Txn(ctx).Then(clientv3.OpPut("a", "2")).Commit()
	wantStatus(t, err, codes.ResourceExhausted, noSpace)
	_, err = client.Txn(ctx).Then(clientv3.OpTxn(nil, nil, []clientv3.Op{clientv3.OpPut("a", "2")})).Commit()
	wantStatus(t, err, codes.ResourceExhausted, noSpace)
	_, err = client.Grant(ctx, 100)
	wantStatus(t, err, codes.ResourceExhausted, noSpace)
	expect.Equal(t, "reads go on", expect.Must(client.Get(ctx, "a"))(t).Count, 1)
	expect.Must(client.KeepAliveOnce(ctx, lease))(t)
	expect.Must(client.Txn(ctx).Then(clientv3.OpGet("a"), clientv3.OpDelete("b")).Commit())(t)
	expect.Equal(t, "deletions go on", expect.Must(client.Delete(ctx, "a"))(t).Deleted, 1)

	disarmed := expect.Must(client.AlarmDisarm(ctx, &clientv3.AlarmMember{MemberID: member, Alarm: pb.AlarmType_NOSPACE}))(t)
	expect.Equal(t, "disarmed", len(disarmed.Alarms), 1)
	disarmed = expect.Must(client.AlarmDisarm(ctx, &clientv3.AlarmMember{MemberID: member, Alarm: pb.AlarmType_NOSPACE}))(t)
	expect.Equal(t, "disarmed again", len(disarmed.Alarms), 0)
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
	alarms := expect.Must(client.AlarmList(ctx))(t).Alarms
	expect.Equal(t, "alarms", len(alarms), 1)
	expect.Equal(t, "alarm", alarms[0].Alarm, pb.AlarmType_NOSPACE)
	expect.Equal(t, "quota", expect.Must(client.Status(ctx, server.Endpoint))(t).DbSizeQuota, 4<<20)
	// The alarm outlives a restart; deleting, compacting, defragmenting and
	// disarming brings the writes back.
	server.Restart()
	client = server.Client()
	_, err := client.Put(ctx, "k", "v")
	wantStatus(t, err, codes.ResourceExhausted, "etcdserver: mvcc: database space exceeded")
	revision := expect.Must(client.Delete(ctx, "k", clientv3.WithPrefix()))(t).Header.Revision
	expect.Must(client.Compact(ctx, revision, clientv3.WithCompactPhysical()))(t)
	expect.Must(client.Defragment(ctx, server.Endpoint))(t)
	expect.Must(client.AlarmDisarm(ctx, &clientv3.AlarmMember{}))(t)
	putAll(t, ctx, client, "k=v")
}

func TestMembers(t *testing.T) {
	server, client, ctx := start(t)
	list := expect.Must(client.MemberList(ctx))(t)
	expect.Equal(t, "members", len(list.Members), 1)
	member := list.Members[0]
	expect.Equal(t, "id", member.ID, list.Header.MemberId)
	expect.Equal(t, "name", member.Name, "subject")
	expect.Equal(t, "client URLs", fmt.Sprint(member.ClientURLs), "["+server.URL()+"]")
	expect.Equal(t, "peer URLs", fmt.Sprint(member.PeerURLs), "["+server.PeerURL()+"]")
	expect.Equal(t, "learner", member.IsLearner, false)
	expect.Equal(t, "no revision in this header", list.Header.Revision, 0)
	expect.NoError(t, client.Sync(ctx))
	expect.Equal(t, "endpoints", fmt.Sprint(client.Endpoints()), "["+server.URL()+"]")

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
	stream := expect.Must(pb.NewMaintenanceClient(client.ActiveConnection()).Snapshot(ctx, &pb.SnapshotRequest{}))(t)
	var content bytes.Buffer
	var last *pb.SnapshotResponse
	for {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		expect.NoError(t, err)
		content.Write(chunk.Blob)
		last = chunk
	}
	expect.Equal(t, "a whole number of pages and a checksum", content.Len() > 32 && content.Len()%512 == 32, true)
	database, checksum := content.Bytes()[:content.Len()-32], content.Bytes()[content.Len()-32:]
	expect.Equal(t, "checksum", sha256.Sum256(database), [32]byte(checksum))
	expect.Equal(t, "remaining at the end", last.RemainingBytes, uint64(0))
	// A new etcd raises its storage version some time after it serves.
	if server.Subject().IsOurs() {
		expect.Equal(t, "version", last.Version, "3.7.0")
	}
}

func TestHealthService(t *testing.T) {
	_, client, ctx := start(t)
	health := healthpb.NewHealthClient(client.ActiveConnection())
	expect.Equal(t, "server", expect.Must(health.Check(ctx, &healthpb.HealthCheckRequest{}))(t).Status, healthpb.HealthCheckResponse_SERVING)
	_, err := health.Check(ctx, &healthpb.HealthCheckRequest{Service: "no.such.Service"})
	wantStatus(t, err, codes.NotFound, "unknown service")
	watch := expect.Must(health.Watch(ctx, &healthpb.HealthCheckRequest{}))(t)
	expect.Equal(t, "watched", expect.Must(watch.Recv())(t).Status, healthpb.HealthCheckResponse_SERVING)
	unknown := expect.Must(health.Watch(ctx, &healthpb.HealthCheckRequest{Service: "no.such.Service"}))(t)
	expect.Equal(t, "unknown", expect.Must(unknown.Recv())(t).Status, healthpb.HealthCheckResponse_SERVICE_UNKNOWN)
}
