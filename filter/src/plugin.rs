//! One plugin configuration in one VM: what its streams share.

use crate::blocks::{self, Chain};
use crate::config::{self, Router, Settings, TokenizerSettings};
use crate::events::Complaints;
use crate::fleet::Fleet;
use crate::guard::Guard;
use crate::host::{Host, Level};
use crate::index::{Depths, Index, IndexSettings, MAX_SLOTS, PodRef, PodSet};
use crate::metrics::{Metric, Metrics};
use crate::pipeline::{Matches, PodState, Positions, Residency};
use crate::pods::{Health, Pod};
use crate::prompt::delivery::{Delivery, Source, built_in};
use crate::request;
use crate::stream::Stream;
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

/// Requests that a rank may have more than the one with the fewest, and still be chosen for what it holds.
const RANK_SLACK: u32 = 4;
/// Most connections that are closed with one tick.
const MOST_CLOSING: usize = 65_536;

/// The VM: its fleets by fingerprint, and its tokenizers by where they come from.
#[derive(Default)]
pub struct Vm {
    fleets: BTreeMap<u64, Weak<RefCell<Fleet>>>,
    /// By what the source is called, which says all but how long it may take.
    deliveries: BTreeMap<String, Weak<RefCell<Delivery>>>,
}

impl Vm {
    /// Builds a plugin from its configuration, or says every mistake in it.
    pub fn configure(&mut self, host: &impl Host, id: u32) -> Result<Rc<Plugin>, String> {
        let bytes = host.plugin_configuration().map_err(|error| error.to_string())?;
        let router = config::load(&bytes).map_err(|mistakes| mistakes.to_string())?;
        for (i, tokenizer) in router.settings().tokenizers.iter().enumerate() {
            if let Source::BuiltIn(name) = &tokenizer.source {
                built_in::find(name)
                    .map_err(|error| format!("tokenizers[{i}].built_in: {name:?} is {error}"))?;
            }
        }
        let settings = index_settings(router.settings());
        self.fleets.retain(|_, fleet| fleet.strong_count() > 0);
        let identity = settings.identity();
        let fleet = self.fleets.get(&identity).and_then(Weak::upgrade).unwrap_or_else(|| {
            let fleet = Rc::new(RefCell::new(Fleet::new(settings, Metrics::define(host))));
            self.fleets.insert(identity, Rc::downgrade(&fleet));
            fleet
        });
        self.deliveries.retain(|_, delivery| delivery.strong_count() > 0);
        let tokenizers =
            router.settings().tokenizers.iter().map(|settings| self.delivery(settings)).collect();
        Ok(Rc::new(Plugin::new(id, router, fleet, tokenizers)))
    }

    fn delivery(&mut self, settings: &TokenizerSettings) -> Rc<RefCell<Delivery>> {
        let source = settings.source.to_string();
        self.deliveries.get(&source).and_then(Weak::upgrade).unwrap_or_else(|| {
            let delivery = Delivery::new(settings.source.clone(), settings.memory_bytes);
            let delivery = Rc::new(RefCell::new(delivery));
            self.deliveries.insert(source, Rc::downgrade(&delivery));
            delivery
        })
    }
}

/// The index that a configuration shares with all that hash alike.
pub(crate) fn index_settings(settings: &Settings) -> IndexSettings {
    IndexSettings {
        max_blocks: settings.max_blocks as usize,
        pod_blocks: settings.pod_blocks as usize,
        ttl_seconds: settings.ttl_seconds,
        fingerprint: blocks::seed(&[
            Some(&(settings.block_size.bytes() as u64).to_le_bytes()),
            Some(&u64::from(request::FORM_VERSION).to_le_bytes()),
        ]),
        ..IndexSettings::default()
    }
}

/// One plugin configuration in one VM.
pub struct Plugin {
    id: u32,
    /// What was configured.
    pub router: Router,
    /// What this VM knows.
    pub fleet: Rc<RefCell<Fleet>>,
    /// Requests that are held, while it isn't sure that Envoy will give their bodies.
    pub guard: RefCell<Guard<Weak<RefCell<Stream>>>>,
    /// Which pods failed lately.
    pub health: RefCell<Health>,
    places: RefCell<Places>,
    /// In the order of the configuration.
    tokenizers: Vec<Rc<RefCell<Delivery>>>,
    /// When what was complained of last about KV events.
    pub complaints: Complaints,
    /// Connections that are to be closed.
    closing: RefCell<Vec<u32>>,
    /// Failures of tokenizers as they were last added to Envoy's stats.
    failures: Cell<u64>,
}

/// Where the configured pods stand in the index.
#[derive(Debug, Default)]
struct Places {
    /// Version of the roster that this was read from.
    version: Option<u64>,
    /// By position, then by rank.
    pods: Vec<Vec<Option<PodRef>>>,
    /// By slot.
    positions: Vec<Option<usize>>,
}

impl Plugin {
    fn new(
        id: u32,
        router: Router,
        fleet: Rc<RefCell<Fleet>>,
        tokenizers: Vec<Rc<RefCell<Delivery>>>,
    ) -> Self {
        if let Ok(mut fleet) = fleet.try_borrow_mut() {
            fleet.name_pods(id, router.pods().iter().flat_map(Pod::cache_ids).collect());
        }
        let health = RefCell::new(Health::new(router.pods().len()));
        Self {
            id,
            router,
            fleet,
            guard: RefCell::default(),
            health,
            places: RefCell::default(),
            tokenizers,
            complaints: Complaints::default(),
            closing: RefCell::default(),
            failures: Cell::new(0),
        }
    }

    /// What is to be done ten times a second.
    pub fn tick(&self, host: &impl Host) {
        let Ok(mut fleet) = self.fleet.try_borrow_mut() else { return };
        fleet.tick(host, self.id);
        self.deliver(host, &fleet);
        let now = fleet.ticks();
        drop(fleet);
        self.send_on_overdue(host, now);
        self.close(host);
    }

    /// Closes a connection at the next tick. Not at once: Envoy would call into the VM, which is in a callback of that very
    /// connection.
    pub fn close_soon(&self, connection: u32) {
        if let Ok(mut closing) = self.closing.try_borrow_mut()
            && closing.len() < MOST_CLOSING
        {
            closing.push(connection);
        }
    }

    fn close(&self, host: &impl Host) {
        let closing = self.closing.try_borrow_mut().map(|mut closing| std::mem::take(&mut *closing));
        for connection in closing.unwrap_or_default() {
            if host.set_effective_context(connection).is_ok() {
                let _ = host.close_connection();
            }
        }
    }

    /// The pod of a name, an address, or a host that no other pod has.
    pub fn pod_named(&self, name: &str) -> Option<usize> {
        let pods = self.router.pods();
        let by_name = pods.iter().position(|pod| pod.name == name || pod.target == name);
        by_name.or_else(|| {
            let host = |pod: &Pod| pod.target.rsplit_once(':').is_some_and(|(host, _)| host == name);
            let mut of_host = (0..).zip(pods).filter(|(_, pod)| host(pod));
            let first = of_host.next().map(|(position, _)| position);
            first.filter(|_| of_host.next().is_none())
        })
    }

    fn deliver(&self, host: &impl Host, fleet: &Fleet) {
        let Some(life) = fleet.index.life() else { return };
        let keeps_house = fleet.index.holds_lease();
        let (mut ready, mut failures) = (0, 0);
        for delivery in &self.tokenizers {
            let Ok(mut delivery) = delivery.try_borrow_mut() else { continue };
            // Nobody outside knows the moment at which it is loaded.
            let seed = (host.now().as_nanos() as u64) ^ life.rotate_left(32);
            delivery.tick(host, fleet.ticks(), keeps_house, seed);
            ready += u64::from(delivery.loaded().is_some());
            failures += delivery.failures();
        }
        let before = self.failures.replace(failures);
        fleet.metrics.add(host, Metric::TokenizerFailures, failures.saturating_sub(before));
        if keeps_house && !self.tokenizers.is_empty() {
            fleet.metrics.record(host, Metric::TokenizersReady, ready);
        }
    }

    /// An answer came to a call of this root context.
    pub fn on_answer(&self, host: &impl Host, call: u32) {
        let now = self.fleet.try_borrow().map_or(0, |fleet| fleet.ticks());
        for delivery in &self.tokenizers {
            if delivery.try_borrow_mut().is_ok_and(|mut delivery| delivery.on_answer(host, now, call)) {
                return;
            }
        }
    }

    /// The tokenizer of a model. Engines of one model take requests that name none.
    pub fn tokenizer_of(&self, model: Option<&str>) -> Option<(&TokenizerSettings, &RefCell<Delivery>)> {
        let settings = &self.router.settings().tokenizers;
        let at = match model {
            Some(model) => settings.iter().position(|one| one.serves(model))?,
            None if settings.len() == 1 => 0,
            None => return None,
        };
        Some((settings.get(at)?, self.tokenizers.get(at)?))
    }

    fn send_on_overdue(&self, host: &impl Host, now: u64) {
        while let Some(stream) = self.guard.try_borrow_mut().ok().and_then(|mut guard| guard.overdue(now)) {
            let Some(stream) = stream.upgrade() else { continue };
            let sent = stream.try_borrow_mut().is_ok_and(|mut stream| stream.send_on_unread(host));
            if sent && self.guard.try_borrow_mut().is_ok_and(|mut guard| guard.sent_on()) {
                host.log(
                    Level::Error,
                    "warmpath: Envoy holds requests without giving their bodies. Set \
                     allow_on_headers_stop_iteration: true in the wasm filter's config (next to vm_config); until then \
                     requests go by load, unread.",
                );
            }
        }
    }

    /// Fills in what is known of each pod, by position.
    pub fn states(&self, fleet: &Fleet, out: &mut Vec<PodState>) {
        self.place(&fleet.index);
        let (Ok(places), Ok(health)) = (self.places.try_borrow(), self.health.try_borrow()) else { return };
        out.clear();
        out.extend(places.pods.iter().enumerate().map(|(position, pod)| PodState {
            in_flight: pod.iter().flatten().map(|pod| fleet.index.in_flight(pod.slot)).sum(),
            healthy: health.is_up(position, fleet.ticks()),
        }));
    }

    /// The slot of one of a pod's caches; `None` while it has none.
    pub fn slot_of(&self, position: usize, rank: u32) -> Option<PodRef> {
        self.places.try_borrow().ok()?.pods.get(position)?.get(rank as usize).copied().flatten()
    }

    /// The slots of all of a pod's caches that have one.
    pub fn slots_of(&self, position: usize) -> Vec<PodRef> {
        let Ok(places) = self.places.try_borrow() else { return Vec::new() };
        places.pods.get(position).into_iter().flatten().copied().flatten().collect()
    }

    /// The rank whose cache holds most of a prompt, of those that don't have [`RANK_SLACK`] requests more than the one with the
    /// fewest; and among equals the one with the fewest. What many prompts share would else draw all of them to one rank.
    pub fn rank_of(&self, index: &Index, position: usize, chain: &Chain) -> u32 {
        let Ok(places) = self.places.try_borrow() else { return 0 };
        let Some(ranks) = places.pods.get(position).filter(|ranks| ranks.len() > 1) else { return 0 };
        let known = || {
            let there = (0..).zip(ranks).filter_map(|(rank, pod)| Some((rank, (*pod)?)));
            there.map(|(rank, pod): (u32, PodRef)| (rank, pod, index.in_flight(pod.slot)))
        };
        let fewest = known().map(|(_, _, in_flight)| in_flight).min().unwrap_or(0);
        let best = known()
            .filter(|(_, _, in_flight)| *in_flight <= fewest.saturating_add(RANK_SLACK))
            .max_by_key(|(rank, pod, in_flight)| {
                (index.depth_of(pod.slot, chain), Reverse(*in_flight), Reverse(*rank))
            });
        best.map_or(0, |(rank, _, _)| rank)
    }

    /// The pod at an address such as `10.0.0.1:8000`.
    pub fn position_of(&self, target: &[u8]) -> Option<usize> {
        self.router.pods().iter().position(|pod| pod.target.as_bytes() == target)
    }

    /// Adds one to a metric, where the fleet is not in use at this moment.
    pub fn count(&self, host: &impl Host, metric: Metric) {
        if let Ok(fleet) = self.fleet.try_borrow() {
            fleet.metrics.add(host, metric, 1);
        }
    }

    fn place(&self, index: &Index) {
        let Ok(mut places) = self.places.try_borrow_mut() else { return };
        let version = index.replica().roster().version();
        if places.version == Some(version) {
            return;
        }
        places.version = Some(version);
        places.pods = self
            .router
            .pods()
            .iter()
            .map(|pod| pod.cache_ids().map(|id| index.find(&id)).collect())
            .collect();
        let mut positions = vec![None; MAX_SLOTS];
        for (position, ranks) in places.pods.iter().enumerate() {
            for pod in ranks.iter().flatten() {
                if let Some(place) = positions.get_mut(pod.slot.index()) {
                    *place = Some(position);
                }
            }
        }
        places.positions = positions;
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        if let Ok(mut fleet) = self.fleet.try_borrow_mut() {
            fleet.forget(self.id);
        }
    }
}

/// The index as the pipeline asks it: by position.
pub struct Located<'a> {
    /// Who asks.
    pub plugin: &'a Plugin,
    /// Who answers.
    pub index: &'a Index,
}

impl Residency for Located<'_> {
    fn depths(&self, chain: &Chain, out: &mut Matches) {
        let Ok(places) = self.plugin.places.try_borrow() else { return };
        let positions = |slots: &PodSet| {
            let found = slots.iter().filter_map(|slot| places.positions.get(slot.index()).copied().flatten());
            found.collect::<Positions>()
        };
        let mut depths = Depths::default();
        self.index.depths(&chain.hashes, &mut depths);
        let guessed = depths.steps.iter().map(|(depth, slots)| (blocks::worth(*depth), positions(slots)));
        if !self.index.knows_cached() {
            guessed.for_each(|(depth, pods)| out.push(depth, pods));
            return;
        }
        let mut groups: Vec<_> = guessed.collect();
        self.index.depths(&chain.cached, &mut depths);
        groups.extend(depths.steps.iter().map(|(depth, slots)| (*depth, positions(slots))));
        *out = Matches::deepest(&mut groups);
    }
}
