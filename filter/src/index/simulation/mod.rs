//! A seeded simulation of several VMs over one store: interleaved at every hostcall, killed anywhere, started anew.
//!
//! At the end the survivors, and one more that begins there, must equal a literal replay of what was committed, and the
//! requests in flight that each of them sees must be those that the living have. `WARMPATH_SEEDS=10000 cargo test
//! --release -p warmpath simulation` runs so many seeds; `WARMPATH_SEED=n` one of them.

mod baton;
mod committed;
mod literal;
mod vm;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, Scope, ScopedJoinHandle};

use super::entry;
use super::{Depths, Index, IndexCounts, IndexSettings, Keys, PodRef, Slot, Standing};
use crate::host::fake::{FakeHost, FakeShared};
use crate::host::{Expect, SharedData};
use baton::{Baton, Killed, Rng};
use committed::Committed;
use literal::Literal;
use vm::{PODS, Vm, chain};

struct Simulation {
    settings: IndexSettings,
    keys: Keys,
    shared: FakeShared,
    committed: Arc<Mutex<Committed>>,
    /// Milliseconds.
    clock: AtomicU64,
    baton: Arc<Baton>,
    hostile: bool,
    spoiling: bool,
}

impl Simulation {
    fn new(seed: u64, rng: &mut Rng) -> Self {
        let settings = IndexSettings {
            text_tokens: 64,
            block_tokens: 16,
            fingerprint: seed,
            max_blocks: [100, 600, 100_000][rng.below(3) as usize],
            pod_blocks: [6, 20, 1000][rng.below(3) as usize],
            ttl_seconds: [20, 3600][rng.below(2) as usize],
            ring: [12, 16, 25, 40][rng.below(4) as usize],
            shards: [1, 4, 8, 8][rng.below(4) as usize],
            ledgers: 5 + rng.below(4) as usize,
            secret: 0,
        };
        let keys = Keys::new(settings.identity());
        let shared = FakeShared::default();
        let prefix = keys.floor().strip_suffix("floor").unwrap().to_owned();
        let committed = Arc::new(Mutex::new(Committed::new(settings.ring, settings.shards, prefix)));
        let watching = committed.clone();
        shared.watch(Box::new(move |key, value| watching.lock().unwrap().written(key, value)));
        let switch = [5, 30, 60, 90][rng.below(4) as usize];
        let failing = if rng.percent(40) { 20 } else { 0 };
        Self {
            settings,
            keys,
            shared,
            committed,
            clock: AtomicU64::new(1_700_000_000_000),
            baton: Arc::new(Baton::new(rng.next(), switch, failing)),
            hostile: rng.percent(30),
            spoiling: rng.percent(30),
        }
    }

    fn new_vm(&self, number: usize, seed: u64) -> Vm {
        let mut vm = Vm {
            number,
            host: FakeHost::new(&self.shared),
            index: Index::new(IndexSettings { secret: seed, ..self.settings.clone() }),
            streams: Vec::new(),
            rng: Rng(seed),
            hostile: self.hostile,
        };
        vm.choose_pods();
        vm
    }

    fn spawn<'s>(&'s self, scope: &'s Scope<'s, '_>, number: usize, seed: u64) -> Running<'s> {
        self.baton.enter(number);
        let (start, gate) = (self.baton.clone(), self.baton.clone());
        let body = move || {
            let lived = catch_unwind(AssertUnwindSafe(|| {
                start.wait(number);
                let mut vm = self.new_vm(number, seed);
                vm.host.gate = Some(Box::new(move |moment| gate.gate(number, moment)));
                while start.goes_on(number) {
                    self.clock.fetch_add(vm.rng.below(30), Ordering::Relaxed);
                    vm.sync_clock(&self.clock);
                    vm.act();
                }
                vm
            }));
            self.baton.leave(number);
            match lived {
                Ok(vm) => Some(vm),
                Err(why) if why.is::<Killed>() => None,
                Err(why) => resume_unwind(why),
            }
        };
        thread::Builder::new().spawn_scoped(scope, body).unwrap()
    }

    /// Lets VMs live and die, and returns those that are left.
    fn live(&self, rng: &mut Rng) -> Vec<Vm> {
        thread::scope(|scope| {
            let mut vms = Vec::new();
            for turn in 0..10 + rng.below(120) {
                let alive = self.baton.alive();
                let chance = if alive.is_empty() || turn < 2 { 100 } else { 15 };
                if alive.len() < 5 && rng.percent(chance) {
                    vms.push(self.spawn(scope, vms.len() + 1, rng.next()));
                } else if let Some(vm) = rng.pick(&alive) {
                    match rng.below(20) {
                        0 | 1 => self.baton.kill(*vm),
                        2..6 => self.baton.stall(*vm),
                        _ => {}
                    }
                }
                match rng.below(40) {
                    0 => _ = self.clock.fetch_add(100_000_000, Ordering::Relaxed),
                    1 => _ = self.clock.fetch_sub(5_000_000, Ordering::Relaxed),
                    _ => _ = self.clock.fetch_add(rng.below(6000), Ordering::Relaxed),
                }
                if self.spoiling && rng.percent(15) {
                    self.spoil(rng);
                }
                self.baton.run();
            }
            self.baton.stop();
            vms.into_iter().filter_map(|vm| vm.join().unwrap_or_else(|why| resume_unwind(why))).collect()
        })
    }

    /// Writes what none of our VMs would.
    fn spoil(&self, rng: &mut Rng) {
        let garbage: Vec<u8> = (0..rng.below(60)).map(|_| rng.next() as u8).collect();
        let key = match rng.below(6) {
            0 => self.keys.lease(),
            1 => self.keys.ledger(rng.below(self.settings.ledgers as u64) as usize),
            2 => self.keys.lives(),
            3 => {
                // Where all is lost, all is lost.
                let shard = rng.below(self.settings.shards as u64) as usize;
                let spoiled = self.committed.lock().unwrap().spoiled_shards.len();
                if spoiled + 2 > self.settings.shards {
                    return;
                }
                self.keys.shard(shard)
            }
            _ => return self.spoil_log(rng, &garbage),
        };
        let _ = self.shared.shared_set(&key, &garbage, Expect::Anything);
    }

    /// Takes the next position of the log, with what no VM can read.
    fn spoil_log(&self, rng: &mut Rng, garbage: &[u8]) {
        let floor = super::log::read_floor(&self.shared, &self.keys).unwrap().unwrap_or(0);
        let next = {
            let committed = self.committed.lock().unwrap();
            if committed.dead.len() * 4 > self.settings.ring as usize || !committed.next_is_free(floor) {
                return;
            }
            committed.next()
        };
        let mut malformed = super::wire::begin(0);
        malformed.push(entry::FORMAT);
        malformed.extend(next.to_le_bytes());
        malformed.extend(garbage);
        super::wire::seal(&mut malformed);
        let value = if rng.percent(50) { garbage } else { &malformed };
        let _ = self.shared.shared_set(&self.keys.log(next % self.settings.ring), value, Expect::Anything);
    }

    /// Lets everybody come to rest.
    fn settle(&self, vms: &mut [Vm]) {
        let tick = |vms: &mut [Vm]| {
            for vm in vms {
                vm.sync_clock(&self.clock);
                vm.index.tick(&vm.host);
            }
        };
        for _ in 0..260 {
            self.clock.fetch_add(100, Ordering::Relaxed);
            tick(vms);
        }
        for quiet in 0..60 {
            let before = self.committed.lock().unwrap().next();
            tick(vms);
            tick(vms);
            if self.committed.lock().unwrap().next() == before {
                return;
            }
            assert!(quiet < 59, "the log never comes to rest");
        }
    }

    fn check(&self, vms: &[Vm], rng: &mut Rng) {
        let committed = self.committed.lock().unwrap();
        let mut literal = Literal::new(self.settings.max_blocks, self.settings.shards);
        for entry in &committed.entries {
            literal.apply(entry.as_ref());
        }
        let mut in_flight: BTreeMap<PodRef, u32> = BTreeMap::new();
        for (pod, count) in vms.iter().flat_map(Vm::true_in_flight) {
            *in_flight.entry(pod).or_default() += count;
        }
        let digest = vms[0].index.replica().digest();
        for vm in vms {
            let whose = format!("vm {} with {:?}", vm.number, vm.index.counts());
            assert_eq!(vm.index.standing(), Standing::Exact, "{whose}");
            let replica = vm.index.replica();
            literal.compare(replica, &whose);
            assert_eq!(replica.digest(), digest, "{whose}");
            for _ in 0..20 {
                let chain = chain(rng);
                if !literal.is_path(&chain) {
                    assert!(self.hostile);
                    continue;
                }
                let mut depths = Depths::default();
                vm.index.depths(&chain, &mut depths);
                for slot in Slot::all().take(8) {
                    let theirs = depths.steps.iter().find(|(_, pods)| pods.contains(slot)).map_or(0, |s| s.0);
                    let active = replica.roster().active().contains(slot);
                    let ours = if active { literal.depth(&chain, slot.number()) } else { 0 };
                    assert_eq!(theirs, ours, "{whose}: {slot:?} of {chain:?}");
                }
            }
            for slot in Slot::all().take(PODS.len() + 4) {
                let truth = in_flight.get(&replica.roster().at(slot)).copied().unwrap_or(0);
                assert_eq!(vm.index.in_flight(slot), truth, "{whose}: in flight at {slot:?}");
            }
        }
        let bound = self.settings.ring as usize + self.settings.shards + self.settings.ledgers + 3;
        assert!(self.shared.keys() <= bound, "{} keys", self.shared.keys());
    }
}

type Running<'s> = ScopedJoinHandle<'s, Option<Vm>>;

/// Runs one seed; what the survivors counted, and how many entries were committed.
fn simulate(seed: u64) -> (Vec<IndexCounts>, usize) {
    let mut rng = Rng(seed.wrapping_mul(0x2545_F491_4F6C_DD1D) ^ 0x5EED);
    let simulation = Simulation::new(seed, &mut rng);
    let mut vms = simulation.live(&mut rng);
    for vm in &mut vms {
        vm.host.gate = None;
    }
    vms.push(simulation.new_vm(1000, rng.next()));
    simulation.settle(&mut vms);
    simulation.check(&vms, &mut rng);
    let entries = simulation.committed.lock().unwrap().entries.len();
    (vms.iter().map(|vm| vm.index.counts()).collect(), entries)
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn survivors_equal_a_literal_replay_and_the_ledgers_add_up() {
    if let Some(seed) = number("WARMPATH_SEED") {
        println!("{:#?}", simulate(seed));
        return;
    }
    let seeds = number("WARMPATH_SEEDS").unwrap_or(150);
    let next = AtomicU64::new(0);
    let total = Mutex::new((IndexCounts::default(), 0));
    thread::scope(|scope| {
        for _ in 0..2 {
            thread::Builder::new()
                .spawn_scoped(scope, || {
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= seeds {
                            break;
                        }
                        let (counts, entries) = catch_unwind(|| simulate(seed)).unwrap_or_else(|why| {
                            eprintln!("WARMPATH_SEED={seed} fails");
                            resume_unwind(why)
                        });
                        let mut total = total.lock().unwrap();
                        total.1 += entries;
                        for one in counts {
                            add(&mut total.0, &one);
                        }
                    }
                })
                .unwrap();
        }
    });
    let (counts, entries) = total.into_inner().unwrap();
    println!("{seeds} seeds, {entries} entries committed, survivors counted {counts:?}");
    // A simulation in which these never happen would prove nothing.
    for (what, count) in [
        ("laps", counts.lapped),
        ("blocks that grew too old", counts.aged),
        ("full rings", counts.full),
        ("shards written", counts.shards_written),
        ("hostcalls that failed", counts.host_errors),
        ("entries that nobody can read", counts.unreadable_entries),
        ("shards that nobody can read", counts.unreadable_shards),
        ("ledgers that nobody can read", counts.unreadable_ledgers),
        ("blocks that were refused", counts.refused_blocks),
        ("deltas that came too late", counts.stale_deltas),
    ] {
        assert!(count > 0 || seeds < 100, "there were no {what}");
    }
}

fn add(total: &mut IndexCounts, one: &IndexCounts) {
    total.entries += one.entries;
    total.unreadable_entries += one.unreadable_entries;
    total.unreadable_shards += one.unreadable_shards;
    total.unreadable_ledgers += one.unreadable_ledgers;
    total.lapped += one.lapped;
    total.full += one.full;
    total.failed += one.failed;
    total.host_errors += one.host_errors;
    total.aged += one.aged;
    total.shards_written += one.shards_written;
    total.stale_deltas += one.stale_deltas;
    total.refused_blocks += one.refused_blocks;
    total.refused_pods += one.refused_pods;
}
