import static java.nio.charset.StandardCharsets.UTF_8;

import io.etcd.jetcd.ByteSequence;
import io.etcd.jetcd.Client;
import io.etcd.jetcd.Election;
import io.etcd.jetcd.KV;
import io.etcd.jetcd.KeyValue;
import io.etcd.jetcd.Lease;
import io.etcd.jetcd.Watch;
import io.etcd.jetcd.auth.Permission;
import io.etcd.jetcd.common.exception.CompactedException;
import io.etcd.jetcd.common.exception.ErrorCode;
import io.etcd.jetcd.common.exception.EtcdException;
import io.etcd.jetcd.election.LeaderKey;
import io.etcd.jetcd.election.LeaderResponse;
import io.etcd.jetcd.election.NoLeaderException;
import io.etcd.jetcd.lease.LeaseKeepAliveResponse;
import io.etcd.jetcd.op.Cmp;
import io.etcd.jetcd.op.CmpTarget;
import io.etcd.jetcd.op.Op;
import io.etcd.jetcd.options.DeleteOption;
import io.etcd.jetcd.options.GetOption;
import io.etcd.jetcd.options.LeaseOption;
import io.etcd.jetcd.options.PutOption;
import io.etcd.jetcd.options.WatchOption;
import io.etcd.jetcd.support.CloseableClient;
import io.etcd.jetcd.watch.WatchEvent;
import io.grpc.Status;
import io.grpc.stub.StreamObserver;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;

/**
 * Smoke tests of jetcd against the server at ENDPOINT. They run in order, the last one turns authentication
 * on and off; for each a line `ok - NAME` or `not ok - NAME` is printed.
 */
public final class Smoke {
    private static final String URL = "http://" + System.getenv("ENDPOINT");
    private static final long SECONDS = 20;

    private final Client client = Client.builder().endpoints(URL).build();
    private final KV kv = client.getKVClient();
    private final Lease leases = client.getLeaseClient();

    private interface Test {
        void run() throws Exception;
    }

    private interface Condition {
        boolean holds() throws Exception;
    }

    public static void main(String[] arguments) {
        Smoke smoke = new Smoke();
        Map<String, Test> tests = new LinkedHashMap<>();
        tests.put("put, get, delete", smoke::putGetDelete);
        tests.put("ranges", smoke::ranges);
        tests.put("transactions", smoke::transactions);
        tests.put("a lease is kept alive and revoked", smoke::leaseKept);
        tests.put("a lease expires", smoke::leaseExpires);
        tests.put("watches", smoke::watches);
        tests.put("a watch tells of compaction", smoke::watchCompacted);
        tests.put("locks exclude", smoke::locks);
        tests.put("elections", smoke::elections);
        tests.put("errors have their codes and texts", smoke::errors);
        tests.put("maintenance", smoke::maintenance);
        tests.put("users and roles", smoke::usersAndRoles);
        for (Map.Entry<String, Test> test : tests.entrySet()) {
            try {
                test.getValue().run();
                System.out.println("ok - " + test.getKey());
            } catch (Throwable error) {
                error.printStackTrace(System.out);
                System.out.println("not ok - " + test.getKey());
            }
        }
        smoke.client.close();
        System.exit(0);
    }

    private void putGetDelete() throws Exception {
        check(get("kv/none").isEmpty(), "a key that nobody wrote");
        long created = await(kv.put(bytes("kv/a"), bytes("1"))).getHeader().getRevision();
        KeyValue before = await(kv.put(bytes("kv/a"), bytes("2"), PutOption.builder().withPrevKV().build())).getPrevKv();
        equal("1", text(before.getValue()));
        KeyValue now = get("kv/a").get(0);
        equal("2", text(now.getValue()));
        equal(2L, now.getVersion());
        equal(created, now.getCreateRevision());
        GetOption old = GetOption.builder().withRevision(created).build();
        equal("1", text(await(kv.get(bytes("kv/a"), old)).getKvs().get(0).getValue()));
        equal(1L, await(kv.delete(bytes("kv/a"))).getDeleted());
        equal(0L, await(kv.delete(bytes("kv/a"))).getDeleted());
    }

    private void ranges() throws Exception {
        for (String name : List.of("a", "b", "c", "d")) {
            await(kv.put(bytes("range/" + name), bytes(name)));
        }
        await(kv.put(bytes("rangf"), bytes("beside")));
        GetOption prefix = GetOption.builder().isPrefix(true).build();
        equal(List.of("range/a", "range/b", "range/c", "range/d"), keys(await(kv.get(bytes("range/"), prefix)).getKvs()));
        GetOption last = GetOption.builder().isPrefix(true).withSortField(GetOption.SortTarget.KEY)
            .withSortOrder(GetOption.SortOrder.DESCEND).withLimit(2).build();
        equal(List.of("range/d", "range/c"), keys(await(kv.get(bytes("range/"), last)).getKvs()));
        GetOption middle = GetOption.builder().withRange(bytes("range/d")).withKeysOnly(true).build();
        equal(List.of("range/b", "range/c"), keys(await(kv.get(bytes("range/b"), middle)).getKvs()));
        GetOption count = GetOption.builder().isPrefix(true).withCountOnly(true).build();
        equal(4L, await(kv.get(bytes("range/"), count)).getCount());
        DeleteOption all = DeleteOption.builder().isPrefix(true).withPrevKV(true).build();
        equal(4, await(kv.delete(bytes("range/"), all)).getPrevKvs().size());
        equal(1, get("rangf").size());
    }

    private void transactions() throws Exception {
        ByteSequence key = bytes("txn/key");
        for (boolean first : new boolean[] {true, false}) {
            var answer = await(kv.txn().If(new Cmp(key, Cmp.Op.EQUAL, CmpTarget.createRevision(0)))
                .Then(Op.put(key, bytes("mine"), PutOption.DEFAULT)).Else(Op.get(key, GetOption.DEFAULT)).commit());
            equal(first, answer.isSucceeded());
            if (!first) {
                equal("mine", text(answer.getGetResponses().get(0).getKvs().get(0).getValue()));
            }
        }
        var swap = await(kv.txn()
            .If(new Cmp(key, Cmp.Op.EQUAL, CmpTarget.value(bytes("mine"))), new Cmp(key, Cmp.Op.LESS, CmpTarget.version(2)))
            .Then(Op.put(key, bytes("swapped"), PutOption.DEFAULT), Op.delete(bytes("txn/none"), DeleteOption.DEFAULT)).commit());
        check(swap.isSucceeded(), "the swap");
        equal(0L, swap.getDeleteResponses().get(0).getDeleted());
    }

    private void leaseKept() throws Exception {
        long id = await(leases.grant(2)).getID();
        await(kv.put(bytes("lease/kept"), bytes("v"), PutOption.builder().withLeaseId(id).build()));
        AtomicInteger renewals = new AtomicInteger();
        Queue<Throwable> failures = new ConcurrentLinkedQueue<>();
        try (CloseableClient renewing = leases.keepAlive(id, new StreamObserver<>() {
            @Override
            public void onNext(LeaseKeepAliveResponse answer) {
                renewals.incrementAndGet();
            }

            @Override
            public void onError(Throwable error) {
                failures.add(error);
            }

            @Override
            public void onCompleted() {}
        })) {
            // Well beyond its TTL.
            eventually(() -> renewals.get() >= 7);
        }
        check(failures.isEmpty(), "renewed without errors");
        var left = await(leases.timeToLive(id, LeaseOption.builder().withAttachedKeys().build()));
        equal(2L, left.getGrantedTTL());
        equal("lease/kept", text(left.getKeys().get(0)));
        await(leases.revoke(id));
        check(get("lease/kept").isEmpty(), "gone with its lease");
    }

    private void leaseExpires() throws Exception {
        long id = await(leases.grant(2)).getID();
        long started = System.nanoTime();
        await(kv.put(bytes("lease/short"), bytes("v"), PutOption.builder().withLeaseId(id).build()));
        eventually(() -> get("lease/short").isEmpty());
        check(System.nanoTime() - started >= TimeUnit.MILLISECONDS.toNanos(1900), "not before its time");
        equal(-1L, await(leases.timeToLive(id, LeaseOption.DEFAULT)).getTTL());
    }

    private void watches() throws Exception {
        Queue<String> events = new ConcurrentLinkedQueue<>();
        WatchOption prefix = WatchOption.builder().isPrefix(true).withPrevKV(true).build();
        long first = await(kv.put(bytes("watch/a"), bytes("1"))).getHeader().getRevision();
        WatchOption past = WatchOption.builder().isPrefix(true).withRevision(first).build();
        Queue<String> again = new ConcurrentLinkedQueue<>();
        try (Watch.Watcher late = client.getWatchClient().watch(bytes("watch/"), past, listener(again))) {
            eventually(() -> again.size() == 1);
            try (Watch.Watcher watcher = client.getWatchClient().watch(bytes("watch/"), prefix, listener(events))) {
                await(kv.put(bytes("watcher"), bytes("beside")));
                // A watch begins at some revision from its creation on: keep writing until it is seen.
                eventually(() -> {
                    await(kv.put(bytes("watch/begin"), bytes("x")));
                    return !events.isEmpty();
                });
                await(kv.delete(bytes("watch/a")));
                eventually(() -> events.contains("DELETE watch/a  was 1"));
            }
            eventually(() -> again.contains("DELETE watch/a  was "));
            equal("PUT watch/a 1 was ", again.peek());
        }
    }

    private void watchCompacted() throws Exception {
        long first = await(kv.put(bytes("old"), bytes("1"))).getHeader().getRevision();
        long last = await(kv.put(bytes("old"), bytes("2"))).getHeader().getRevision();
        await(kv.compact(last));
        CompletableFuture<Throwable> failed = new CompletableFuture<>();
        WatchOption past = WatchOption.builder().withRevision(first).build();
        try (Watch.Watcher watcher = client.getWatchClient().watch(bytes("old"), past, Watch.listener(answer -> {}, failed::complete))) {
            Throwable error = await(failed);
            check(error instanceof CompactedException, "not " + error);
            equal(last, ((CompactedException) error).getCompactedRevision());
        }
    }

    private void locks() throws Exception {
        long one = await(leases.grant(30)).getID();
        long two = await(leases.grant(30)).getID();
        ByteSequence held = await(client.getLockClient().lock(bytes("lock"), one)).getKey();
        equal(1, get(text(held)).size());
        var waiting = client.getLockClient().lock(bytes("lock"), two);
        GetOption prefix = GetOption.builder().isPrefix(true).build();
        eventually(() -> await(kv.get(bytes("lock/"), prefix)).getKvs().size() == 2);
        check(!waiting.isDone(), "the second waits");
        await(client.getLockClient().unlock(held));
        ByteSequence next = await(waiting).getKey();
        check(!next.equals(held), "keys differ");
        await(leases.revoke(two));
        equal(text(held), text(await(client.getLockClient().lock(bytes("lock"), one)).getKey()));
        await(leases.revoke(one));
    }

    private void elections() throws Exception {
        Election election = client.getElectionClient();
        ByteSequence name = bytes("chair");
        Throwable nobody = failure(election.leader(name));
        check(nobody instanceof NoLeaderException, "not " + nobody);
        long one = await(leases.grant(30)).getID();
        long two = await(leases.grant(30)).getID();
        Queue<String> seen = new ConcurrentLinkedQueue<>();
        LeaderKey first = await(election.campaign(name, one, bytes("one"))).getLeader();
        election.observe(name, new Election.Listener() {
            @Override
            public void onNext(LeaderResponse answer) {
                seen.add(text(answer.getKv().getValue()));
            }

            @Override
            public void onError(Throwable error) {
                seen.add(error.toString());
            }

            @Override
            public void onCompleted() {}
        });
        eventually(() -> seen.contains("one"));
        var second = election.campaign(name, two, bytes("two"));
        await(election.proclaim(first, bytes("one again")));
        eventually(() -> seen.contains("one again"));
        check(!second.isDone(), "the second waits");
        await(election.resign(first));
        LeaderKey now = await(second).getLeader();
        eventually(() -> seen.contains("two"));
        equal("two", text(await(election.leader(name)).getKv().getValue()));
        equal(List.of("one", "one again", "two"), List.copyOf(seen));
        await(election.resign(now));
        await(leases.revoke(one));
        await(leases.revoke(two));
    }

    private void errors() throws Exception {
        refused(kv.put(bytes("x"), bytes("y"), PutOption.builder().withLeaseId(12345).build()), ErrorCode.NOT_FOUND,
            "etcdserver: requested lease not found");
        refused(kv.get(bytes("x"), GetOption.builder().withRevision(1L << 40).build()), ErrorCode.OUT_OF_RANGE,
            "etcdserver: mvcc: required revision is a future revision");
        refused(kv.put(bytes(""), bytes("v")), ErrorCode.INVALID_ARGUMENT, "etcdserver: key is not provided");
        refused(kv.compact(1L << 40), ErrorCode.OUT_OF_RANGE, "etcdserver: mvcc: required revision is a future revision");
        refused(leases.revoke(12345), ErrorCode.NOT_FOUND, "etcdserver: requested lease not found");
        refused(client.getAuthClient().userDelete(bytes("nobody")), ErrorCode.FAILED_PRECONDITION, "etcdserver: user name not found");
    }

    private void maintenance() throws Exception {
        check(await(client.getMaintenanceClient().statusMember(URL)).getVersion().startsWith("3.7."), "the version");
        await(client.getMaintenanceClient().defragmentMember(URL));
        await(client.getMaintenanceClient().hashKV(URL, 0));
        check(await(client.getMaintenanceClient().listAlarms()).getAlarms().isEmpty(), "no alarms");
        equal(1, await(client.getClusterClient().listMember()).getMembers().size());
    }

    private void usersAndRoles() throws Exception {
        var auth = client.getAuthClient();
        ByteSequence root = bytes("root");
        await(auth.userAdd(root, bytes("secret")));
        await(auth.roleAdd(root));
        await(auth.userGrantRole(root, root));
        await(auth.roleAdd(bytes("reader")));
        await(auth.roleGrantPermission(bytes("reader"), bytes("open/"), bytes("open0"), Permission.Type.READ));
        await(auth.userAdd(bytes("someone"), bytes("word")));
        await(auth.userGrantRole(bytes("someone"), bytes("reader")));
        await(kv.put(bytes("open/key"), bytes("v")));
        await(auth.authEnable());
        try (Client admin = as("root", "secret"); Client someone = as("someone", "word"); Client wrong = as("someone", "guess")) {
            try {
                KV theirs = someone.getKVClient();
                equal("v", text(await(theirs.get(bytes("open/key"))).getKvs().get(0).getValue()));
                refused(theirs.put(bytes("open/key"), bytes("w")), ErrorCode.PERMISSION_DENIED, "etcdserver: permission denied");
                refused(theirs.get(bytes("closed")), ErrorCode.PERMISSION_DENIED, "etcdserver: permission denied");
                // The library keeps the server's text for itself.
                refused(wrong.getKVClient().get(bytes("open/key")), ErrorCode.UNAUTHENTICATED, "UNAUTHENTICATED");
                refused(kv.get(bytes("open/key")), ErrorCode.INVALID_ARGUMENT, "etcdserver: user name is empty");
                equal(List.of("reader"), await(admin.getAuthClient().userGet(bytes("someone"))).getRoles());
            } finally {
                await(admin.getAuthClient().authDisable());
            }
        }
        equal(1, get("open/key").size());
    }

    private static Client as(String user, String password) {
        return Client.builder().endpoints(URL).user(bytes(user)).password(bytes(password)).build();
    }

    private static Watch.Listener listener(Queue<String> events) {
        return Watch.listener(answer -> {
            for (WatchEvent event : answer.getEvents()) {
                events.add(event.getEventType() + " " + text(event.getKeyValue().getKey()) + " "
                    + text(event.getKeyValue().getValue()) + " was " + text(event.getPrevKV().getValue()));
            }
        });
    }

    private List<KeyValue> get(String key) throws Exception {
        return await(kv.get(bytes(key))).getKvs();
    }

    private static List<String> keys(List<KeyValue> found) {
        return found.stream().map(one -> text(one.getKey())).collect(Collectors.toList());
    }

    private static ByteSequence bytes(String text) {
        return ByteSequence.from(text, UTF_8);
    }

    private static String text(ByteSequence bytes) {
        return bytes.toString(UTF_8);
    }

    private static <T> T await(CompletableFuture<T> answer) throws Exception {
        return answer.get(SECONDS, TimeUnit.SECONDS);
    }

    /** The cause with which a request fails. */
    private static Throwable failure(CompletableFuture<?> answer) throws Exception {
        try {
            await(answer);
        } catch (ExecutionException error) {
            return error.getCause();
        }
        throw new AssertionError("was not refused");
    }

    private static void refused(CompletableFuture<?> answer, ErrorCode code, String text) throws Exception {
        Throwable error = failure(answer);
        check(error.getMessage().contains(text), "not the text " + text + ": " + error.getMessage());
        // Some of the library's calls have its own exception, some hand on the one of gRPC.
        equal(code.name(), error instanceof EtcdException
            ? ((EtcdException) error).getErrorCode().name() : Status.fromThrowable(error).getCode().name());
    }

    private static void eventually(Condition condition) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS);
        while (!condition.holds()) {
            check(System.nanoTime() < end, "in time");
            Thread.sleep(20);
        }
    }

    private static void equal(Object want, Object got) {
        check(want.equals(got), "want " + want + ", got " + got);
    }

    private static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }
}
