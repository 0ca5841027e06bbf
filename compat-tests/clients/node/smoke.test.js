// Smoke tests of the package etcd3 against the server at ENDPOINT. They run in order; the last ones turn
// authentication on and off.
'use strict';
const assert = require('node:assert/strict');
const { once } = require('node:events');
const { test, after } = require('node:test');
const etcd = require('etcd3');

const hosts = `http://${process.env.ENDPOINT}`;
const client = new etcd.Etcd3({ hosts });
const deadline = { timeout: 30_000 };
after(() => client.close());

/** Waits until check gives a truthy value. */
async function eventually(check, within = 15_000) {
  const end = Date.now() + within;
  for (;;) {
    const value = await check();
    if (value) return value;
    assert.ok(Date.now() < end, 'not in time');
    await new Promise((done) => setTimeout(done, 50));
  }
}

/** Collects what a watcher reports as [type, key, value]. */
function collect(watcher, events = []) {
  watcher.on('put', (kv) => events.push(['put', kv.key.toString(), kv.value.toString()]));
  watcher.on('delete', (kv) => events.push(['delete', kv.key.toString(), '']));
  return events;
}

test('put, get, delete', deadline, async () => {
  assert.equal(await client.get('kv/missing').string(), null);
  const put = await client.put('kv/a').value('one');
  await client.put('kv/b').value(JSON.stringify({ x: 2 }));
  const binary = Buffer.from([0, 255, 128]);
  await client.put(binary).value(binary);
  assert.deepEqual(await client.get(binary).buffer(), binary);
  assert.equal(await client.get('kv/a'), 'one');
  assert.deepEqual(await client.get('kv/b').json(), { x: 2 });
  assert.equal((await client.put('kv/a').value('two').getPrevious()).value.toString(), 'one');
  assert.equal(await client.get('kv/a').revision(put.header.revision), 'one');
  const { kvs } = await client.get('kv/a').exec();
  assert.deepEqual([kvs[0].version, kvs[0].create_revision], ['2', put.header.revision]);
  assert.equal((await client.delete().key('kv/a')).deleted, '1');
  assert.equal((await client.delete().key('kv/a')).deleted, '0');
  assert.equal(await client.get('kv/a').exists(), false);
});

test('ranges', deadline, async () => {
  for (const name of ['a', 'b', 'c', 'd']) await client.put(`range/${name}`).value(name.toUpperCase());
  await client.put('rangf').value('beside');
  const all = () => client.getAll().prefix('range/');
  assert.deepEqual(await all().strings(), { 'range/a': 'A', 'range/b': 'B', 'range/c': 'C', 'range/d': 'D' });
  assert.deepEqual(await all().sort('Key', 'Descend').limit(2).keys(), ['range/d', 'range/c']);
  assert.deepEqual(await client.getAll().inRange({ start: 'range/b', end: 'range/d' }).keys(), ['range/b', 'range/c']);
  assert.equal(await all().count(), 4);
  const removed = await client.delete().prefix('range/').getPrevious();
  assert.deepEqual(removed.map((kv) => kv.value.toString()).sort(), ['A', 'B', 'C', 'D']);
  assert.equal(await client.get('rangf'), 'beside');
});

test('transactions', deadline, async () => {
  const create = () =>
    client.if('txn/key', 'Create', '==', 0).then(client.put('txn/key').value('mine')).else(client.get('txn/key')).commit();
  assert.equal((await create()).succeeded, true);
  const again = await create();
  assert.equal(again.succeeded, false);
  assert.equal(again.responses[0].response_range.kvs[0].value.toString(), 'mine');
  const swap = await client.if('txn/key', 'Value', '==', 'mine').and('txn/key', 'Version', '<', 2)
    .then(client.put('txn/key').value('swapped'), client.put('txn/other').value('too')).commit();
  assert.equal(swap.succeeded, true);
  const both = (await client.getAll().prefix('txn/').exec()).kvs;
  assert.equal(both[0].mod_revision, both[1].mod_revision);
});

test('software transactional memory', deadline, async () => {
  await client.put('stm/counter').value('0');
  const add = () =>
    client.stm({ retries: 100 }).transact(async (tx) => {
      await tx.put('stm/counter').value(Number(await tx.get('stm/counter').string()) + 1);
    });
  await Promise.all(Array.from({ length: 8 }, add));
  assert.equal(await client.get('stm/counter').number(), 8);
});

test('namespaces', deadline, async () => {
  const inside = client.namespace('space/');
  await inside.put('key').value('v');
  assert.equal(await client.get('space/key'), 'v');
  assert.deepEqual(await inside.getAll().keys(), ['key']);
});

test('a lease is kept alive and revoked', deadline, async () => {
  const lease = client.lease(2);
  await lease.put('lease/kept').value('v');
  const id = await lease.grant();
  let renewals = 0;
  lease.on('keepaliveSucceeded', () => renewals++);
  // Well beyond its TTL.
  await eventually(() => renewals >= 6);
  assert.equal(await client.get('lease/kept'), 'v');
  const left = await client.leaseClient.leaseTimeToLive({ ID: id, keys: true });
  assert.deepEqual([left.grantedTTL, left.keys.map(String)], ['2', ['lease/kept']]);
  await lease.revoke();
  assert.equal(await client.get('lease/kept').exists(), false);
});

test('a lease expires', deadline, async () => {
  const { ID } = await client.leaseClient.leaseGrant({ TTL: 1 });
  const started = Date.now();
  await client.put('lease/short').value('v').lease(ID);
  const watcher = await client.watch().key('lease/short').create();
  const [gone] = await once(watcher, 'delete');
  assert.equal(gone.key.toString(), 'lease/short');
  assert.ok(Date.now() - started >= 900, 'before its time');
  await watcher.cancel();
  assert.equal((await client.leaseClient.leaseTimeToLive({ ID })).TTL, '-1');
});

test('a lost lease is reported', deadline, async () => {
  const lease = client.lease(2);
  const lost = once(lease, 'lost');
  await client.leaseClient.leaseRevoke({ ID: await lease.grant() });
  assert.ok((await lost)[0] instanceof etcd.EtcdLeaseInvalidError);
});

test('watches', deadline, async () => {
  const watcher = await client.watch().prefix('watch/').create();
  const events = collect(watcher);
  const first = await client.put('watch/a').value('1');
  await client.put('watcher').value('beside');
  await client.put('watch/b').value('2');
  await client.delete().key('watch/a');
  const want = [['put', 'watch/a', '1'], ['put', 'watch/b', '2'], ['delete', 'watch/a', '']];
  await eventually(() => events.length >= want.length);
  assert.deepEqual(events, want);
  await watcher.cancel();
  // The same from the past, without deletions.
  const late = client.watch().prefix('watch/').startRevision(first.header.revision).only('put').watcher();
  const again = collect(late);
  await eventually(() => again.length >= 2);
  assert.deepEqual(again, want.slice(0, 2));
  await late.cancel();
});

test('a watch goes on after its stream has broken', deadline, async () => {
  const watcher = await client.watch().key('resume').create();
  const events = collect(watcher);
  await client.put('resume').value('1');
  await eventually(() => events.length === 1);
  const back = once(watcher, 'connected');
  const broken = once(watcher, 'disconnected');
  client.watchManager.stream.cancel();
  await broken;
  await client.put('resume').value('2');
  await back;
  await client.put('resume').value('3');
  await eventually(() => events.length >= 3);
  assert.deepEqual(events.map((event) => event[2]), ['1', '2', '3']);
  await watcher.cancel();
});

test('locks exclude', deadline, async () => {
  const held = await client.lock('lock').ttl(5).acquire();
  await assert.rejects(client.lock('lock').acquire(), etcd.EtcdLockFailedError);
  await held.release();
  await client.lock('lock').do(async () => assert.equal(await client.get('lock').exists(), true));
});

test('elections', deadline, async () => {
  const election = client.election('chair', 5);
  const first = election.campaign('one');
  await first.wait();
  const observer = await election.observe();
  await eventually(() => observer.leader() === 'one');
  const second = election.campaign('two');
  await first.proclaim('one again');
  await eventually(() => observer.leader() === 'one again');
  await first.resign();
  await second.wait();
  await eventually(() => observer.leader() === 'two');
  await second.resign();
  await observer.cancel();
});

test('errors have their classes and texts', deadline, async () => {
  await assert.rejects(client.put('x').value('y').lease('123456789'), (error) => {
    assert.ok(error instanceof etcd.EtcdLeaseInvalidError, error);
    assert.match(error.message, /etcdserver: requested lease not found/);
    return true;
  });
  await assert.rejects(client.get('x').revision('999999999').exec(), /required revision is a future revision/);
  await assert.rejects(client.kv.put({ key: Buffer.alloc(0), value: Buffer.from('v') }), /etcdserver: key is not provided/);
  const { header } = await client.put('x').value('y');
  await client.kv.compact({ revision: header.revision });
  await assert.rejects(client.kv.compact({ revision: header.revision }), /required revision has been compacted/);
  await assert.rejects(client.user('nobody').delete(), etcd.EtcdUserNotFoundError);
  await assert.rejects(client.role('nothing').permissions(), etcd.EtcdRoleNotFoundError);
});

test('maintenance', deadline, async () => {
  const status = await client.maintenance.status();
  assert.match(status.version, /^3\.7\./);
  const { members } = await client.cluster.memberList({});
  assert.equal(members.length, 1);
  assert.ok((await client.maintenance.hash()).hash !== undefined);
  await client.maintenance.defragment();
});

test('users and roles', deadline, async () => {
  const root = client.user('root');
  await root.create('secret');
  await client.role('root').create();
  await root.addRole('root');
  const reader = client.role('reader');
  await reader.create();
  await reader.grant({ permission: 'Read', range: etcd.Range.prefix('open/') });
  const user = client.user('someone');
  await user.create('word');
  await assert.rejects(user.create('word'), etcd.EtcdUserExistsError);
  await user.addRole('reader');
  await client.put('open/key').value('v');
  await client.auth.authEnable();
  const as = (username, password) => new etcd.Etcd3({ hosts, auth: { username, password } });
  const admin = as('root', 'secret');
  const someone = as('someone', 'word');
  const wrong = as('someone', 'guess');
  try {
    assert.equal(await someone.get('open/key'), 'v');
    await assert.rejects(someone.put('open/key').value('w'), etcd.EtcdPermissionDeniedError);
    await assert.rejects(someone.get('closed').exec(), etcd.EtcdPermissionDeniedError);
    await assert.rejects(wrong.get('open/key').exec(), etcd.EtcdAuthenticationFailedError);
    await assert.rejects(client.get('open/key').exec(), /user name is empty/);
    await admin.put('closed').value('v');
    assert.deepEqual((await admin.user('someone').roles()).map((role) => role.name), ['reader']);
  } finally {
    await admin.auth.authDisable();
    for (const one of [admin, someone, wrong]) one.close();
  }
  assert.equal(await client.get('closed'), 'v');
});
