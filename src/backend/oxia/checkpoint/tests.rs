//! Checkpoints on a shard in memory: whole, interrupted at every write, and by two at once.

use super::begin::{BeginError, founding};
use super::fake::{Fake, Fate};
use super::format::{Packer, Unpacker, seal, unseal};
use super::keep::{Keeper, Parts, Settings};
use super::load::{LoadError, Loader};
use super::pin::Pin;
use super::write::{WriteError, Writer, read_head};
use crate::backend::oxia::names::Names;
use crate::backend::oxia::shard::Shard;
use crate::keyspace::auth::AuthState;
use crate::keyspace::event::Visible;
use crate::keyspace::gateways::{Founded, Gateways};
use crate::keyspace::view::{Published, View};
use crate::storage::redb_engine::RedbEngine;
use crate::storage::tables::meta;
use crate::storage::{Batch, Durability, Engine, Table};
use crate::vital::Vital;
use bytes::Bytes;
use leaseway_proto::log::{CheckpointHead, CheckpointManifest, Entry, Member};
use prost::Message;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

const INCARNATION: [u8; 16] = [7; 16];

fn names() -> Names {
    Names::new("test")
}

/// A store at a position, with rows of its own: some small, one larger than a segment.
fn store(position: u64) -> Arc<dyn Engine> {
    let engine = RedbEngine::in_memory().expect("an engine");
    let mut batch = Batch::default();
    let identity = meta::Identity { cluster_id: 1, member_id: 2, log_secret: [3; 16] };
    meta::put_identity(&mut batch, identity);
    meta::put_state(&mut batch, &meta::State { revision: 9, position, ..Default::default() });
    let founded = Some(Founded { incarnation: INCARNATION, cluster_id: 4 });
    let gateways = Gateways { founded, log_bytes: 1_000_000 * position, ..Gateways::default() };
    meta::put_gateways(&mut batch, &gateways.encode());
    for row in 0..200_u32 {
        let value = vec![position as u8; row as usize * 30];
        batch.put(Table::Rows, row.to_be_bytes().to_vec(), value);
    }
    batch.put(Table::Rows, vec![255], vec![1; super::format::SEGMENT_BYTES * 2 + 17]);
    batch.put(Table::Leases, vec![1, 2, 3], Vec::new());
    batch.put(Table::Roles, b"role".to_vec(), b"rights".to_vec());
    engine.commit(&batch, Durability::Immediate).expect("a commit");
    Arc::new(engine)
}

type Rows = Vec<(Table, Vec<u8>, Vec<u8>)>;

fn dump(engine: &dyn Engine) -> Rows {
    let snapshot = engine.snapshot().expect("a snapshot");
    let mut rows = Vec::new();
    for table in Table::ALL {
        let mut note = |key: &[u8], value: &[u8]| {
            if table != Table::Meta || !meta::is_local(key) {
                rows.push((table, key.to_vec(), value.to_vec()));
            }
            ControlFlow::Continue(())
        };
        snapshot.scan(table, &[], None, &mut note).expect("a scan");
    }
    rows
}

async fn write(shard: &Fake, engine: &Arc<dyn Engine>) -> Result<CheckpointHead, WriteError> {
    let snapshot = engine.snapshot()?;
    let names = names();
    let writer = Writer { shard, names: &names, applied: &|| 0 };
    writer.write(&*snapshot).await
}

async fn load(shard: &Arc<Fake>) -> Result<Arc<dyn Engine>, LoadError> {
    let names = names();
    let pin = Pin::set(shard.clone(), &names, &Member::default(), &Vital::default()).await;
    let loader = Loader { shard, names: &names, pin: &pin, progress: &|_, _| {} };
    loader.load(|| Ok(Arc::new(RedbEngine::in_memory()?))).await
}

async fn head(shard: &Fake) -> Option<CheckpointHead> {
    read_head(shard, &names()).await.expect("a head").map(|(head, _)| head)
}

/// Number of puts that a whole checkpoint takes.
async fn puts() -> u32 {
    let shard = Fake::new();
    shard.log(5);
    write(&shard, &store(5)).await.expect("a checkpoint");
    shard.beginning_with("leaseway/").len() as u32
}

/// A store as an import leaves it, and the entry that founds its keyspace.
fn imported() -> (Arc<dyn Engine>, Entry) {
    let (entry, found) = founding();
    let engine = store(1);
    let mut incarnation = [0; 16];
    incarnation.copy_from_slice(&found.incarnation);
    let founded = Some(Founded { incarnation, cluster_id: found.cluster_id });
    let gateways = Gateways { founded, ..Gateways::default() };
    let mut batch = Batch::default();
    meta::put_gateways(&mut batch, &gateways.encode());
    engine.commit(&batch, Durability::Immediate).expect("a commit");
    (engine, entry)
}

async fn begin(shard: &Fake, (engine, entry): &(Arc<dyn Engine>, Entry)) -> Result<(), BeginError> {
    let snapshot = engine.snapshot().expect("a snapshot");
    let names = names();
    let writer = Writer { shard, names: &names, applied: &|| 0 };
    writer.begin(&*snapshot, entry, &|_| {}).await
}

fn folders(shard: &Fake) -> usize {
    let parts = shard.beginning_with("leaseway/test/checkpoint.").into_iter();
    let folder = |name: String| name.rsplit_once('/').map(|(folder, _)| folder.to_owned());
    parts.filter_map(folder).collect::<std::collections::BTreeSet<_>>().len()
}

fn keeper(shard: &Arc<Fake>, engine: Arc<dyn Engine>, position: u64) -> Keeper<Fake> {
    let visible = Visible { revision: 9, compacted: -1 };
    let auth = Arc::new(AuthState::default());
    let view = Arc::new(View::new(Published { visible, position, auth }));
    let settings = Settings { log_bytes: 1_000_000, interval: Duration::from_secs(1) };
    Keeper::new(Arc::new(Parts {
        shard: shard.clone(),
        names: names(),
        engine,
        view,
        me: Box::new(|| Some([1; 16])),
        settings,
    }))
}

async fn tell(shard: &Fake, name: String, applied: u64) {
    let member = Member { applied, ..Member::default() };
    shard.replace(name, member.encode_to_vec().into(), 1).await.expect("told");
}

#[test]
fn what_is_cut_into_segments_comes_out_again() {
    let engine = store(3);
    let snapshot = engine.snapshot().expect("a snapshot");
    let mut packer = Packer::default();
    let (mut unpacker, mut batch, mut segments) = (Unpacker::default(), Batch::default(), vec![]);
    while let Some(segment) = packer.next(&*snapshot).expect("a segment") {
        unpacker.add(segment.clone(), &mut batch).expect("whole");
        segments.push(segment);
    }
    assert!(segments.len() > 3);
    let (packed, unpacked) = (packer.tallies().clone(), unpacker.finish().expect("all"));
    assert_eq!(packed, unpacked);
    let copy = RedbEngine::in_memory().expect("an engine");
    copy.commit(&batch, Durability::Immediate).expect("a commit");
    assert_eq!(dump(&copy), dump(&*engine));

    let mut damaged = segments[0].to_vec();
    damaged[100] ^= 1;
    assert!(Unpacker::default().add(damaged.into(), &mut batch).is_err(), "a bit");
    assert!(Unpacker::default().add(segments[1].clone(), &mut batch).is_err(), "the second first");
    let mut short = Unpacker::default();
    short.add(segments[0].clone(), &mut batch).expect("whole");
    assert!(short.finish().is_err(), "the rest is missing");
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_is_loaded_as_it_was() {
    let shard = Arc::new(Fake::new());
    shard.log(8);
    let engine = store(5);
    let made = write(&shard, &engine).await.expect("a checkpoint");
    assert_eq!((made.position, made.log_bytes), (5, 5_000_000));
    let loaded = load(&shard).await.expect("loads");
    assert_eq!(dump(&*loaded), dump(&*engine));
    let again = write(&shard, &engine).await;
    assert!(matches!(again, Err(WriteError::Overtaken)), "the head only moves forward");
    assert_eq!(head(&shard).await, Some(made));
}

#[tokio::test(start_paused = true)]
async fn whoever_dies_at_it_leaves_the_one_before_and_is_cleaned_up_after() {
    for survives in 0..puts().await {
        let shard = Arc::new(Fake::new());
        shard.log(9);
        let first = write(&shard, &store(3)).await.expect("a checkpoint");
        shard.doom(survives, Fate::Stuck);
        let dies = tokio::time::timeout(Duration::from_secs(60), write(&shard, &store(5))).await;
        assert!(dies.is_err(), "stuck at write {survives}");
        assert_eq!(head(&shard).await, Some(first));
        assert_eq!(dump(&*load(&shard).await.expect("loads")), dump(&*store(3)));

        let next = store(7);
        tell(&shard, names().gateway([1; 16]), 7).await;
        shard.delete_folder(&names().loaders()).await.expect("nobody loads");
        let mut keeper = keeper(&shard, next.clone(), 7);
        for _ in 0..1300 {
            keeper.round().await.expect("a round");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let head = head(&shard).await.expect("a head");
        assert_eq!(head.position, 7);
        assert_eq!(shard.beginning_with("leaseway/test/checkpoint/").len(), 1);
        let folder = names().segments(&head.folder);
        assert_eq!(
            shard.beginning_with("leaseway/test/checkpoint."),
            shard.beginning_with(&folder)
        );
        assert_eq!(shard.reach(), (7, 9), "trimmed");
        assert_eq!(dump(&*load(&shard).await.expect("loads")), dump(&*next));
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_was_paused_changes_nothing_once_it_is_overtaken() {
    for survives in 0..puts().await {
        let shard = Arc::new(Fake::new());
        shard.log(9);
        shard.doom(survives, Fate::Stuck);
        let paused = tokio::spawn({
            let shard = shard.clone();
            async move { write(&shard, &store(5)).await }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        let later = store(7);
        tell(&shard, names().gateway([1; 16]), 7).await;
        let mut keeper = keeper(&shard, later.clone(), 7);
        for _ in 0..30 {
            keeper.round().await.expect("a round");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let head_before = head(&shard).await;
        assert_eq!(head_before.as_ref().map(|head| head.position), Some(7));
        shard.release();
        let outcome = paused.await.expect("no panic");
        assert!(matches!(outcome, Err(WriteError::Overtaken)), "{survives}: {outcome:?}");
        assert_eq!(head(&shard).await, head_before);
        let folder = names().segments(&head_before.expect("a head").folder);
        assert_eq!(
            shard.beginning_with("leaseway/test/checkpoint."),
            shard.beginning_with(&folder)
        );
        assert_eq!(dump(&*load(&shard).await.expect("loads")), dump(&*later));
    }
}

#[tokio::test(start_paused = true)]
async fn lost_answers_do_not_matter() {
    for fate in [Fate::Unanswered, Fate::Lost] {
        for at in 0..puts().await {
            let shard = Arc::new(Fake::new());
            shard.log(5);
            shard.doom(at, fate);
            let engine = store(5);
            let made = write(&shard, &engine).await.expect("a checkpoint");
            assert_eq!(head(&shard).await, Some(made));
            assert_eq!(dump(&*load(&shard).await.expect("loads")), dump(&*engine));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_keyspace_begins_with_everything_or_nothing() {
    // All that a checkpoint takes but the head, which there is not, and then the append.
    for survives in 0..puts().await {
        let shard = Arc::new(Fake::new());
        if survives + 1 < puts().await {
            shard.doom(survives, Fate::Stuck);
        } else {
            shard.doom_append(Fate::Stuck);
        }
        let dies = tokio::time::timeout(Duration::from_secs(60), begin(&shard, &imported())).await;
        assert!(dies.is_err(), "stuck at write {survives}");
        assert_eq!(dump(&*load(&shard).await.expect("loads")), [], "nothing");

        let second = imported();
        begin(&shard, &second).await.expect("nobody is in the way");
        assert_eq!(dump(&*load(&shard).await.expect("loads")), dump(&*second.0));
        assert_eq!(folders(&shard), 1, "what the first left is gone");
        let third = begin(&shard, &imported()).await;
        assert!(matches!(third, Err(BeginError::NotEmpty)), "{third:?}");
        assert_eq!(dump(&*load(&shard).await.expect("loads")), dump(&*second.0));
    }
}

#[tokio::test(start_paused = true)]
async fn answers_that_are_lost_while_a_keyspace_begins_do_not_matter() {
    for fate in [Fate::Unanswered, Fate::Lost] {
        for at in 0..puts().await {
            let shard = Arc::new(Fake::new());
            if at + 1 < puts().await {
                shard.doom(at, fate);
            } else {
                shard.doom_append(fate);
            }
            let made = imported();
            begin(&shard, &made).await.expect("begun");
            assert_eq!(dump(&*load(&shard).await.expect("loads")), dump(&*made.0));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn of_two_who_begin_a_keyspace_one_does() {
    for survives in 1..puts().await {
        let shard = Arc::new(Fake::new());
        if survives + 1 < puts().await {
            shard.doom(survives, Fate::Stuck);
        } else {
            shard.doom_append(Fate::Stuck);
        }
        let slow = tokio::spawn({
            let shard = shard.clone();
            async move { begin(&shard, &imported()).await }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        let fast = imported();
        begin(&shard, &fast).await.expect("begun");
        shard.release();
        let outcome = slow.await.expect("no panic");
        assert!(matches!(outcome, Err(BeginError::Overtaken)), "{survives}: {outcome:?}");
        assert_eq!(folders(&shard), 1);
        assert_eq!(dump(&*load(&shard).await.expect("loads")), dump(&*fast.0));
    }
}

#[tokio::test(start_paused = true)]
async fn an_imported_keyspace_gets_checkpoints_and_its_first_one_goes() {
    let shard = Arc::new(Fake::new());
    let (engine, entry) = imported();
    begin(&shard, &(engine.clone(), entry)).await.expect("begun");
    shard.log(9);
    let mut batch = Batch::default();
    meta::put_state(&mut batch, &meta::State { revision: 9, position: 7, ..Default::default() });
    let snapshot = engine.snapshot().expect("a snapshot");
    let known = super::format::gateways(&*snapshot).expect("gateways");
    let known = Gateways { log_bytes: 7_000_000, ..known };
    meta::put_gateways(&mut batch, &known.encode());
    engine.commit(&batch, Durability::Immediate).expect("a commit");
    tell(&shard, names().gateway([1; 16]), 7).await;
    let mut keeper = keeper(&shard, engine.clone(), 7);
    for _ in 0..700 {
        keeper.round().await.expect("a round");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(head(&shard).await.map(|head| head.position), Some(7));
    assert_eq!(shard.reach(), (7, 9), "trimmed");
    assert_eq!((folders(&shard), shard.beginning_with("leaseway/test/checkpoint/").len()), (1, 1));
    assert_eq!(dump(&*load(&shard).await.expect("loads")), dump(&*engine));
}

#[tokio::test(start_paused = true)]
async fn the_log_is_trimmed_behind_everyone_who_needs_it() {
    let shard = Arc::new(Fake::new());
    shard.log(20_000);
    let mut keeper = keeper(&shard, store(20_000), 20_000);
    tell(&shard, names().gateway([1; 16]), 20_000).await;
    tell(&shard, names().loader([2; 16]), 0).await;
    keeper.round().await.expect("a round");
    assert!(head(&shard).await.is_some());
    assert_eq!(shard.reach(), (1, 20_000), "somebody loads");
    tell(&shard, names().loader([2; 16]), 500).await;
    keeper.round().await.expect("a round");
    assert_eq!(shard.reach(), (500, 20_000));
    tokio::time::sleep(Duration::from_secs(290)).await;
    keeper.round().await.expect("a round");
    assert_eq!(shard.reach(), (500, 20_000), "slow, not stuck");
    tokio::time::sleep(Duration::from_secs(20)).await;
    keeper.round().await.expect("a round");
    assert_eq!(shard.reach(), (20_000, 20_000), "stuck; the newest stays");
}

#[tokio::test(start_paused = true)]
async fn a_loader_is_waited_for_as_long_as_it_comes_on() {
    let shard = Arc::new(Fake::new());
    shard.log(20_000);
    let (names, vital) = (names(), Vital::default());
    let pin = Pin::set(shard.clone(), &names, &Member::default(), &vital).await;
    pin.move_to(500).await;
    let mut keeper = keeper(&shard, store(20_000), 20_000);
    // A gateway that lives and is stuck goes on beating, and does not count.
    let stuck = |beats| {
        let member = Member { applied: 100, beats, ..Member::default() };
        shard.replace(names.gateway([2; 16]), member.encode_to_vec().into(), 1)
    };
    for minute in 0..30 {
        stuck(minute).await.expect("told");
        tell(&shard, names.gateway([1; 16]), 20_000).await;
        keeper.round().await.expect("a round");
        let first = if minute > 5 { 500 } else { 100 };
        assert_eq!(shard.reach(), (first, 20_000), "after {minute} minutes");
        pin.progress().made();
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    // Now it hangs, though its heart beats.
    for _ in 0..7 {
        keeper.round().await.expect("a round");
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    assert_eq!(shard.reach(), (20_000, 20_000));
    pin.release().await;
}

#[tokio::test(start_paused = true)]
async fn others_step_in_later() {
    let shard = Arc::new(Fake::new());
    shard.log(9);
    tell(&shard, names().gateway([0; 16]), 9).await;
    tell(&shard, names().gateway([1; 16]), 9).await;
    let mut second = keeper(&shard, store(1), 1);
    second.round().await.expect("a round");
    assert_eq!(head(&shard).await, None, "the first's turn");
    let mut second = keeper(&shard, store(2), 2);
    second.round().await.expect("a round");
    assert_eq!(head(&shard).await.map(|head| head.position), Some(2));
}

fn refusal<T>(outcome: Result<T, LoadError>) -> String {
    match outcome {
        Err(LoadError::Refused(why)) => why,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("loaded"),
    }
}

#[tokio::test(start_paused = true)]
async fn what_does_not_fit_together_is_refused() {
    let shard = Arc::new(Fake::new());
    shard.replace_log(3..=9);
    let why = refusal(load(&shard).await);
    assert_eq!(why, "the log begins at entry 3, without a checkpoint");

    let shard = Arc::new(Fake::new());
    shard.log(9);
    let made = write(&shard, &store(5)).await.expect("a checkpoint");
    shard.replace_log(1..=4);
    let why = refusal(load(&shard).await);
    assert!(why.contains("the log ends before entry 5"), "{why}");
    shard.replace_log(7..=9);
    let why = refusal(load(&shard).await);
    assert_eq!(why, "the log begins at entry 7, the newest checkpoint ends at 5");
    shard.replace_log(1..=9);
    let why = refusal(load(&shard).await);
    assert!(why.contains("the log is another keyspace's"), "{why}");

    let shard = Arc::new(Fake::new());
    shard.log(9);
    let made =
        CheckpointHead { folder: write(&shard, &store(5)).await.expect("one").folder, ..made };
    let manifest = names().manifest(&made.folder);
    let with = |change: fn(&mut CheckpointManifest)| {
        move |value: Bytes| {
            let mut manifest: CheckpointManifest = unseal(value).expect("a manifest");
            change(&mut manifest);
            seal(&manifest)
        }
    };
    shard.damage(&manifest, with(|manifest| manifest.tallies[1].rows += 1));
    assert!(refusal(load(&shard).await).contains("does not hold what its manifest says"));
    shard.damage(&manifest, with(|manifest| manifest.incarnation = vec![1; 16].into()));
    assert!(refusal(load(&shard).await).contains("another keyspace's"));
    shard.damage(&manifest, with(|manifest| manifest.feature_level = 1000));
    assert!(refusal(load(&shard).await).contains("feature level 1000"));
    shard.damage(&manifest, with(|manifest| manifest.format = 2));
    assert!(refusal(load(&shard).await).contains("format 2"));
    shard.delete(manifest).await.expect("deleted");
    assert!(refusal(load(&shard).await).contains("is missing"));
}
