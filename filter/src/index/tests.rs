//! The index as a VM uses it, on the fake host.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::*;
use crate::blocks::Kind;
use crate::host::fake::{FakeHost, FakeShared, Moment};
use crate::host::{Expect, SharedData};
use crate::pods::Job;

struct Vm {
    host: FakeHost,
    index: Index,
    calls: Arc<AtomicUsize>,
}

impl Vm {
    fn new(shared: &FakeShared, settings: &IndexSettings) -> Self {
        let calls = Arc::new(AtomicUsize::new(0));
        let counting = calls.clone();
        let mut host = FakeHost::new(shared);
        host.state.borrow_mut().now = Duration::from_secs(1_700_000_000);
        host.gate = Some(Box::new(move |moment| {
            counting.fetch_add(usize::from(moment == Moment::Before), Ordering::Relaxed);
            Ok(())
        }));
        let mut index = Index::new(settings.clone());
        index.set_pods(["pod-a", "pod-b"]);
        Self { host, index, calls }
    }

    fn tick(&mut self) -> Standing {
        self.host.state.borrow_mut().now += Duration::from_millis(100);
        self.index.tick(&self.host)
    }

    fn catch_up(&mut self) -> Standing {
        self.index.catch_up(&self.host, Budget { entries: 256, hashes: 8192 })
    }

    /// How many hostcalls that takes.
    fn calls(&mut self, of: impl FnOnce(&mut Index, &FakeHost)) -> usize {
        let before = self.calls.load(Ordering::Relaxed);
        of(&mut self.index, &self.host);
        self.calls.load(Ordering::Relaxed) - before
    }

    fn pod(&self, id: &str) -> PodRef {
        self.index.find(id).expect("joined")
    }

    fn store(&mut self, id: &str, hashes: &[BlockHash]) {
        let deltas = [
            Delta::Stored { pod: self.pod(id), parent: None, depth: 0, hashes: hashes.to_vec() },
            Delta::Routed { pod: self.pod(id), job: Job::default() },
        ];
        assert_eq!(self.index.append(&self.host, &deltas, OnUnseen::Go), Appended::Done);
    }

    fn depth(&self, id: &str, chain: &[BlockHash]) -> u32 {
        let mut depths = Depths::default();
        self.index.depths(chain, &mut depths);
        let Some(pod) = self.index.find(id) else { return 0 };
        depths.steps.iter().find(|(_, pods)| pods.contains(pod.slot)).map_or(0, |(depth, _)| *depth)
    }
}

fn small() -> IndexSettings {
    IndexSettings { ring: 32, shards: 4, ledgers: 8, ..IndexSettings::default() }
}

#[test]
fn a_canary_writes_nothing() {
    let shared = FakeShared::default();
    let vm = Vm::new(&shared, &small());
    assert_eq!(vm.index.standing(), Standing::Loading);
    assert_eq!((shared.keys(), vm.calls.load(Ordering::Relaxed)), (0, 0));
}

#[test]
fn what_a_request_costs() {
    let shared = FakeShared::default();
    let mut vm = Vm::new(&shared, &IndexSettings::default());
    vm.tick();
    assert_eq!(vm.catch_up(), Standing::Exact);
    let pod = vm.pod("pod-a");
    let deltas = [
        Delta::Stored { pod, parent: None, depth: 0, hashes: (0..100).collect() },
        Delta::Routed { pod, job: Job::default() },
    ];
    let nothing_new = vm.calls(|index, host| {
        index.catch_up(host, Budget { entries: 256, hashes: 8192 });
    });
    let append = vm.calls(|index, host| {
        assert_eq!(index.append(host, &deltas, OnUnseen::Return), Appended::Done);
    });
    let running = vm.index.started(pod, Job::default());
    let ends = vm.calls(|index, host| index.finished(host, running));
    assert_eq!((nothing_new, append, ends), (1, 1, 0));
}

#[test]
fn a_burst_over_two_workers_is_seen_before_it_is_decided_again() {
    let shared = FakeShared::default();
    let (mut one, mut two) = (Vm::new(&shared, &small()), Vm::new(&shared, &small()));
    one.tick();
    two.tick();
    assert_eq!((one.catch_up(), two.catch_up()), (Standing::Exact, Standing::Exact));
    one.store("pod-b", &[1, 2, 3]);
    let routed = [Delta::Routed { pod: two.pod("pod-a"), job: Job::default() }];
    assert_eq!(two.index.append(&two.host, &routed, OnUnseen::Return), Appended::Unseen);
    assert_eq!(two.depth("pod-b", &[1, 2, 3, 4]), 3);
    assert_eq!(two.index.in_flight(two.pod("pod-b").slot), 1);
    assert_eq!(two.index.append(&two.host, &routed, OnUnseen::Return), Appended::Done);
    let pod = two.pod("pod-a");
    two.index.started(pod, Job::default());
    assert_eq!(two.index.in_flight(pod.slot), 1, "its own entry counts once");
    assert_eq!(one.catch_up(), Standing::Exact);
    assert_eq!(one.index.replica().digest(), two.index.replica().digest());
}

#[test]
fn a_new_vm_knows_after_loading_what_the_ring_forgot() {
    let shared = FakeShared::default();
    let mut one = Vm::new(&shared, &small());
    let chains: Vec<Vec<BlockHash>> =
        (0..200).map(|root| (0..5).map(|i| (root * 100 + i) * 0x9E37_79B9).collect()).collect();
    for chain in &chains {
        one.tick();
        one.store("pod-a", chain);
    }
    one.tick();
    assert_eq!(one.index.counts().full, 0);
    drop(std::mem::replace(&mut one, Vm::new(&shared, &small())));
    assert_eq!(one.catch_up(), Standing::Loading, "a request does not load");
    assert_eq!(one.depth("pod-a", &chains[0]), 0);
    let ticks = (0..10).take_while(|_| one.tick() != Standing::Exact).count();
    assert!(ticks < 3, "{ticks} ticks");
    for chain in &chains {
        assert_eq!(one.depth("pod-a", chain), 5);
    }
    assert!(shared.keys() <= 32 + 4 + 8 + 3);
}

#[test]
fn a_pod_that_nobody_names_leaves_and_its_slot_is_used_again() {
    let shared = FakeShared::default();
    let mut vm = Vm::new(&shared, &small());
    vm.tick();
    vm.store("pod-a", &[1, 2, 3]);
    let old = vm.pod("pod-a");
    vm.index.set_pods(["pod-b"]);
    let ticks = (0..1000).take_while(|_| {
        vm.tick();
        vm.index.find("pod-a").is_some()
    });
    let left_after = ticks.count();
    assert!((95..=101).contains(&left_after), "{left_after} ticks");
    vm.index.set_pods(["pod-b", "pod-c"]);
    vm.tick();
    assert_ne!(vm.pod("pod-c").slot, old.slot, "still being wiped");
    // 30 s by the log's clock, which entries move every 5 s.
    for _ in 0..400 {
        vm.tick();
    }
    vm.index.set_pods(["pod-a", "pod-b", "pod-c"]);
    vm.tick();
    assert_eq!(vm.pod("pod-a"), PodRef { slot: old.slot, generation: old.generation + 1 });
    assert_eq!(vm.depth("pod-a", &[1, 2, 3]), 0);
    let late = [Delta::Stored { pod: old, parent: None, depth: 0, hashes: vec![1, 2, 3] }];
    assert_eq!(vm.index.append(&vm.host, &late, OnUnseen::Go), Appended::Done);
    assert_eq!((vm.depth("pod-a", &[1, 2, 3]), vm.index.counts().stale_deltas), (0, 1));
}

#[test]
fn the_clock_goes_on_without_requests_and_does_not_jump() {
    let shared = FakeShared::default();
    let mut vm = Vm::new(&shared, &small());
    vm.tick();
    let jump = |vm: &mut Vm, now: u64| {
        let before = vm.index.replica().clock();
        vm.host.state.borrow_mut().now = Duration::from_secs(now);
        vm.tick();
        vm.index.replica().clock() - before
    };
    assert_eq!(jump(&mut vm, 1_700_000_006), 6);
    assert_eq!(jump(&mut vm, 1_800_000_000), 10, "forward by years");
    assert_eq!(jump(&mut vm, 1_700_000_000), 0, "and back");
    assert_eq!(jump(&mut vm, 1_700_000_007), 7, "and it goes on from there");
}

#[test]
fn what_is_unused_or_too_much_is_removed() {
    let shared = FakeShared::default();
    let settings = IndexSettings { pod_blocks: 10, ttl_seconds: 60, ring: 256, ..small() };
    let mut vm = Vm::new(&shared, &settings);
    vm.tick();
    let [old, new] =
        [[1, 2, 3, 4, 5, 6], [11, 12, 13, 14, 15, 16]].map(|chain| chain.map(|n| Kind::Text.name(n << 2)));
    vm.store("pod-a", &old);
    vm.host.state.borrow_mut().now += Duration::from_secs(5);
    vm.store("pod-a", &new);
    vm.tick();
    let depths = |vm: &Vm| (vm.depth("pod-a", &old), vm.depth("pod-a", &new));
    assert_eq!(depths(&vm), (4, 6), "the older chain lost its tail");
    for _ in 0..650 {
        vm.tick();
    }
    assert_eq!(depths(&vm), (0, 0));
    assert!(vm.index.replica().table().is_empty());
    assert_eq!(vm.index.counts().aged, 12);
}

#[test]
fn a_shard_that_nobody_can_read_is_dropped_by_all() {
    let shared = FakeShared::default();
    let settings = small();
    let keys = Keys::new(settings.clone().bounded().identity());
    let mut one = Vm::new(&shared, &settings);
    let chains: Vec<Vec<BlockHash>> =
        (0..60_u64).map(|root| vec![root.wrapping_mul(0x9E37_79B9_7F4A_7C15_u64)]).collect();
    for chain in &chains {
        one.tick();
        one.store("pod-a", chain);
    }
    let _ = shared.shared_set(&keys.shard(2), b"garbage", Expect::Anything);
    // Nobody mends it: its writer is stalled.
    let mut two = Vm::new(&shared, &settings);
    let ticks = (0..300).take_while(|_| two.tick() != Standing::Exact).count();
    assert!((60..100).contains(&ticks), "{ticks} ticks");
    one.catch_up();
    assert_eq!(one.index.replica().digest(), two.index.replica().digest());
    let kept = chains.iter().filter(|chain| one.depth("pod-a", chain) == 1).count();
    assert!((20..60).contains(&kept), "{kept} chains are left");
    assert_eq!(two.index.counts().unreadable_shards, 4);
}

#[test]
fn a_full_ring_drops_and_goes_on() {
    let shared = FakeShared::default();
    let mut vm = Vm::new(&shared, &small());
    vm.tick();
    let routed = [Delta::Routed { pod: vm.pod("pod-a"), job: Job::default() }];
    let mut outcomes = Vec::new();
    for _ in 0..40 {
        outcomes.push(vm.index.append(&vm.host, &routed, OnUnseen::Go));
    }
    let done = outcomes.iter().filter(|outcome| **outcome == Appended::Done).count();
    assert_eq!(done, 31, "all but the place that the pods took");
    assert_eq!(vm.index.counts().full as usize, 40 - done);
    for _ in 0..6 {
        vm.tick();
    }
    assert_eq!(vm.index.append(&vm.host, &routed, OnUnseen::Go), Appended::Done);
}

#[test]
fn what_pods_say_of_themselves_stays_and_guesses_about_them_pass() {
    let shared = FakeShared::default();
    let settings = IndexSettings { pod_blocks: 4, ttl_seconds: 3600, ring: 512, ..small() };
    let mut vm = Vm::new(&shared, &settings);
    vm.tick();
    let names = |kind: Kind| [4, 8, 12, 16, 20, 24].map(|link| kind.name(link));
    vm.index.set_exact([vm.pod("pod-a").slot].into_iter().collect());
    for kind in Kind::ALL {
        vm.store("pod-a", &names(kind));
        vm.store("pod-b", &names(kind));
    }
    vm.tick();
    let depths = |vm: &Vm, pod: &str| Kind::ALL.map(|kind| vm.depth(pod, &names(kind)));
    assert_eq!(depths(&vm, "pod-a"), [4, 4, 6], "its cache is as large as it says");
    assert_eq!(depths(&vm, "pod-b"), [4, 4, 4]);
    vm.host.state.borrow_mut().now += Duration::from_secs(9);
    vm.tick();
    assert_eq!(depths(&vm, "pod-a"), [4, 4, 6], "the prompt may still be computed");
    for _ in 0..100 {
        vm.tick();
    }
    assert_eq!(depths(&vm, "pod-a"), [4, 0, 6]);
    assert_eq!(depths(&vm, "pod-b"), [4, 4, 4]);
    // The VM that was told is gone.
    vm.index.set_exact(PodSet::EMPTY);
    vm.tick();
    assert_eq!(depths(&vm, "pod-a"), [4, 0, 4]);
}

#[test]
fn what_a_pod_no_longer_holds_is_not_guessed_either() {
    let shared = FakeShared::default();
    let mut vm = Vm::new(&shared, &small());
    vm.tick();
    let names = |kind: Kind| [4, 8, 12].map(|link| kind.name(link));
    Kind::ALL.iter().for_each(|kind| vm.store("pod-a", &names(*kind)));
    let removed = Delta::Removed { pod: vm.pod("pod-a"), hashes: vec![Kind::Cached.name(8)] };
    assert_eq!(vm.index.append(&vm.host, &[removed], OnUnseen::Go), Appended::Done);
    assert_eq!(Kind::ALL.map(|kind| vm.depth("pod-a", &names(kind))), [3, 1, 1]);
}
