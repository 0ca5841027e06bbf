//! Which shard a partition key belongs to.

use leaseway_proto::oxia::shard_assignment::ShardBoundaries;
use leaseway_proto::oxia::{KeySorting, ShardAssignments, ShardKeyRouter};
use twox_hash::XxHash3_64;

use super::address::Address;
use super::error::{Error, Kind};

/// The shard of one partition key, and where its leader is said to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Assignment {
    pub shard: i64,
    pub leader: Address,
}

/// Oxia's hash of a partition key: the low half of its 64-bit XXH3.
pub(super) fn hash(partition_key: &str) -> u32 {
    let whole = XxHash3_64::oneshot(partition_key.as_bytes());
    (whole & u64::from(u32::MAX)) as u32
}

/// Finds the shard of `partition_key` in what a node says.
///
/// # Errors
/// [`Kind::NamespaceNotFound`] or [`Kind::Unavailable`] when the node doesn't know it (yet),
/// [`Kind::Protocol`] when it distributes keys in a way unknown here.
pub(super) fn find(
    assignments: &ShardAssignments,
    namespace: &str,
    partition_key: &str,
) -> Result<Assignment, Error> {
    let Some(of_namespace) = assignments.namespaces.get(namespace) else {
        return Err(Error::new(
            Kind::NamespaceNotFound,
            format!("oxia: no shards are assigned to the namespace {namespace:?}"),
        ));
    };
    // Unset means the only way there has been.
    if ShardKeyRouter::try_from(of_namespace.shard_key_router).is_err() {
        return Err(Error::new(Kind::Protocol, "oxia: an unknown way of distributing keys"));
    }
    // Sequence numbers are found by asking for the highest key, which needs either order; in a
    // third one they would be wrong without a sign of it.
    if KeySorting::try_from(of_namespace.key_sorting).is_err() {
        return Err(Error::new(Kind::Protocol, "oxia: an unknown order of keys"));
    }
    let hash = hash(partition_key);
    let found = of_namespace.assignments.iter().find(|assignment| {
        let Some(ShardBoundaries::Int32HashRange(range)) = &assignment.shard_boundaries else {
            return false;
        };
        (range.min_hash_inclusive..=range.max_hash_inclusive).contains(&hash)
    });
    let Some(found) = found else {
        return Err(Error::new(Kind::Unavailable, "oxia: no shard is assigned to the keyspace"));
    };
    if found.leader.is_empty() {
        return Err(Error::new(Kind::Unavailable, "oxia: the shard has no leader"));
    }
    Ok(Assignment { shard: found.shard, leader: found.leader.parse()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use leaseway_proto::oxia::{Int32HashRange, NamespaceShardsAssignment, ShardAssignment};

    /// Values that Oxia's own client computes.
    #[test]
    fn hashes_as_oxia_does() {
        for (key, expected) in [("foo", 125_730_186), ("bar", 2_687_685_474), ("baz", 862_947_621)]
        {
            assert_eq!(hash(key), expected, "{key}");
        }
    }

    fn shard(shard: i64, leader: &str, min: u32, max: u32) -> ShardAssignment {
        let range = Int32HashRange { min_hash_inclusive: min, max_hash_inclusive: max };
        ShardAssignment {
            shard,
            leader: leader.into(),
            shard_boundaries: Some(ShardBoundaries::Int32HashRange(range)),
        }
    }

    fn assignments(shards: Vec<ShardAssignment>, router: i32) -> ShardAssignments {
        let namespace = NamespaceShardsAssignment {
            assignments: shards,
            shard_key_router: router,
            key_sorting: 0,
        };
        ShardAssignments { namespaces: [("ns".to_owned(), namespace)].into() }
    }

    #[test]
    fn finds_the_shard_at_both_ends_of_its_range() {
        let at = hash("foo");
        let low = assignments(
            vec![shard(1, "a:1", 0, at), shard(2, "b:2", at + 1, u32::MAX)],
            ShardKeyRouter::Xxhash3.into(),
        );
        let high = assignments(
            vec![shard(1, "a:1", 0, at - 1), shard(2, "b:2", at, u32::MAX)],
            ShardKeyRouter::Xxhash3.into(),
        );
        assert_eq!(find(&low, "ns", "foo").map(|found| found.shard), Ok(1));
        let found = find(&high, "ns", "foo").expect("found");
        assert_eq!((found.shard, found.leader.to_string().as_str()), (2, "b:2"));
    }

    #[test]
    fn says_why_there_is_none() {
        let kind = |assignments: &ShardAssignments, namespace: &str| {
            find(assignments, namespace, "foo").map_err(|error| error.kind)
        };
        let none = assignments(vec![shard(1, "a:1", 0, 5)], 1);
        assert_eq!(kind(&none, "ns"), Err(Kind::Unavailable));
        assert_eq!(kind(&none, "other"), Err(Kind::NamespaceNotFound));
        let leaderless = assignments(vec![shard(1, "", 0, u32::MAX)], 1);
        assert_eq!(kind(&leaderless, "ns"), Err(Kind::Unavailable));
        let strange = assignments(vec![shard(1, "a:1", 0, u32::MAX)], 7);
        assert_eq!(kind(&strange, "ns"), Err(Kind::Protocol));
    }
}
