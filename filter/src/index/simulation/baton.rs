//! One thread at a time, and at every hostcall a seeded choice of which.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::resume_unwind;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use crate::host::fake::Moment;
use crate::host::{HostError, HostResult};

/// A small generator of numbers that only have to look random.
#[derive(Debug, Clone)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        of.get(self.below(of.len() as u64) as usize)
    }
}

/// What a VM unwinds with when it is killed.
pub struct Killed;

/// The number of the director; VMs have greater ones.
pub const DIRECTOR: usize = 0;

#[derive(Debug)]
struct Turns {
    rng: Rng,
    running: usize,
    alive: BTreeSet<usize>,
    doomed: BTreeSet<usize>,
    asleep: BTreeSet<usize>,
    wake: BTreeMap<usize, Arc<Condvar>>,
    stopping: bool,
}

#[derive(Debug)]
pub struct Baton {
    turns: Mutex<Turns>,
    /// In a hundred hostcalls, how many let another VM go on.
    switch: u64,
    /// In a thousand hostcalls, how many fail.
    failing: u64,
}

impl Baton {
    pub fn new(seed: u64, switch: u64, failing: u64) -> Self {
        let turns = Turns {
            rng: Rng(seed),
            running: DIRECTOR,
            alive: BTreeSet::new(),
            doomed: BTreeSet::new(),
            asleep: BTreeSet::new(),
            wake: BTreeMap::from([(DIRECTOR, Arc::default())]),
            stopping: false,
        };
        Self { turns: Mutex::new(turns), switch, failing }
    }

    fn lock(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap()
    }

    fn give(&self, mut turns: MutexGuard<'_, Turns>, to: usize) {
        turns.running = to;
        if let Some(wake) = turns.wake.get(&to) {
            wake.notify_one();
        }
    }

    /// Waits for one's turn. A VM that was killed meanwhile unwinds here.
    pub fn wait(&self, me: usize) {
        let mut turns = self.lock();
        let wake = turns.wake.get(&me).cloned().expect("who waits is known");
        while turns.running != me {
            turns = wake.wait(turns).unwrap();
        }
        if turns.doomed.contains(&me) {
            drop(turns);
            resume_unwind(Box::new(Killed));
        }
    }

    /// At any hostcall: another VM goes on, or the director, or this one.
    fn maybe_switch(&self, me: usize) {
        let mut turns = self.lock();
        if !turns.rng.percent(self.switch) {
            return;
        }
        let to_director = turns.rng.percent(8) && !turns.stopping;
        let to = if to_director { DIRECTOR } else { turns.any_alive() };
        if to != me {
            self.give(turns, to);
            self.wait(me);
        }
    }

    pub fn gate(&self, me: usize, moment: Moment) -> HostResult<()> {
        self.maybe_switch(me);
        let mut turns = self.lock();
        let fails = !turns.stopping && turns.rng.below(2000) < self.failing;
        let call = if moment == Moment::Before { "not sent" } else { "answer lost" };
        if fails { Err(HostError { call, status: 10 }) } else { Ok(()) }
    }

    /// Between two operations. Says whether to go on.
    pub fn goes_on(&self, me: usize) -> bool {
        self.maybe_switch(me);
        !self.lock().stopping
    }

    /// The end of a VM, killed or not: somebody else goes on.
    pub fn leave(&self, me: usize) {
        let mut turns = self.lock();
        turns.alive.remove(&me);
        let to = if turns.alive.is_empty() { DIRECTOR } else { turns.any_alive() };
        self.give(turns, to);
    }

    pub fn alive(&self) -> Vec<usize> {
        self.lock().alive.iter().copied().collect()
    }

    pub fn enter(&self, vm: usize) {
        let mut turns = self.lock();
        turns.alive.insert(vm);
        turns.wake.insert(vm, Arc::default());
    }

    pub fn kill(&self, vm: usize) {
        self.lock().doomed.insert(vm);
    }

    /// Stalls a VM in the middle of whatever it is doing, or lets it go on.
    pub fn stall(&self, vm: usize) {
        let mut turns = self.lock();
        if !turns.asleep.remove(&vm) {
            turns.asleep.insert(vm);
        }
    }

    /// The director lets the VMs go on until it is its turn again.
    pub fn run(&self) {
        let mut turns = self.lock();
        if !turns.alive.is_empty() {
            let to = turns.any_alive();
            self.give(turns, to);
            self.wait(DIRECTOR);
        }
    }

    /// The director lets every VM finish what it is doing.
    pub fn stop(&self) {
        let mut turns = self.lock();
        turns.stopping = true;
        turns.asleep.clear();
        drop(turns);
        self.run();
    }
}

impl Turns {
    fn any_alive(&mut self) -> usize {
        let awake: Vec<_> = self.alive.difference(&self.asleep).copied().collect();
        let all: Vec<_> = self.alive.iter().copied().collect();
        let among = if awake.is_empty() { &all } else { &awake };
        self.rng.pick(among).copied().expect("somebody is alive")
    }
}
