use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::io::Cursor;

type Buckets = BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>;

fn written(buckets: &Buckets) -> Vec<u8> {
    let mut writer = Writer::new(Cursor::new(Vec::new())).unwrap();
    for (name, keys) in buckets {
        writer
            .bucket(name, |bucket| keys.iter().try_for_each(|(key, value)| bucket.put(key, value)))
            .unwrap();
    }
    let (out, length) = writer.finish().unwrap();
    assert_eq!(out.get_ref().len() as u64, length);
    out.into_inner()
}

fn read(bytes: Vec<u8>) -> Result<Buckets, BoltError> {
    let mut database = Database::open(bytes)?;
    let mut buckets = Buckets::new();
    for bucket in database.buckets()? {
        let keys = buckets.entry(String::from_utf8_lossy(&bucket.name).into_owned()).or_default();
        database.scan(&bucket, &mut |key, value| {
            keys.insert(key.to_vec(), value.to_vec());
            Ok::<_, BoltError>(())
        })?;
    }
    Ok(buckets)
}

/// A file with a branch, an overflow page, an empty bucket and a small one.
fn sample() -> Buckets {
    let rows = (0..600_u32).map(|n| (n.to_be_bytes().to_vec(), vec![n as u8; 40]));
    let mut keys: BTreeMap<_, _> = rows.collect();
    keys.insert(b"large".to_vec(), vec![7; 10_000]);
    let small = [(b"a".to_vec(), vec![]), (b"b".to_vec(), b"c".to_vec())];
    [
        ("empty".to_owned(), BTreeMap::new()),
        ("key".to_owned(), keys),
        ("small".to_owned(), small.into_iter().collect()),
    ]
    .into_iter()
    .collect()
}

/// Puts a number into a page's bytes.
fn set(bytes: &mut [u8], at: usize, number: &[u8]) {
    bytes[at..at + number.len()].copy_from_slice(number);
}

/// Seals the metas again after a change.
fn reseal(bytes: &mut [u8]) {
    for page in [0, 4096] {
        let body = page + PAGE_HEADER;
        let sum = fnv64a(&bytes[body..body + META_BODY]).to_le_bytes();
        set(bytes, body + META_BODY, &sum);
    }
}

/// The number of the first page of a kind behind the metas.
fn page_of(bytes: &[u8], kind: u16) -> usize {
    let pages = (3..bytes.len() / 4096).filter(|page| {
        let at = page * 4096;
        bytes[at..at + 8] == (*page as u64).to_le_bytes()
            && bytes[at + 8..at + 10] == kind.to_le_bytes()
    });
    pages.min().unwrap()
}

fn refusal(bytes: Vec<u8>) -> String {
    read(bytes).expect_err("damaged").to_string()
}

#[test]
fn what_is_written_is_read() {
    for buckets in [Buckets::new(), sample()] {
        assert_eq!(read(written(&buckets)).unwrap(), buckets);
    }
}

#[test]
fn trees_of_several_levels_are_read() {
    // Long keys, so that a branch leads to few pages.
    let key = |n: u32| [vec![b'k'; 1500], n.to_be_bytes().to_vec()].concat();
    let keys = (0..300).map(|n| (key(n), vec![1; 100])).collect();
    let buckets = [("key".to_owned(), keys)].into_iter().collect();
    assert_eq!(read(written(&buckets)).unwrap(), buckets);
}

#[test]
fn the_other_meta_is_used_when_one_is_torn() {
    for torn in [0, 4096] {
        let mut bytes = written(&sample());
        bytes[torn + PAGE_HEADER + 20] ^= 1;
        assert_eq!(read(bytes).unwrap(), sample());
    }
    let mut bytes = written(&sample());
    bytes[PAGE_HEADER + 20] ^= 1;
    bytes[4096 + PAGE_HEADER + 20] ^= 1;
    assert!(matches!(read(bytes), Err(BoltError::NotBolt)));
}

#[test]
fn the_newer_meta_counts() {
    // The older one, of transaction 0, has no buckets at all.
    let mut bytes = written(&sample());
    let leaf = (bytes.len() / 4096) as u64;
    set(&mut bytes, PAGE_HEADER + 16, &leaf.to_le_bytes());
    set(&mut bytes, PAGE_HEADER + 40, &(leaf + 1).to_le_bytes());
    let mut page = vec![0; 4096];
    set(&mut page, 0, &leaf.to_le_bytes());
    set(&mut page, 8, &LEAF.to_le_bytes());
    bytes.append(&mut page);
    reseal(&mut bytes);
    assert_eq!(read(bytes.clone()).unwrap(), sample());
    // Made the newer one, it counts.
    set(&mut bytes, PAGE_HEADER + 48, &2_u64.to_le_bytes());
    reseal(&mut bytes);
    assert_eq!(read(bytes).unwrap(), Buckets::new());
}

#[test]
fn a_truncated_file_is_refused_wherever_it_ends() {
    let whole = written(&sample());
    for length in (0..whole.len()).step_by(997).chain([whole.len() - 1]) {
        let error = refusal(whole[..length].to_vec());
        let told = error.contains("truncated") || error.contains("no database file");
        assert!(told, "{length}: {error}");
    }
}

#[test]
fn pages_that_are_used_twice_are_refused() {
    let whole = written(&sample());
    let branch = page_of(&whole, BRANCH) * 4096;
    // To its own page, to its first child once more, and to a page that belongs to another.
    let first = whole[branch + PAGE_HEADER + 8..][..8].to_vec();
    for (element, child) in [(1, ((branch / 4096) as u64).to_le_bytes().to_vec()), (1, first)] {
        let mut bytes = whole.clone();
        set(&mut bytes, branch + PAGE_HEADER + element * ELEMENT + 8, &child);
        let error = refusal(bytes);
        assert!(error.contains("used twice"), "{error}");
    }
    let mut bytes = whole.clone();
    let leaf = page_of(&whole, LEAF) * 4096;
    set(&mut bytes, leaf + 12, &1_u32.to_le_bytes());
    let error = refusal(bytes);
    assert!(error.contains("used twice"), "{error}");
}

#[test]
fn what_lies_outside_is_refused() {
    let whole = written(&sample());
    let (branch, leaf) = (page_of(&whole, BRANCH) * 4096, page_of(&whole, LEAF) * 4096);
    let cases: [(usize, &[u8], &str); 8] = [
        (branch + PAGE_HEADER + 8, &9_999_u64.to_le_bytes(), "lies outside"),
        (branch + PAGE_HEADER + 8, &1_u64.to_le_bytes(), "lies outside"),
        (leaf, &77_u64.to_le_bytes(), "another number"),
        (leaf + 8, &FREE_LIST.to_le_bytes(), "neither branch nor leaf"),
        (leaf + 10, &u16::MAX.to_le_bytes(), "more elements"),
        (leaf + 12, &u32::MAX.to_le_bytes(), "beyond the end"),
        (leaf + PAGE_HEADER + 4, &u32::MAX.to_le_bytes(), "outside of it"),
        (leaf + PAGE_HEADER + 12, &u32::MAX.to_le_bytes(), "overlap"),
    ];
    for (at, number, want) in cases {
        let mut bytes = whole.clone();
        set(&mut bytes, at, number);
        let error = refusal(bytes);
        assert!(error.contains(want), "{want}: {error}");
    }
}

#[test]
fn what_is_out_of_order_or_nested_is_refused() {
    let whole = written(&sample());
    let leaf = page_of(&whole, LEAF) * 4096;
    let mut bytes = whole.clone();
    let key = leaf + PAGE_HEADER + u32_at(&bytes, leaf + PAGE_HEADER + 4) as usize;
    set(&mut bytes, key, &[0xff; 4]);
    let error = refusal(bytes);
    assert!(error.contains("not in order"), "{error}");
    let mut bytes = whole.clone();
    set(&mut bytes, leaf + PAGE_HEADER, &IS_BUCKET.to_le_bytes());
    let error = refusal(bytes);
    assert!(error.contains("a bucket within a bucket"), "{error}");
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_buckets_round_trip(
        buckets in prop::collection::btree_map(
            "[a-z]{1,8}",
            prop::collection::btree_map(
                prop::collection::vec(any::<u8>(), 1..60),
                (any::<u8>(), 0..6000_usize).prop_map(|(byte, length)| vec![byte; length]),
                0..40,
            ),
            0..6,
        ),
    ) {
        prop_assert_eq!(read(written(&buckets)).unwrap(), buckets);
    }

    #[test]
    fn changed_bytes_are_never_fatal(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = written(&sample());
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = read(bytes.clone());
        reseal(&mut bytes);
        let _ = read(bytes.clone());
        bytes.truncate(cut.index(bytes.len()));
        let _ = read(bytes);
    }

    #[test]
    fn numbers_in_page_headers_are_never_fatal(
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0..16_usize, any::<u32>()), 1..4),
    ) {
        let whole = written(&sample());
        let mut bytes = whole.clone();
        for (page, field, number) in changes {
            let at = page.index(bytes.len() / 4096) * 4096 + field * 4;
            set(&mut bytes, at, &number.to_le_bytes());
        }
        reseal(&mut bytes);
        let _ = read(bytes);
    }
}
