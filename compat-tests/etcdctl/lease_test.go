package etcdctlsuite

import "testing"

func TestLease(t *testing.T) {
	p := newPair(t)
	p.ok("lease list")
	p.capture("lease", `lease (\S+) granted`, "lease grant 1000")
	p.capture("other", `lease (\S+) granted`, "lease grant 500")
	for _, format := range []string{"simple", "fields", "json"} {
		p.ok("lease grant 200 -w " + format)
		p.ok("lease list -w " + format)
		p.ok("lease timetolive {lease} -w " + format)
		p.ok("lease timetolive {lease} --keys -w " + format)
		p.ok("put attached v --lease={lease}")
		p.ok("lease timetolive {lease} --keys -w " + format)
		p.ok("lease keep-alive {lease} --once -w " + format)
		p.ok("del attached")
		p.ok("lease timetolive 4d2 -w " + format)
	}
	p.ok("put k1 v --lease={lease}")
	p.ok("put k2 v --lease={lease}")
	p.ok("put k3 v --lease={other}")
	p.ok("lease revoke {lease}")
	p.runArgs([]string{"get", "", "--prefix"}, "", succeeds)
	p.ok("lease timetolive {lease} --keys")
	p.ok("lease revoke {other} -w json")
	p.fails("lease revoke {lease}")
	p.fails("lease keep-alive {lease} --once")
	p.ok("lease grant 1")
	p.fails("lease grant 9000000001")
	p.fails("lease grant")
	p.fails("lease grant soon")
	p.fails("lease revoke nothex")
	p.fails("lease timetolive")
	p.runArgs([]string{"get", "", "--prefix", "-w", "json"}, "", succeeds)
}

func TestLeaseKeepAliveEnds(t *testing.T) {
	p := newPair(t)
	p.capture("lease", `lease (\S+) granted`, "lease grant 60")
	b := p.start("lease keep-alive {lease}")
	b.await("keepalived")
	p.ok("lease revoke {lease}")
	b.finish()
}

func TestLeaseExpires(t *testing.T) {
	p := newPair(t)
	p.capture("lease", `lease (\S+) granted`, "lease grant 2")
	p.ok("put k v --lease={lease}")
	b := p.start("watch k --rev=2")
	b.await("DELETE\nk\n")
	b.stop()
	p.ok("lease timetolive {lease} --keys")
	p.ok("lease list")
}

func TestLock(t *testing.T) {
	p := newPair(t)
	first := p.start("lock name --ttl=20")
	first.await("name/")
	second := p.start("lock name --ttl=20")
	p.awaitCount("name", 2)
	first.stop()
	second.await("name/")
	second.stop()
	p.ok("lock name echo held")
	p.ok("lock name printenv ETCD_LOCK_REV")
	p.runArgs([]string{"lock", "name", "--", "sh", "-c", "exit 3"}, "", fails)
	p.awaitCount("name", 0)
}

func TestElect(t *testing.T) {
	p := newPair(t)
	leader := p.start("elect name first")
	leader.await("first")
	observer := p.start("elect name --listen")
	observer.await("first")
	rival := p.start("elect name second")
	p.awaitCount("name", 2)
	leader.stop()
	rival.await("second")
	observer.await("second")
	observer.stop()
	rival.stop()
	p.awaitCount("name", 0)
}
