//! The pods of a plugin configuration: which there are now, what is known of each, and what requests tell of them.

use super::Plugin;
use crate::config::{self, Router};
use crate::fleet::Fleet;
use crate::host::{Host, Level};
use crate::index::PodRef;
use crate::metrics::Metric;
use crate::pipeline::{PodState, Positions};
use crate::places::Places;
use crate::pods::metrics::Reading;
use crate::pods::{
    Board, Breaker, BreakerSettings, Engine, Moment, Overdue, Pod, Results, Speed, Verdict, Work, key,
};
use crate::request::Endpoint;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Ticks between looks at whether what engines said is stale.
const NOW_AND_THEN: u64 = 5;

/// The pods of now, and what is known of each: all by the positions of one router.
pub struct Current {
    /// Decides.
    pub router: Rc<Router>,
    /// Where the pods stand in the index.
    pub places: Places,
    /// Which failed lately.
    pub breaker: Breaker,
    /// Requests that waited at their engines when these were heard last, and came from elsewhere.
    foreign: Vec<f32>,
    /// Which other VMs, or other configurations, pass over.
    open_elsewhere: Positions,
    /// What their engines said lately.
    pub engines: Vec<Option<Engine>>,
    /// Which tell how much of a prompt was in their cache.
    tells: BTreeMap<Endpoint, Positions>,
    /// Which Envoy holds to be down.
    pub down: Positions,
    /// By what the board knows them.
    keys: Vec<u64>,
    /// Version of the board that this was read from, and its news.
    board: u64,
    news: u64,
}

impl Plugin {
    /// Fills in what is known of each pod, by position, and returns how long first tokens take.
    pub fn states(&self, fleet: &Fleet, out: &mut Vec<PodState>) -> Speed {
        let Ok(mut current) = self.current.try_borrow_mut() else { return Speed::default() };
        let Current { router, places, breaker, down, engines, foreign, .. } = &mut *current;
        places.update(router, &fleet.index);
        let now = fleet.ticks();
        let accounts: Vec<_> =
            (0..router.pods().len()).map(|position| places.account(&fleet.index, position)).collect();
        let speed = fleet.speed();
        let asleep = |position: usize| {
            let engine = engines.get(position).and_then(Option::as_ref);
            engine.is_some_and(|engine| engine.asleep)
        };
        out.clear();
        out.extend(router.pods().iter().zip(&accounts).enumerate().map(|(position, (pod, account))| {
            let Work { requests, waiting, prefill, context } = account.work;
            let most = pod.max_in_flight.or(self.settings.admission.max_in_flight_per_pod);
            // Among the flags that were added up is this configuration's own, which says less than its breaker does.
            let elsewhere = || places.slots_of(position).any(|pod| fleet.is_open_elsewhere(self.id, pod));
            let is_out = asleep(position) || down.contains(position) || account.open && elsewhere();
            PodState {
                in_flight: requests,
                waiting,
                prefill,
                context,
                foreign: foreign.get(position).copied().unwrap_or(0.0),
                healthy: breaker.allows(position, now) && !is_out,
                outside: false,
                full: most.is_some_and(|most| requests >= most),
                share: breaker.share(position, now),
                slowness: speed.slowness(&account.pace),
            }
        }));
        speed
    }

    /// A request was sent to this pod, which is named by its position in `router`.
    pub fn sent(&self, router: &Rc<Router>, position: usize, now: u64) {
        if let Ok(mut current) = self.current.try_borrow_mut()
            && let Some(position) = current.position(router, position)
        {
            current.breaker.sent(position, now);
        }
    }

    /// A request that was sent to it `at` these ticks went to nobody that is known.
    pub fn unsent(&self, router: &Rc<Router>, position: usize, at: u64) {
        if let Ok(mut current) = self.current.try_borrow_mut()
            && let Some(position) = current.position(router, position)
        {
            current.breaker.unsent(position, at);
        }
    }

    /// The present position of a pod that `router` knows by another.
    pub fn now_at(&self, router: &Rc<Router>, position: usize) -> Option<usize> {
        self.with_current(|current| current.position(router, position)).flatten()
    }

    /// What a request told of a pod, which is named by its position in `router`.
    pub fn judge(
        &self,
        host: &impl Host,
        fleet: &mut Fleet,
        router: &Rc<Router>,
        position: usize,
        verdict: Verdict,
        began: u64,
    ) {
        let Ok(mut current) = self.current.try_borrow_mut() else { return };
        let Some(position) = current.position(router, position) else { return };
        let Current { places, breaker, .. } = &mut *current;
        let results = match verdict {
            Verdict::Answer => Results::ANSWER,
            Verdict::Busy(_) => Results::default(),
            Verdict::Failure | Verdict::Hangs | Verdict::BrokeOff | Verdict::Unreachable => Results::FAILURE,
        };
        if let Some(pod) = places.slot_of(position, 0) {
            fleet.index.load_mut().answered(pod, results);
        }
        let (results, now) = (places.account(&fleet.index, position).results, fleet.ticks());
        let is_out = |pod: &usize| !breaker.allows(*pod, now) || places.account(&fleet.index, *pod).open;
        let out = match verdict {
            Verdict::Answer | Verdict::Busy(_) => 0,
            _ => (0..router.pods().len()).filter(is_out).count(),
        };
        if breaker.judge(position, verdict, Moment { now, began, out }, results) {
            fleet.metrics.add(host, Metric::Opened, 1);
        }
        if matches!(verdict, Verdict::Busy(_)) {
            fleet.metrics.add(host, Metric::PodsBusy, 1);
        }
    }

    /// A pod told how much of a prompt was in its cache.
    pub fn tells_cached(&self, router: &Rc<Router>, position: usize, endpoint: Endpoint) {
        if let Ok(mut current) = self.current.try_borrow_mut()
            && let Some(position) = current.position(router, position)
        {
            current.tells.entry(endpoint).or_default().insert(position);
        }
    }

    /// Whether a pod ever did, at this endpoint.
    pub fn does_tell_cached(&self, router: &Rc<Router>, position: usize, endpoint: Endpoint) -> bool {
        self.with_current(|current| {
            let position = current.position(router, position)?;
            Some(current.tells.get(&endpoint)?.contains(position))
        })
        .flatten()
        .unwrap_or(false)
    }

    /// What an engine said of itself in an answer's headers.
    pub fn hear(&self, router: &Router, position: usize, reading: Reading) {
        if let (Some(pod), Some(scout)) = (router.pods().get(position), &self.scout)
            && let Ok(mut scout) = scout.try_borrow_mut()
        {
            scout.hear(&pod.id(), reading);
        }
    }

    /// Looks at what is overdue: pods that hang, and prompts that must have been prefilled.
    pub(super) fn overdue(&self, host: &impl Host, fleet: &mut Fleet) {
        let now_ticks = fleet.ticks();
        let next = || self.waiting.try_borrow_mut().ok()?.overdue(now_ticks);
        let overdue: Vec<_> = std::iter::from_fn(next).collect();
        for (running, overdue) in overdue {
            let Some(mut now) = running.get() else { continue };
            match overdue {
                Overdue::Prefilled => {
                    fleet.index.load_mut().prefilled(&mut now);
                    running.set(Some(now));
                }
                Overdue::Hangs => {
                    let position = self.with_current(|current| current.places.position_of(now.pod)).flatten();
                    if let Some(position) = position {
                        self.judge(host, fleet, &self.router(), position, Verdict::Hangs, now_ticks);
                    }
                }
            }
        }
    }

    /// Tells the other VMs which pods this one passes over.
    pub(super) fn tell_breaker(&self, host: &impl Host, fleet: &mut Fleet) {
        let Ok(mut current) = self.current.try_borrow_mut() else { return };
        let now = fleet.ticks();
        let mut passed = 0;
        let Current { router, places, breaker, open_elsewhere, .. } = &mut *current;
        places.update(router, &fleet.index);
        let told =
            |position: &usize| places.slots_of(*position).any(|pod| fleet.is_open_elsewhere(self.id, pod));
        let told: Positions = (0..router.pods().len()).filter(told).collect();
        for position in open_elsewhere.minus(&told).iter() {
            breaker.try_again(position, now);
        }
        *open_elsewhere = told;
        let mut open = BTreeSet::new();
        for position in 0..current.router.pods().len() {
            if current.breaker.is_open(position, now) {
                open.extend(current.places.slots_of(position));
            }
            passed += u64::from(current.places.account(&fleet.index, position).open);
        }
        fleet.set_open(self.id, open);
        if fleet.index.holds_lease() {
            fleet.metrics.record(host, Metric::PodsPassed, passed);
        }
    }

    /// Requests in flight at all pods, over all VMs.
    pub fn in_flight(&self, fleet: &Fleet) -> u64 {
        let Ok(mut current) = self.current.try_borrow_mut() else { return 0 };
        let Current { router, places, .. } = &mut *current;
        places.update(router, &fleet.index);
        let requests = |position| u64::from(places.account(&fleet.index, position).work.requests);
        (0..router.pods().len()).map(requests).sum()
    }

    /// The slots of all of a pod's caches that have one.
    pub fn slots_of(&self, position: usize) -> Vec<PodRef> {
        self.with_current(|current| current.places.slots_of(position).collect()).unwrap_or_default()
    }

    /// The slot of one of a pod's caches, or of its first where that has none.
    pub fn slot_of(&self, router: &Rc<Router>, position: usize, rank: u32) -> Option<PodRef> {
        self.with_current(|current| {
            let position = current.position(router, position)?;
            current.places.slot_of(position, rank).or_else(|| current.places.slot_of(position, 0))
        })
        .flatten()
    }

    /// Reads what was learnt of the pods by asking; where other pods were found, decides among those from now on.
    pub(super) fn look_around(&self, host: &impl Host) {
        let Some(scout) = &self.scout else { return };
        let Ok(mut scout) = scout.try_borrow_mut() else { return };
        let Ok(mut fleet) = self.fleet.try_borrow_mut() else { return };
        let router = self.router();
        scout.tick(host, &mut fleet, &router);
        let board = scout.board();
        let Ok(mut current) = self.current.try_borrow_mut() else { return };
        if current.board != board.version() {
            current.board = board.version();
            let reach = current.router.reach(board.found());
            if reach.pods != current.router.pods()
                && let Some(next) = self.found(host, board)
            {
                current.replace(next);
                let ids = current.router.pods().iter().flat_map(Pod::cache_ids).collect();
                fleet.name_pods(self.id, ids);
                // All VMs read the board before they join pods, so nobody joins again who is gone.
                let gone = router.pods().iter().flat_map(Pod::cache_ids);
                fleet.say_who_left(host, gone);
                let Current { router, places, .. } = &mut *current;
                places.update(router, &fleet.index);
            }
            if reach.pods == current.router.pods() {
                let down = (0..).zip(&reach.healthy).filter(|(_, healthy)| !**healthy);
                current.down = down.map(|(position, _)| position).collect();
            }
        }
        drop(current);
        self.read_board(board, &fleet);
    }

    fn read_board(&self, board: &Board, fleet: &Fleet) {
        let Ok(mut current) = self.current.try_borrow_mut() else { return };
        // Without news, what was told becomes stale.
        if std::mem::replace(&mut current.news, board.news()) == board.news()
            && !board.now().is_multiple_of(NOW_AND_THEN)
        {
            return;
        }
        let told = |key: &u64| board.told(*key);
        current.engines = current.keys.iter().map(told).collect();
        let Current { engines, places, foreign, .. } = &mut *current;
        let waiting = |engine: &Option<Engine>| engine.as_ref().and_then(|engine| engine.waiting);
        let others = engines.iter().enumerate().map(|(position, engine)| {
            let own = places.account(&fleet.index, position).work.waiting as f32;
            waiting(engine).map_or(0.0, |waiting| (waiting - own).max(0.0))
        });
        *foreign = others.collect();
    }

    /// Another router, if the pods that were found make one.
    fn found(&self, host: &impl Host, board: &Board) -> Option<Router> {
        match config::load_with(&self.json, board.found()) {
            Ok(router) => Some(router),
            Err(mistakes) => {
                host.log(
                    Level::Error,
                    &format!("warmpath: the pods that were found are refused: {mistakes}"),
                );
                None
            }
        }
    }
}

fn keys(router: &Router) -> Vec<u64> {
    router.pods().iter().map(|pod| key(&pod.id())).collect()
}

impl Current {
    /// A router of whose pods nothing is known.
    pub(super) fn new(router: Rc<Router>, settings: BreakerSettings) -> Self {
        Self {
            breaker: Breaker::new(settings, router.pods().len()),
            keys: keys(&router),
            router,
            places: Places::default(),
            foreign: Vec::new(),
            open_elsewhere: Positions::default(),
            engines: Vec::new(),
            tells: BTreeMap::new(),
            down: Positions::default(),
            board: 0,
            news: 0,
        }
    }

    /// The present position of a pod that `router` knows by another.
    fn position(&self, router: &Rc<Router>, position: usize) -> Option<usize> {
        if Rc::ptr_eq(router, &self.router) {
            return Some(position);
        }
        let pod = router.pods().get(position)?;
        self.router.pods().iter().position(|now| now.id() == pod.id())
    }

    /// Decides among other pods from now on. What is known of those that stay is kept.
    fn replace(&mut self, next: Router) {
        let old = std::mem::replace(&mut self.router, Rc::new(next));
        let before =
            self.router.pods().iter().map(|pod| old.pods().iter().position(|before| before.id() == pod.id()));
        self.breaker.replace(before);
        self.keys = keys(&self.router);
        self.news = 0;
        self.open_elsewhere = Positions::default();
        self.places = Places::default();
        self.tells = BTreeMap::new();
    }
}
