package etcdctlsuite

import (
	"regexp"
	"strings"
	"testing"
)

// rule replaces one thing that differs between any two etcds.
type rule struct {
	pattern     *regexp.Regexp
	replacement string
}

func replace(pattern, replacement string) rule {
	return rule{regexp.MustCompile(pattern), replacement}
}

// rules are applied in order.
var rules = []rule{
	// Tables are as wide as what is in them.
	replace(`─+`, `─`),
	replace(` {2,}`, ` `),
	// etcdctl's own log lines.
	replace(`"ts":"[^"]*"`, `"ts":TIME`),
	replace(`etcd-endpoints://0x[0-9a-f]+/`, `etcd-endpoints://POINTER/`),
	replace(`LocalAddr: '[^']*'`, `LocalAddr: LOCAL`),
	// Positions in the raft log: in a status line they follow the two flags.
	replace(`"(raft_term|raftTerm|raftIndex|raftAppliedIndex)":\d+`, `"$1":INDEX`),
	replace(`"(RaftTerm|RaftIndex|RaftAppliedIndex)" : \d+`, `"$1" : INDEX`),
	replace(`(true|false), (true|false), \d+, \d+, \d+,`, `$1, $2, INDEX, INDEX, INDEX,`),
	replace(`│ (true|false) │ (true|false) │ \d+ │ \d+ │ \d+ │`, `│ $1 │ $2 │ INDEX │ INDEX │ INDEX │`),
	// Sizes of the data file; the quota is no size of it and stays.
	replace(`"(dbSize|dbSizeInUse)":\d+`, `"$1":SIZE`),
	replace(`"(DBSize|DBSizeInUse)" : \d+`, `"$1" : SIZE`),
	replace(`\d+(\.\d+)? [kM]?B\b`, `SIZE`),
	replace(`\b\d+%`, `PERCENT`),
	// Durations.
	replace(`\b[0-9.]+(µs|ms|s)\b([^)]|$)`, `TIME$2`),
	// Hashes of the history: every implementation has its own.
	replace(`"hash":\d+`, `"hash":HASH`),
	replace(`"Hash" : \d+`, `"Hash" : HASH`),
	replace(`(ENDPOINT, |│ (?:http://)?ENDPOINT │ )\d{1,10}\b`, `${1}HASH`),
	// Remaining seconds of a lease.
	replace(`remaining\(\d+s\)`, `remaining(TTL)`),
	replace(`"ttl":\d+,"granted-ttl"`, `"ttl":TTL,"granted-ttl"`),
	replace(`"TTL" : \d+\n"GrantedTTL"`, "\"TTL\" : TTL\n\"GrantedTTL\""),
	// Ids of clusters, members and generated leases, in hexadecimal or decimal.
	replace(`\b[0-9a-f]{11,16}\b`, `ID`),
	replace(`\b\d{13,20}\b`, `ID`),
}

func (s *side) normalise(text string) string {
	text = strings.ReplaceAll(text, s.server.PeerURL(), "PEER")
	text = strings.ReplaceAll(text, s.server.Endpoint, "ENDPOINT")
	if dir := s.variables["dir"]; dir != "" {
		text = strings.ReplaceAll(text, dir, "DIR")
	}
	return normalise(text)
}

func normalise(text string) string {
	for _, r := range rules {
		text = r.pattern.ReplaceAllString(text, r.replacement)
	}
	return text
}

// TestNormalisingKeepsWhatMatters guards against rules that hide differences.
func TestNormalisingKeepsWhatMatters(t *testing.T) {
	for text, want := range map[string]string{
		`{"header":{"cluster_id":14841639068965178418,"member_id":10276657743932975437,"revision":12,"raft_term":2},"count":3}`: `{"header":{"cluster_id":ID,"member_id":ID,"revision":12,"raft_term":INDEX},"count":3}`,
		"lease 694d9ccd5a8b2c06 granted with TTL(100s), remaining(99s)":                                                         "lease ID granted with TTL(100s), remaining(TTL)",
		"ENDPOINT is healthy: successfully committed proposal: took = 6.246954ms":                                               "ENDPOINT is healthy: successfully committed proposal: took = TIME",
		"│   k │      12 │":       "│ k │ 12 │",
		`"Revision" : 17`:         `"Revision" : 17`,
		`"dbSizeQuota":2147483`:   `"dbSizeQuota":2147483`,
		"2587454935, 2":           "2587454935, 2",
		"ENDPOINT, 2587454935, 2": "ENDPOINT, HASH, 2",
	} {
		if got := normalise(text); got != want {
			t.Errorf("%s\n got %s\nwant %s", text, got, want)
		}
	}
}
